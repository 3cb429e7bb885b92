// Element types. The numbering is shared with blublas and is part of the C ABI.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "tensor/error.h"

namespace blutensor {

enum class DType : int32_t {
  float32 = 0,
  bfloat16 = 1,
  float16 = 2,
  float64 = 3,
  int64 = 4,
  int32 = 5,
  uint8 = 6,
  uint16 = 7,
  boolean = 8,
  int8 = 9,
  int16 = 10,
  uint32 = 11,
  uint64 = 12,
};
inline constexpr int kNumDTypes = 13;

// bfloat16: the upper half of a float32, rounded to nearest even; NaN stays NaN.
struct bfloat16 {
  uint16_t bits = 0;
  bfloat16() = default;
  explicit bfloat16(float value) {
    const uint32_t word = std::bit_cast<uint32_t>(value);
    bits = std::isnan(value) ? static_cast<uint16_t>((word >> 16) | 0x40u)
                             : static_cast<uint16_t>((word + 0x7fffu + ((word >> 16) & 1u)) >> 16);
  }
  explicit operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
};

// IEEE binary16 through the compiler's own type.
struct float16 {
  _Float16 value = 0;
  float16() = default;
  explicit float16(float v) : value(static_cast<_Float16>(v)) {}
  explicit operator float() const { return static_cast<float>(value); }
};

constexpr size_t dtype_size(DType dtype) {
  switch (dtype) {
    case DType::float64:
    case DType::int64:
    case DType::uint64:
      return 8;
    case DType::float32:
    case DType::int32:
    case DType::uint32:
      return 4;
    case DType::bfloat16:
    case DType::float16:
    case DType::int16:
    case DType::uint16:
      return 2;
    default:
      return 1;
  }
}

constexpr const char* dtype_name(DType dtype) {
  constexpr const char* names[kNumDTypes] = {"float32", "bfloat16", "float16", "float64", "int64",  "int32", "uint8",
                                             "uint16",  "bool",     "int8",    "int16",   "uint32", "uint64"};
  return names[static_cast<int>(dtype)];
}

constexpr bool is_floating(DType dtype) { return static_cast<int>(dtype) <= static_cast<int>(DType::float64); }
constexpr bool is_integer(DType dtype) { return !is_floating(dtype) && dtype != DType::boolean; }
constexpr bool is_unsigned(DType dtype) {
  return dtype == DType::uint8 || dtype == DType::uint16 || dtype == DType::uint32 || dtype == DType::uint64;
}
// The 64-bit integer that holds every value of an integer dtype, and of bool.
constexpr DType widest_integer(DType dtype) { return dtype == DType::uint64 ? DType::uint64 : DType::int64; }

template <class T>
struct dtype_of;
template <>
struct dtype_of<float> {
  static constexpr DType value = DType::float32;
};
template <>
struct dtype_of<bfloat16> {
  static constexpr DType value = DType::bfloat16;
};
template <>
struct dtype_of<float16> {
  static constexpr DType value = DType::float16;
};
template <>
struct dtype_of<double> {
  static constexpr DType value = DType::float64;
};
template <>
struct dtype_of<int64_t> {
  static constexpr DType value = DType::int64;
};
template <>
struct dtype_of<int32_t> {
  static constexpr DType value = DType::int32;
};
template <>
struct dtype_of<uint8_t> {
  static constexpr DType value = DType::uint8;
};
template <>
struct dtype_of<uint16_t> {
  static constexpr DType value = DType::uint16;
};
template <>
struct dtype_of<bool> {
  static constexpr DType value = DType::boolean;
};
template <>
struct dtype_of<int8_t> {
  static constexpr DType value = DType::int8;
};
template <>
struct dtype_of<int16_t> {
  static constexpr DType value = DType::int16;
};
template <>
struct dtype_of<uint32_t> {
  static constexpr DType value = DType::uint32;
};
template <>
struct dtype_of<uint64_t> {
  static constexpr DType value = DType::uint64;
};

// visit_dtype(dtype, [&](auto tag) { using T = typename decltype(tag)::type; ... })
template <class T>
struct TypeTag {
  using type = T;
};
template <class F>
decltype(auto) visit_dtype(DType dtype, F&& f) {
  switch (dtype) {
    case DType::float32:
      return f(TypeTag<float>{});
    case DType::bfloat16:
      return f(TypeTag<bfloat16>{});
    case DType::float16:
      return f(TypeTag<float16>{});
    case DType::float64:
      return f(TypeTag<double>{});
    case DType::int64:
      return f(TypeTag<int64_t>{});
    case DType::int32:
      return f(TypeTag<int32_t>{});
    case DType::uint8:
      return f(TypeTag<uint8_t>{});
    case DType::uint16:
      return f(TypeTag<uint16_t>{});
    case DType::boolean:
      return f(TypeTag<bool>{});
    case DType::int8:
      return f(TypeTag<int8_t>{});
    case DType::int16:
      return f(TypeTag<int16_t>{});
    case DType::uint32:
      return f(TypeTag<uint32_t>{});
    case DType::uint64:
      return f(TypeTag<uint64_t>{});
  }
  fail(Status::invalid_type, "unknown dtype number ", static_cast<int>(dtype));
}
template <class F>
decltype(auto) visit_floating(DType dtype, const char* op, F&& f) {
  switch (dtype) {
    case DType::float32:
      return f(TypeTag<float>{});
    case DType::bfloat16:
      return f(TypeTag<bfloat16>{});
    case DType::float16:
      return f(TypeTag<float16>{});
    case DType::float64:
      return f(TypeTag<double>{});
    default:
      fail(Status::invalid_type, "[", op, "] expected a floating-point tensor, got ", dtype_name(dtype));
  }
}

// The type in which an operator computes on T: float for the 16-bit floats, T itself otherwise.
template <class T>
struct compute_type {
  using type = T;
};
template <>
struct compute_type<bfloat16> {
  using type = float;
};
template <>
struct compute_type<float16> {
  using type = float;
};
template <class T>
using compute_t = typename compute_type<T>::type;

// Result dtype of a binary operator: the tables of the array API standard, and for kinds that it leaves open: a float
// mixed with an integer takes the float, bool takes the other's, 16-bit floats of two kinds meet in float32. Throws for
// uint64 with a signed integer, which no integer dtype holds.
DType promote(DType a, DType b);

}  // namespace blutensor
