// bfloat16 is the upper half of a float32. Rounding to nearest even; NaN stays NaN (made quiet).
#pragma once

#include <cstdint>
#include <cstring>

#include "blublas/blublas.h"

namespace blublas {
namespace {  // internal: files compiled for different instruction sets must not share one copy of an inline function

inline float float_from_bfloat16(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

inline uint16_t bfloat16_from_float(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  if ((bits & 0x7fffffffU) > 0x7f800000U) return static_cast<uint16_t>((bits >> 16) | 0x40U);
  return static_cast<uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

// Element `index` of an array of T's own dtype or bfloat16.
template <typename T>
inline T load_element(const char* data, int32_t dtype, int64_t index) {
  if (dtype == BLUBLAS_BFLOAT16) {
    uint16_t bits;
    std::memcpy(&bits, data + 2 * index, 2);
    return static_cast<T>(float_from_bfloat16(bits));
  }
  T value;
  std::memcpy(&value, data + static_cast<int64_t>(sizeof(T)) * index, sizeof(T));
  return value;
}

template <typename T>
inline void store_element(char* data, int32_t dtype, int64_t index, T value) {
  if (dtype == BLUBLAS_BFLOAT16) {
    const uint16_t bits = bfloat16_from_float(static_cast<float>(value));
    std::memcpy(data + 2 * index, &bits, 2);
  } else {
    std::memcpy(data + static_cast<int64_t>(sizeof(T)) * index, &value, sizeof(T));
  }
}

}  // namespace
}  // namespace blublas
