// Rows of cross entropy over float32, for the vectors of the including file.
//
// log_sum_exp reads the row from memory once: it goes by chunks of 2048 logits that stay in L1 for a maximum and a
// sum of exp(x - maximum so far); a chunk that raises the maximum scales the sum down. probabilities is one pass.
// Bytes per logit: 4 forward, 8 backward.
// Four vectors of partial sums, added in a fixed order: bits depend on n and the instruction set alone.
#pragma once

#include <blublas/simd/exp2.h>

#include "ops/cross_entropy/cross_entropy_kernels.h"
#include "ops/simd/lanes.h"

namespace blutensor {
namespace {

constexpr float kInfinity = __builtin_inff();
constexpr int64_t kChunk = 2048;
constexpr int64_t kStep = 4 * simd::kLanes;

LogSumExp<float> log_sum_exp(const float* logits, int64_t n) {
  float maximum = -kInfinity;
  F s[4] = {simd::broadcast(0.0f), simd::broadcast(0.0f), simd::broadcast(0.0f), simd::broadcast(0.0f)};
  for (int64_t begin = 0; begin < n; begin += kChunk) {
    const float* x = logits + begin;
    const int64_t count = n - begin < kChunk ? n - begin : kChunk;
    F m[4] = {simd::broadcast(maximum), simd::broadcast(maximum), simd::broadcast(maximum), simd::broadcast(maximum)};
    int64_t j = 0;
    for (; j + kStep <= count; j += kStep)
      for (int u = 0; u < 4; ++u) m[u] = simd::max(simd::load(x + j + u * simd::kLanes), m[u]);
    for (; j + simd::kLanes <= count; j += simd::kLanes) m[0] = simd::max(simd::load(x + j), m[0]);
    if (j < count) m[1] = simd::max(load_first_or(x + j, count - j, simd::broadcast(-kInfinity)), m[1]);
    const float before = maximum;
    maximum = max_lanes(simd::max(simd::max(m[0], m[1]), simd::max(m[2], m[3])));
    if (maximum > before) {
      const F correction = simd::exp_flushed(simd::broadcast(before - maximum));
      for (F& v : s) v = v * correction;
    }
    // While there was nothing but -inf, 0 keeps the differences at -inf.
    const F shift = simd::broadcast(maximum == -kInfinity ? 0.0f : maximum);
    for (j = 0; j + kStep <= count; j += kStep) {
#pragma GCC unroll 4
      for (int u = 0; u < 4; ++u) s[u] += simd::exp_flushed(simd::load(x + j + u * simd::kLanes) - shift);
    }
    for (; j + simd::kLanes <= count; j += simd::kLanes) s[0] += simd::exp_flushed(simd::load(x + j) - shift);
    if (j < count) s[1] += keep_first(simd::exp_flushed(simd::load_first(x + j, count - j) - shift), count - j);
  }
  // A row of -inf alone gives NaN, as softmax does.
  const float sum = maximum == -kInfinity ? __builtin_nanf("") : sum_lanes((s[0] + s[1]) + (s[2] + s[3]));
  return {maximum, __builtin_logf(sum)};
}

void probabilities(const float* logits, float* grad, int64_t n, LogSumExp<float> parts, float scale) {
  const F maximum = simd::broadcast(parts.maximum), log_sum = simd::broadcast(parts.log_sum),
          factor = simd::broadcast(scale);
  const auto weight = [&](F x) { return simd::exp_flushed((x - maximum) - log_sum) * factor; };
  int64_t j = 0;
#pragma GCC unroll 4
  for (; j + simd::kLanes <= n; j += simd::kLanes) simd::store(grad + j, weight(simd::load(logits + j)));
  if (j < n) simd::store_first(grad + j, weight(simd::load_first(logits + j, n - j)), n - j);
}

}  // namespace
}  // namespace blutensor
