// Folding kernels of float32, in GCC's vector types: reference.cpp, cpu_avx2.cpp and cpu_avx512.cpp compile this file
// each for their instruction set. The lanes of the sums are fixed (32), so all give the same bits.
//
// Bytes: 4 per element read; additions are in float64, 8 per instruction with AVX-512, so that memory is the limit
// beyond the caches.
#include <cstdint>
#include <cstring>

#include <blublas/simd/vector.h>

#include "ops/reduce/reduce_kernels.h"

namespace blutensor {

namespace {

namespace simd = blublas::simd;

typedef float Float8 __attribute__((vector_size(32)));
typedef double Double8 __attribute__((vector_size(64)));

double sum_f32(int64_t n, const float* x) {
  constexpr int kGroups = 4, kWidth = 8, kLanes = kGroups * kWidth;
  Double8 total[kGroups] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int g = 0; g < kGroups; ++g) {
      Float8 value;
      std::memcpy(&value, x + i + g * kWidth, sizeof(value));
      total[g] += __builtin_convertvector(value, Double8);
    }
  double lanes[kLanes];
  std::memcpy(lanes, total, sizeof(lanes));
  for (int j = 0; i < n; ++i, ++j) lanes[j] += static_cast<double>(x[i]);
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int j = 0; j < half; ++j) lanes[j] += lanes[j + half];
  return lanes[0];
}

void add_columns_f32(int64_t num_rows, int64_t num_columns, const float* x, int64_t row_stride, double* sums) {
  constexpr int64_t kRows = 4, kWidth = 8;
  int64_t row = 0;
  for (; row + kRows <= num_rows; row += kRows) {
    const float* p = x + row * row_stride;
    int64_t c = 0;
    for (; c + kWidth <= num_columns; c += kWidth) {
      Double8 sum;
      std::memcpy(&sum, sums + c, sizeof(sum));
      for (int64_t r = 0; r < kRows; ++r) {
        Float8 value;
        std::memcpy(&value, p + r * row_stride + c, sizeof(value));
        sum += __builtin_convertvector(value, Double8);
      }
      std::memcpy(sums + c, &sum, sizeof(sum));
    }
    for (; c < num_columns; ++c)
      for (int64_t r = 0; r < kRows; ++r) sums[c] += static_cast<double>(p[r * row_stride + c]);
  }
  for (; row < num_rows; ++row)
    for (int64_t c = 0; c < num_columns; ++c) sums[c] += static_cast<double>(x[row * row_stride + c]);
}

// The extreme of a block: lanes first, NaN looked for on the side.
template <bool largest>
float extreme_f32(int64_t n, const float* x) {
  const auto better = [](simd::F a, simd::F b) { return largest ? simd::max(a, b) : simd::min(a, b); };
  const auto better_scalar = [](float a, float b) { return largest ? (a > b ? a : b) : (a < b ? a : b); };
  float best = x[0];
  float nan_seen = 0;  // becomes NaN
  int64_t i = 0;
  if (n >= simd::kLanes) {
    simd::F lanes = simd::load(x), differences = lanes - lanes;  // NaN for NaN (and infinity: decided below)
    for (i = simd::kLanes; i + simd::kLanes <= n; i += simd::kLanes) {
      const simd::F v = simd::load(x + i);
      lanes = better(lanes, v);
      differences = differences + (v - v);
    }
    float values[simd::kLanes], suspects[simd::kLanes];
    simd::store(values, lanes);
    simd::store(suspects, differences);
    for (int j = 0; j < simd::kLanes; ++j) {
      best = better_scalar(best, values[j]);
      nan_seen += suspects[j];
    }
  }
  for (; i < n; ++i) {
    best = better_scalar(best, x[i]);
    nan_seen += x[i] - x[i];
  }
  if (nan_seen != nan_seen)
    for (i = 0; i < n; ++i)
      if (x[i] != x[i]) return x[i];
  return best;
}

void use_float32(ReduceKernels& kernels) {
  kernels.sum_f32 = sum_f32;
  kernels.add_columns_f32 = add_columns_f32;
  kernels.max_f32 = extreme_f32<true>;
  kernels.min_f32 = extreme_f32<false>;
}

}  // namespace

}  // namespace blutensor
