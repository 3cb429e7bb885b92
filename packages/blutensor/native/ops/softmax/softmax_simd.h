// Softmax and log_softmax over float32, for the vectors of the including file.
//
// Forward, three passes over a row that is in cache after the first: maximum m; e = exp(x - m) and its sum; e / sum.
//   log_softmax: (x - m) - log(sum), the second pass stores nothing. The columns form does the same with a row in
//   every lane.
// Backward, two passes: sum of g y (of g), then y (g - sum) (g - exp(y) sum).
// Bytes per element: forward 8, backward 12. A row of -inf gives NaN (inf - inf), as does one with NaN or +inf.
// Sums run in four vectors over chunks of 2048 elements, the chunks in float64: bits depend on n and the instruction
// set alone.
#pragma once

#include <blublas/simd/exp2.h>

#include "ops/simd/lanes.h"
#include "ops/softmax/softmax_kernels.h"

namespace blutensor {
namespace {

constexpr float kInfinity = __builtin_inff();
constexpr int64_t kStep = 4 * simd::kLanes;
constexpr int64_t kChunk = 2048;

F sum_four(const F (&s)[4]) { return (s[0] + s[1]) + (s[2] + s[3]); }

// a / b from the reciprocal of b, corrected once: within the last bit of the division, at a fraction of its cost.
F divide(F a, F b, F reciprocal) {
  const F q = a * reciprocal;
  return simd::fma(simd::fnma(q, b, a), reciprocal, q);
}

float row_maximum(const float* x, int64_t n) {
  F m[4] = {simd::broadcast(-kInfinity), simd::broadcast(-kInfinity), simd::broadcast(-kInfinity),
            simd::broadcast(-kInfinity)};
  int64_t i = 0;
  for (; i + kStep <= n; i += kStep)
    for (int u = 0; u < 4; ++u) m[u] = simd::max(simd::load(x + i + u * simd::kLanes), m[u]);
  for (; i + simd::kLanes <= n; i += simd::kLanes) m[0] = simd::max(simd::load(x + i), m[0]);
  if (i < n) m[1] = simd::max(load_first_or(x + i, n - i, simd::broadcast(-kInfinity)), m[1]);
  return max_lanes(simd::max(simd::max(m[0], m[1]), simd::max(m[2], m[3])));
}

// Calls sum(begin, count) for the chunks of a row; their sum.
template <class Sum>
float sum_chunks(int64_t n, const Sum& sum) {
  double total = 0;
  for (int64_t begin = 0; begin < n; begin += kChunk)
    total += static_cast<double>(sum(begin, n - begin < kChunk ? n - begin : kChunk));
  return static_cast<float>(total);
}

// Sum of exp(x - maximum), which go to y unless it is nullptr.
template <bool kStore>
float exponentials(const float* x, float* y, int64_t n, float maximum) {
  const F m = simd::broadcast(maximum);
  F s[4] = {simd::broadcast(0.0f), simd::broadcast(0.0f), simd::broadcast(0.0f), simd::broadcast(0.0f)};
  int64_t i = 0;
  for (; i + kStep <= n; i += kStep) {
#pragma GCC unroll 4
    for (int u = 0; u < 4; ++u) {
      const F e = simd::exp_flushed(simd::load(x + i + u * simd::kLanes) - m);
      if constexpr (kStore) simd::store(y + i + u * simd::kLanes, e);
      s[u] += e;
    }
  }
  for (; i + simd::kLanes <= n; i += simd::kLanes) {
    const F e = simd::exp_flushed(simd::load(x + i) - m);
    if constexpr (kStore) simd::store(y + i, e);
    s[0] += e;
  }
  if (i < n) {
    const F e = simd::exp_flushed(simd::load_first(x + i, n - i) - m);
    if constexpr (kStore) simd::store_first(y + i, e, n - i);
    s[1] += keep_first(e, n - i);
  }
  return sum_lanes(sum_four(s));
}

float row_exponentials(const float* x, float* y, int64_t n, float maximum) {
  return sum_chunks(n, [&](int64_t begin, int64_t count) {
    return y != nullptr ? exponentials<true>(x + begin, y + begin, count, maximum)
                        : exponentials<false>(x + begin, nullptr, count, maximum);
  });
}

void softmax_forward_row(const float* x, float* y, int64_t n, bool log) {
  const float maximum = row_maximum(x, n);
  if (log) {
    const float log_sum = __builtin_logf(row_exponentials(x, nullptr, n, maximum));
    const F m = simd::broadcast(maximum), l = simd::broadcast(log_sum);
    int64_t i = 0;
    for (; i + simd::kLanes <= n; i += simd::kLanes) simd::store(y + i, (simd::load(x + i) - m) - l);
    if (i < n) simd::store_first(y + i, (simd::load_first(x + i, n - i) - m) - l, n - i);
    return;
  }
  const float total = row_exponentials(x, y, n, maximum);
  const F sum = simd::broadcast(total), reciprocal = simd::broadcast(1.0f / total);
  int64_t i = 0;
  for (; i + simd::kLanes <= n; i += simd::kLanes) simd::store(y + i, divide(simd::load(y + i), sum, reciprocal));
  if (i < n) simd::store_first(y + i, divide(simd::load_first(y + i, n - i), sum, reciprocal), n - i);
}

// Sum of g, or of g y.
template <bool kProduct>
float gradient_sum(const float* g, const float* y, int64_t n) {
  F s[4] = {simd::broadcast(0.0f), simd::broadcast(0.0f), simd::broadcast(0.0f), simd::broadcast(0.0f)};
  const auto add = [&](F sum, F grad, F result) { return kProduct ? simd::fma(grad, result, sum) : sum + grad; };
  int64_t i = 0;
  for (; i + kStep <= n; i += kStep) {
#pragma GCC unroll 4
    for (int u = 0; u < 4; ++u)
      s[u] = add(s[u], simd::load(g + i + u * simd::kLanes), simd::load(y + i + u * simd::kLanes));
  }
  for (; i + simd::kLanes <= n; i += simd::kLanes) s[0] = add(s[0], simd::load(g + i), simd::load(y + i));
  if (i < n) s[1] = add(s[1], simd::load_first(g + i, n - i), simd::load_first(y + i, n - i));
  return sum_lanes(sum_four(s));
}

void softmax_backward_row(const float* g, const float* y, float* dx, int64_t n, bool log) {
  const F sum = simd::broadcast(sum_chunks(n, [&](int64_t begin, int64_t count) {
    return log ? gradient_sum<false>(g + begin, y + begin, count) : gradient_sum<true>(g + begin, y + begin, count);
  }));
  const auto gradient = [&](F grad, F result) {
    return log ? simd::fnma(simd::exp_flushed(result), sum, grad) : result * (grad - sum);
  };
  int64_t i = 0;
  for (; i + simd::kLanes <= n; i += simd::kLanes) simd::store(dx + i, gradient(simd::load(g + i), simd::load(y + i)));
  if (i < n) simd::store_first(dx + i, gradient(simd::load_first(g + i, n - i), simd::load_first(y + i, n - i)), n - i);
}

void softmax_forward_columns(const float* x, int64_t x_stride, float* y, int64_t y_stride, int64_t n, int64_t columns,
                             bool log) {
  for (int64_t c = 0; c < columns; c += simd::kLanes) {
    const int64_t left = columns - c;
    const bool whole = left >= simd::kLanes;
    const auto load = [&](const float* p) { return whole ? simd::load(p) : simd::load_first(p, left); };
    const auto store = [&](float* p, F v) { whole ? simd::store(p, v) : simd::store_first(p, v, left); };
    F maximum = simd::broadcast(-kInfinity), sum = simd::broadcast(0.0f), rounding = sum;
    for (int64_t i = 0; i < n; ++i) maximum = simd::max(load(x + c + i * x_stride), maximum);
    for (int64_t i = 0; i < n; ++i) {  // Kahan's sum: one lane adds up a whole row
      const F e = simd::exp_flushed(load(x + c + i * x_stride) - maximum), corrected = e - rounding,
              next = sum + corrected;
      if (!log) store(y + c + i * y_stride, e);
      rounding = (next - sum) - corrected;
      sum = next;
    }
    alignas(64) float logs[simd::kLanes];
    simd::store(logs, sum);
    for (float& v : logs) v = __builtin_logf(v);
    const F log_sum = simd::load(logs), reciprocal = simd::broadcast(1.0f) / sum;
    for (int64_t i = 0; i < n; ++i) {
      float* out = y + c + i * y_stride;
      store(out, log ? (load(x + c + i * x_stride) - maximum) - log_sum : divide(load(out), sum, reciprocal));
    }
  }
}

}  // namespace
}  // namespace blutensor
