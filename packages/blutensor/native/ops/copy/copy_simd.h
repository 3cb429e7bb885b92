// float32 to and from the 16-bit floats, contiguous: included by cpu_avx2.cpp and cpu_avx512.cpp, compiled for each.
// Reads 4 (2) and writes 2 (4) bytes per element. Strided operands go to the portable kernel.
#include <cstring>

#include <blublas/simd/vector.h>

#include "ops/copy/copy_kernels.h"

namespace blutensor {

namespace {

namespace simd = blublas::simd;

enum class Half { bfloat16, float16 };

template <Half kind>
simd::F load_half(const uint16_t* p) {
  return kind == Half::bfloat16 ? simd::load_bfloat16(p) : simd::load_float16(p);
}
template <Half kind>
void store_half(uint16_t* p, simd::F v) {
  if (kind == Half::bfloat16)
    simd::store_bfloat16(p, v);
  else
    simd::store_float16(p, v);
}

CastKernel portable_narrow[2], portable_widen[2], portable_bool;

// Any byte that is not zero becomes 1 (the compiler vectorizes it).
void normalize_bool(int64_t n, void* destination, int64_t destination_stride, const void* source,
                    int64_t source_stride) {
  if (destination_stride != 1 || source_stride != 1)
    return portable_bool(n, destination, destination_stride, source, source_stride);
  auto* to = static_cast<uint8_t*>(destination);
  const auto* from = static_cast<const uint8_t*>(source);
  for (int64_t i = 0; i < n; ++i) to[i] = from[i] != 0;
}

template <Half kind>
void narrow(int64_t n, void* destination, int64_t destination_stride, const void* source, int64_t source_stride) {
  if (destination_stride != 1 || source_stride != 1)
    return portable_narrow[static_cast<int>(kind)](n, destination, destination_stride, source, source_stride);
  auto* to = static_cast<uint16_t*>(destination);
  const auto* from = static_cast<const float*>(source);
  int64_t i = 0;
  for (; i + simd::kLanes <= n; i += simd::kLanes) store_half<kind>(to + i, simd::load(from + i));
  if (i < n) {
    uint16_t last[simd::kLanes];
    store_half<kind>(last, simd::load_first(from + i, n - i));
    std::memcpy(to + i, last, static_cast<size_t>(n - i) * sizeof(uint16_t));
  }
}

template <Half kind>
void widen(int64_t n, void* destination, int64_t destination_stride, const void* source, int64_t source_stride) {
  if (destination_stride != 1 || source_stride != 1)
    return portable_widen[static_cast<int>(kind)](n, destination, destination_stride, source, source_stride);
  auto* to = static_cast<float*>(destination);
  const auto* from = static_cast<const uint16_t*>(source);
  int64_t i = 0;
  for (; i + simd::kLanes <= n; i += simd::kLanes) simd::store(to + i, load_half<kind>(from + i));
  if (i < n) {
    uint16_t last[simd::kLanes] = {};
    std::memcpy(last, from + i, static_cast<size_t>(n - i) * sizeof(uint16_t));
    simd::store_first(to + i, load_half<kind>(last), n - i);
  }
}

template <Half kind>
void use_half(CopyKernels& kernels, DType dtype) {
  CastKernel& to = kernels.cast[static_cast<int>(DType::float32)][static_cast<int>(dtype)];
  CastKernel& from = kernels.cast[static_cast<int>(dtype)][static_cast<int>(DType::float32)];
  portable_narrow[static_cast<int>(kind)] = to;
  portable_widen[static_cast<int>(kind)] = from;
  to = narrow<kind>;
  from = widen<kind>;
}

void use_simd(CopyKernels& kernels) {
  use_half<Half::bfloat16>(kernels, DType::bfloat16);
  use_half<Half::float16>(kernels, DType::float16);
  CastKernel& to_bool = kernels.cast[static_cast<int>(DType::boolean)][static_cast<int>(DType::boolean)];
  portable_bool = to_bool;
  to_bool = normalize_bool;
}

}  // namespace

}  // namespace blutensor
