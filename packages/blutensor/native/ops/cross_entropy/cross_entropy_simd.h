// Rows of cross entropy over float32, for the vectors of the including file.
//
// row_sum reads the row from memory once: it goes by chunks of 2048 logits that stay in L1 for a maximum and a
// sum of exp(x - maximum so far); a chunk that raises the maximum scales the sum down. probabilities is one pass.
// Bytes per logit: 4 forward, 8 backward.
// A chunk has four vectors of partial sums, chunks add up in float64: bits depend on n and the instruction set alone.
#pragma once

#include <blublas/simd/exp2.h>

#include "ops/cross_entropy/cross_entropy_kernels.h"
#include "ops/simd/lanes.h"

namespace blutensor {
namespace {

constexpr float kInfinity = __builtin_inff();
constexpr int64_t kChunk = 2048;
constexpr int64_t kStep = 4 * simd::kLanes;

float chunk_maximum(const float* x, int64_t n, float maximum) {
  F m[4] = {simd::broadcast(maximum), simd::broadcast(maximum), simd::broadcast(maximum), simd::broadcast(maximum)};
  int64_t j = 0;
  for (; j + kStep <= n; j += kStep)
    for (int u = 0; u < 4; ++u) m[u] = simd::max(simd::load(x + j + u * simd::kLanes), m[u]);
  for (; j + simd::kLanes <= n; j += simd::kLanes) m[0] = simd::max(simd::load(x + j), m[0]);
  if (j < n) m[1] = simd::max(load_first_or(x + j, n - j, simd::broadcast(-kInfinity)), m[1]);
  return max_lanes(simd::max(simd::max(m[0], m[1]), simd::max(m[2], m[3])));
}

// Sum of exp(x - shift).
float chunk_sum(const float* x, int64_t n, float shift) {
  const F m = simd::broadcast(shift);
  F s[4] = {simd::broadcast(0.0f), simd::broadcast(0.0f), simd::broadcast(0.0f), simd::broadcast(0.0f)};
  int64_t j = 0;
  for (; j + kStep <= n; j += kStep) {
#pragma GCC unroll 4
    for (int u = 0; u < 4; ++u) s[u] += simd::exp_flushed(simd::load(x + j + u * simd::kLanes) - m);
  }
  for (; j + simd::kLanes <= n; j += simd::kLanes) s[0] += simd::exp_flushed(simd::load(x + j) - m);
  if (j < n) s[1] += keep_first(simd::exp_flushed(simd::load_first(x + j, n - j) - m), n - j);
  return sum_lanes((s[0] + s[1]) + (s[2] + s[3]));
}

RowSum<float> row_sum(const float* logits, int64_t n) {
  float maximum = -kInfinity;
  double sum = 0;
  for (int64_t begin = 0; begin < n; begin += kChunk) {
    const int64_t count = n - begin < kChunk ? n - begin : kChunk;
    const float before = maximum;
    maximum = chunk_maximum(logits + begin, count, maximum);
    if (maximum > before) {
      alignas(64) float correction[simd::kLanes];
      simd::store(correction, simd::exp_flushed(simd::broadcast(before - maximum)));
      sum *= static_cast<double>(correction[0]);
    }
    // While there was nothing but -inf, 0 keeps the differences at -inf.
    sum += static_cast<double>(chunk_sum(logits + begin, count, maximum == -kInfinity ? 0.0f : maximum));
  }
  return {maximum, maximum == -kInfinity ? __builtin_nan("") : sum};  // a row of -inf gives NaN, as softmax does
}

void probabilities(const float* logits, float* grad, int64_t n, LogSumExp<float> parts, float scale, float offset) {
  const F maximum = simd::broadcast(parts.maximum), log_sum = simd::broadcast(parts.log_sum),
          factor = simd::broadcast(scale), less = simd::broadcast(offset);
  const auto weight = [&](F x) { return simd::exp_flushed((x - maximum) - log_sum) * factor - less; };
  int64_t j = 0;
#pragma GCC unroll 4
  for (; j + simd::kLanes <= n; j += simd::kLanes) simd::store(grad + j, weight(simd::load(logits + j)));
  if (j < n) simd::store_first(grad + j, weight(simd::load_first(logits + j, n - j)), n - j);
}

}  // namespace
}  // namespace blutensor
