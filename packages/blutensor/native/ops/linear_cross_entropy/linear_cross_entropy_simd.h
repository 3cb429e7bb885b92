// The passes of linear_cross_entropy over blocks of logits, float32, for the vectors of the including file.
//
// Lanes are tokens, so nothing is ever added or compared across lanes. exponentiate: one pass for the largest logits of
// four vectors of tokens, one for e = exp(logit - max), stored in place, and its sums, in runs of kRun classes that are
// added in order (an error that grows with kRun + classes / kRun). 8 bytes read, 4 written, about 22 FLOPs a logit,
// from L2.
// NaN reaches the sum; -inf gives 0.
// Benchmark: benchmarks/bench_layers.py --only linear_cross_entropy
#pragma once

#include <blublas/simd/math.h>

#include "ops/linear_cross_entropy/linear_cross_entropy_kernels.h"
#include "ops/simd/lanes.h"

namespace blutensor {
namespace {

constexpr int64_t kRun = 32;

// `count` vectors of tokens at column `col`; the last one has `tail` of them (0: all).
template <int count>
void exponentiate_columns(const LogitBlock<float>& block, int64_t col, int64_t tail, float* max, float* sum) {
  const F lowest = simd::broadcast(-__builtin_inff()), zero = simd::broadcast(0.0F);
  const auto get = [&](const float* p) { return tail ? simd::load_first(p, tail) : simd::load(p); };
  const auto put = [&](float* p, F v) { tail ? simd::store_first(p, v, tail) : simd::store(p, v); };
  F m[count], total[count];
  for (int u = 0; u < count; ++u) m[u] = lowest, total[u] = zero;
  for (int64_t v = 0; v < block.classes; ++v)
    for (int u = 0; u < count; ++u)  // NaN is dropped here, exp brings it back
      m[u] = simd::max(get(block.x + v * block.stride + col + u * simd::kLanes), m[u]);
  for (int u = 0; u < count; ++u) {
    put(max + col + u * simd::kLanes, m[u]);
    m[u] = simd::select(simd::equal(m[u], lowest), zero, m[u]);
  }
  for (int64_t first = 0; first < block.classes; first += kRun) {
    const int64_t end = first + kRun < block.classes ? first + kRun : block.classes;
    F run[count];
    for (int u = 0; u < count; ++u) run[u] = zero;
    for (int64_t v = first; v < end; ++v)
      for (int u = 0; u < count; ++u) {
        float* at = block.x + v * block.stride + col + u * simd::kLanes;
        const F e = simd::exp(get(at) - m[u]);
        put(at, e);
        run[u] += e;
      }
    for (int u = 0; u < count; ++u) total[u] += run[u];
  }
  for (int u = 0; u < count; ++u) put(sum + col + u * simd::kLanes, total[u]);
}

inline void exponentiate(const LogitBlock<float>& block, float* max, float* sum) {
  int64_t col = 0;
  for (; col + 4 * simd::kLanes <= block.cols; col += 4 * simd::kLanes)
    exponentiate_columns<4>(block, col, 0, max, sum);
  for (; col + simd::kLanes <= block.cols; col += simd::kLanes) exponentiate_columns<1>(block, col, 0, max, sum);
  if (col < block.cols) exponentiate_columns<1>(block, col, block.cols - col, max, sum);
}

inline void scale(const LogitBlock<float>& block, const float* factor) {
  const F zero = simd::broadcast(0.0F);
  const auto scaled = [&](F e, F f) { return simd::select(simd::equal(f, zero), zero, e * f); };
  for (int64_t v = 0; v < block.classes; ++v) {
    float* x = block.x + v * block.stride;
    int64_t col = 0;
    for (; col + simd::kLanes <= block.cols; col += simd::kLanes)
      simd::store(x + col, scaled(simd::load(x + col), simd::load(factor + col)));
    const int64_t tail = block.cols - col;
    if (tail)
      simd::store_first(x + col, scaled(simd::load_first(x + col, tail), simd::load_first(factor + col, tail)), tail);
  }
}

inline void store_scaled(float* target, const float* source, int64_t n, float factor, bool accumulate) {
  const F f = simd::broadcast(factor);
  int64_t j = 0;
  for (; j + simd::kLanes <= n; j += simd::kLanes) {
    const F v = simd::load(source + j) * f;
    simd::store(target + j, accumulate ? simd::load(target + j) + v : v);
  }
  const int64_t tail = n - j;
  if (tail) {
    const F v = simd::load_first(source + j, tail) * f;
    simd::store_first(target + j, accumulate ? simd::load_first(target + j, tail) + v : v, tail);
  }
}

}  // namespace
}  // namespace blutensor
