// Conversion of one element between any two dtypes (the rules stand in copy_kernels.h).
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "tensor/dtype.h"

namespace blutensor {

// A double as float32, rounded to odd: what is lost leaves the last bit set, so that rounding once more to a narrower
// type gives what rounding once would have given (Boldo and Melquiond, "When double rounding is odd").
inline float round_to_odd(double value) {
  const float nearest = static_cast<float>(value);
  const double back = static_cast<double>(nearest);
  if (back == value || std::isnan(value) || std::isinf(nearest)) return nearest;
  uint32_t word = std::bit_cast<uint32_t>(nearest);
  if (std::fabs(back) > std::fabs(value)) --word;  // towards zero
  return std::bit_cast<float>(word | 1u);
}

// An integer as double, rounded to odd.
inline double round_to_odd(uint64_t magnitude) {
  if (magnitude >> 53) magnitude = (magnitude & ~uint64_t{2047}) | ((magnitude & 2047) ? 2048 : 0);
  return static_cast<double>(magnitude);
}
inline double round_to_odd(int64_t value) {
  return value < 0 ? -round_to_odd(0 - static_cast<uint64_t>(value)) : round_to_odd(static_cast<uint64_t>(value));
}

template <class T>
inline constexpr bool is_16_bit_float = std::is_same_v<T, bfloat16> || std::is_same_v<T, float16>;

template <class To, class From>
To convert(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (is_16_bit_float<From>) {
    return convert<To>(static_cast<float>(value));
  } else if constexpr (std::is_same_v<To, bool>) {
    return value != From{0};
  } else if constexpr (is_16_bit_float<To>) {
    if constexpr (std::is_same_v<From, float>) {
      return To(value);
    } else if constexpr (std::is_same_v<From, double>) {
      return To(round_to_odd(value));
    } else {
      using Wide = std::conditional_t<std::is_same_v<From, uint64_t>, uint64_t, int64_t>;
      return To(round_to_odd(round_to_odd(static_cast<Wide>(value))));
    }
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    constexpr To lowest = std::numeric_limits<To>::min(), highest = std::numeric_limits<To>::max();
    if (std::isnan(value)) return To{0};
    if (value <= static_cast<From>(lowest)) return lowest;
    if (value >= static_cast<From>(highest)) return highest;
    return static_cast<To>(value);
  } else {
    return static_cast<To>(value);
  }
}

// Elements in memory. A bool may hold any byte (foreign memory): not zero is true.
template <class T>
T load_element(const void* p, int64_t i) {
  if constexpr (std::is_same_v<T, bool>) {
    return static_cast<const uint8_t*>(p)[i] != 0;
  } else {
    return static_cast<const T*>(p)[i];
  }
}
template <class T>
void store_element(void* p, int64_t i, T value) {
  static_cast<T*>(p)[i] = value;
}

}  // namespace blutensor
