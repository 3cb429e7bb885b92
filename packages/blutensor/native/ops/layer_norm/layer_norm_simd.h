// layer_norm and rms_norm over contiguous rows, float32, for the vectors of the including file.
//
// Forward, per row of x [cols]: mean = sum x / cols; d = x - mean; the rounding error of the mean is sum d / cols,
// which corrects both the mean and the variance (sum d^2 - (sum d)^2 / cols) / cols; y = (x - mean) rstd w + b. Three
// passes over a row that stays in L1.
// Backward: g = dy w, xhat = (x - mean) rstd; dx = rstd (g - sum g / cols - xhat sum(g xhat) / cols); dweight += dy
// xhat, dbias += dy in the pass that takes the two sums.
// rms_norm is the same with a mean of 0 that nothing corrects, and neither bias nor dbias.
// Bytes per element: forward 8, backward 12 (and the row's 8 again from L1). FLOPs: 9 forward, 14 backward.
// Sums run in four vectors of float32 lanes that are added in a fixed order, so bits depend on cols and the instruction
// set alone.
// Benchmark: benchmarks/bench_layers.py --only layer_norm
#pragma once

#include "ops/layer_norm/layer_norm_kernels.h"
#include "ops/simd/lanes.h"

namespace blutensor {
namespace {

// Rows to prefetch ahead (1024 x 384 from beyond L2, forward and backward: 0.52 ms without, 0.48 with 4).
constexpr int64_t kRowsAhead = 4;

inline float sum_four(const F (&s)[4]) { return sum_lanes((s[0] + s[1]) + (s[2] + s[3])); }

inline float reciprocal_sqrt(float v) { return 1.0F / square_root(v); }

inline float row_sum(const float* x, int64_t cols) {
  F s[4] = {simd::broadcast(0.0F), simd::broadcast(0.0F), simd::broadcast(0.0F), simd::broadcast(0.0F)};
  int64_t j = 0;
  for (; j + 4 * simd::kLanes <= cols; j += 4 * simd::kLanes)
    for (int u = 0; u < 4; ++u) s[u] += simd::load(x + j + u * simd::kLanes);
  for (int u = 0; j + simd::kLanes <= cols; j += simd::kLanes, ++u) s[u] += simd::load(x + j);
  if (j < cols) s[3] += simd::load_first(x + j, cols - j);
  return sum_four(s);
}

// Sums of x - mean and of its square.
inline void row_deviation(const float* x, int64_t cols, float mean, float* sum, float* squares) {
  const F m = simd::broadcast(mean);
  F s[4] = {simd::broadcast(0.0F), simd::broadcast(0.0F), simd::broadcast(0.0F), simd::broadcast(0.0F)},
    q[4] = {simd::broadcast(0.0F), simd::broadcast(0.0F), simd::broadcast(0.0F), simd::broadcast(0.0F)};
  int64_t j = 0;
  for (; j + 4 * simd::kLanes <= cols; j += 4 * simd::kLanes)
    for (int u = 0; u < 4; ++u) {
      const F d = simd::load(x + j + u * simd::kLanes) - m;
      s[u] += d;
      q[u] = simd::fma(d, d, q[u]);
    }
  for (int u = 0; j + simd::kLanes <= cols; j += simd::kLanes, ++u) {
    const F d = simd::load(x + j) - m;
    s[u] += d;
    q[u] = simd::fma(d, d, q[u]);
  }
  if (j < cols) {
    const F d = keep_first(simd::load_first(x + j, cols - j) - m, cols - j);
    s[3] += d;
    q[3] = simd::fma(d, d, q[3]);
  }
  *sum = sum_four(s);
  *squares = sum_four(q);
}

// The lines of the row that follows in the same place; a row's arithmetic is too long for the processor to reach them
// by itself.
inline void prefetch_row(const float* row, int64_t cols) {
  for (int64_t j = 0; j < cols; j += 16) __builtin_prefetch(row + j);
}

template <bool kCentred>
void forward_rows_of(const LayerNormForward& a) {
  const float count = static_cast<float>(a.cols);
  for (int64_t r = 0; r < a.rows; ++r) {
    const float* x = a.x + r * a.x_stride;
    float* y = a.y + r * a.cols;
    prefetch_row(x + kRowsAhead * a.x_stride, a.cols);
    prefetch_row(y + kRowsAhead * a.cols, a.cols);
    float mean = kCentred ? row_sum(x, a.cols) / count : 0.0F, sum = 0, squares = 0;
    row_deviation(x, a.cols, mean, &sum, &squares);
    const float correction = kCentred ? sum / count : 0.0F;
    mean += correction;
    const float variance = (kCentred ? squares - sum * correction : squares) / count;
    // Not std::max: NaN stays NaN.
    const float rstd = reciprocal_sqrt((variance < 0 ? 0.0F : variance) + a.eps);
    if (kCentred) a.mean[r] = mean;
    a.rstd[r] = rstd;
    const F m = simd::broadcast(mean), s = simd::broadcast(rstd), zero = simd::broadcast(0.0F),
            one = simd::broadcast(1.0F);
    int64_t j = 0;
    for (; j + simd::kLanes <= a.cols; j += simd::kLanes) {
      const F xhat = (simd::load(x + j) - m) * s;
      const F w = a.weight ? simd::load(a.weight + j) : one;
      simd::store(y + j, kCentred ? simd::fma(xhat, w, a.bias ? simd::load(a.bias + j) : zero) : xhat * w);
    }
    if (j < a.cols) {
      const int64_t tail = a.cols - j;
      const F xhat = (simd::load_first(x + j, tail) - m) * s;
      const F w = a.weight ? simd::load_first(a.weight + j, tail) : one;
      const F v = kCentred ? simd::fma(xhat, w, a.bias ? simd::load_first(a.bias + j, tail) : zero) : xhat * w;
      simd::store_first(y + j, v, tail);
    }
  }
}

inline void forward_rows(const LayerNormForward& a) { a.mean ? forward_rows_of<true>(a) : forward_rows_of<false>(a); }

template <bool kCentred>
void backward_rows_of(const LayerNormBackward& a) {
  for (int64_t j = 0; j < a.cols; ++j) a.dweight[j] = a.dbias[j] = 0;
  const float count = static_cast<float>(a.cols);
  const F one = simd::broadcast(1.0F);
  for (int64_t r = 0; r < a.rows; ++r) {
    const float *x = a.x + r * a.x_stride, *dy = a.dy + r * a.dy_stride;
    float* dx = a.dx + r * a.cols;
    prefetch_row(x + kRowsAhead * a.x_stride, a.cols);
    prefetch_row(dy + kRowsAhead * a.dy_stride, a.cols);
    prefetch_row(dx + kRowsAhead * a.cols, a.cols);
    const F m = simd::broadcast(kCentred ? a.mean[r] : 0.0F), s = simd::broadcast(a.rstd[r]);
    F sums[4] = {simd::broadcast(0.0F), simd::broadcast(0.0F), simd::broadcast(0.0F), simd::broadcast(0.0F)},
      products[4] = {simd::broadcast(0.0F), simd::broadcast(0.0F), simd::broadcast(0.0F), simd::broadcast(0.0F)};
    const auto step = [&](int64_t j, int u) {
      const F d = simd::load(dy + j), xhat = (simd::load(x + j) - m) * s,
              g = d * (a.weight ? simd::load(a.weight + j) : one);
      simd::store(a.dweight + j, simd::fma(d, xhat, simd::load(a.dweight + j)));
      if (kCentred) simd::store(a.dbias + j, d + simd::load(a.dbias + j));
      sums[u] += g;
      products[u] = simd::fma(g, xhat, products[u]);
    };
    int64_t j = 0;
    for (; j + 4 * simd::kLanes <= a.cols; j += 4 * simd::kLanes)
      for (int u = 0; u < 4; ++u) step(j + u * simd::kLanes, u);
    for (int u = 0; j + simd::kLanes <= a.cols; j += simd::kLanes, ++u) step(j, u);
    const int64_t tail = a.cols - j;
    if (tail) {
      const F d = simd::load_first(dy + j, tail), g = d * (a.weight ? simd::load_first(a.weight + j, tail) : one);
      const F xhat = keep_first((simd::load_first(x + j, tail) - m) * s, tail);
      simd::store_first(a.dweight + j, simd::fma(d, xhat, simd::load_first(a.dweight + j, tail)), tail);
      if (kCentred) simd::store_first(a.dbias + j, d + simd::load_first(a.dbias + j, tail), tail);
      sums[3] += g;
      products[3] = simd::fma(g, xhat, products[3]);
    }
    const F mean_g = simd::broadcast(kCentred ? sum_four(sums) / count : 0.0F),
            mean_product = simd::broadcast(sum_four(products) / count);
    for (j = 0; j + simd::kLanes <= a.cols; j += simd::kLanes) {
      const F xhat = (simd::load(x + j) - m) * s, g = simd::load(dy + j) * (a.weight ? simd::load(a.weight + j) : one);
      simd::store(dx + j, s * (g - mean_g - xhat * mean_product));
    }
    if (tail) {
      const F xhat = (simd::load_first(x + j, tail) - m) * s,
              g = simd::load_first(dy + j, tail) * (a.weight ? simd::load_first(a.weight + j, tail) : one);
      simd::store_first(dx + j, s * (g - mean_g - xhat * mean_product), tail);
    }
  }
}

inline void backward_rows(const LayerNormBackward& a) {
  a.mean ? backward_rows_of<true>(a) : backward_rows_of<false>(a);
}

}  // namespace
}  // namespace blutensor
