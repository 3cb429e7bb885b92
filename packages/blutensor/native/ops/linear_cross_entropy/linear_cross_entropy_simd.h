// The passes of linear_cross_entropy over blocks of logits that stay in cache, float32, for the vectors of the including file.
//
// exponentiate: one pass for the largest value, one for e = exp(logit - max), stored in place, and its sum in four vectors that are added in a fixed
// order. 8 bytes read, 4 written, about 25 FLOPs a logit. NaN reaches the sum; -inf gives 0.
// Benchmark: benchmarks/bench_operators.py --only linear_cross_entropy
#pragma once

#include <blublas/simd/math.h>

#include "ops/linear_cross_entropy/linear_cross_entropy_kernels.h"
#include "ops/simd/lanes.h"

namespace blutensor {
namespace {

inline float largest(const float* x, int64_t n) {
  const F lowest = simd::broadcast(-__builtin_inff());
  F m[4] = {lowest, lowest, lowest, lowest};
  int64_t j = 0;
  for (; j + 4 * simd::kLanes <= n; j += 4 * simd::kLanes)
    for (int u = 0; u < 4; ++u)
      m[u] = simd::max(simd::load(x + j + u * simd::kLanes), m[u]);  // NaN is dropped here, exp brings it back
  for (; j + simd::kLanes <= n; j += simd::kLanes) m[0] = simd::max(simd::load(x + j), m[0]);
  if (j < n) m[1] = simd::max(load_first_or(x + j, n - j, lowest), m[1]);
  return max_lanes(simd::max(simd::max(m[0], m[1]), simd::max(m[2], m[3])));
}

inline ExpSum<float> exponentiate(float* x, int64_t n) {
  const float max = largest(x, n);
  const F shift = simd::broadcast(max == -__builtin_inff() ? 0.0F : max);
  F s[4] = {simd::broadcast(0.0F), simd::broadcast(0.0F), simd::broadcast(0.0F), simd::broadcast(0.0F)};
  int64_t j = 0;
  for (; j + 4 * simd::kLanes <= n; j += 4 * simd::kLanes)
    for (int u = 0; u < 4; ++u) {
      float* at = x + j + u * simd::kLanes;
      const F e = simd::exp(simd::load(at) - shift);
      simd::store(at, e);
      s[u] += e;
    }
  for (; j + simd::kLanes <= n; j += simd::kLanes) {
    const F e = simd::exp(simd::load(x + j) - shift);
    simd::store(x + j, e);
    s[0] += e;
  }
  if (j < n) {
    const F e = keep_first(simd::exp(simd::load_first(x + j, n - j) - shift), n - j);
    simd::store_first(x + j, e, n - j);
    s[1] += e;
  }
  return {max, sum_lanes((s[0] + s[1]) + (s[2] + s[3]))};
}

inline void scale(float* x, int64_t n, float factor) {
  const F f = simd::broadcast(factor);
  int64_t j = 0;
  for (; j + simd::kLanes <= n; j += simd::kLanes) simd::store(x + j, simd::load(x + j) * f);
  if (j < n) simd::store_first(x + j, simd::load_first(x + j, n - j) * f, n - j);
}

inline void store_scaled(float* target, const float* source, int64_t n, float factor, bool accumulate) {
  const F f = simd::broadcast(factor);
  int64_t j = 0;
  for (; j + simd::kLanes <= n; j += simd::kLanes) {
    const F v = simd::load(source + j) * f;
    simd::store(target + j, accumulate ? simd::load(target + j) + v : v);
  }
  if (j < n) {
    const F v = simd::load_first(source + j, n - j) * f;
    simd::store_first(target + j, accumulate ? simd::load_first(target + j, n - j) + v : v, n - j);
  }
}

}  // namespace
}  // namespace blutensor
