// AdamW, SGD and sum of squares over contiguous float32, for the vectors of the including file.
//
// AdamW reads four arrays and writes three: 28 bytes an element, 14 FLOPs (one square root, two divisions). The
// operations are those of adamw_reference() without contraction, hence the same bits as the reference. The sum of
// squares is exact products added in double, in eight vectors that are added in a fixed order.
// Benchmark: benchmarks/bench_layers.py --only optimizer
#pragma once

#include "ops/optimizer/optimizer_kernels.h"
#include "ops/simd/lanes.h"

namespace blutensor {
namespace {

struct AdamwVectors {
  F grad_scale, decay, beta1_rest, beta2, beta2_rest, bias2_sqrt, eps, step_size;
};

inline void adamw_vector(const AdamwVectors& s, F g, F& p, F& m, F& v) {
  g = g * s.grad_scale;
  m = m + s.beta1_rest * (g - m);
  v = v * s.beta2 + s.beta2_rest * (g * g);
  p = p * s.decay - s.step_size * (m / (simd::sqrt(v) / s.bias2_sqrt + s.eps));
}

inline void adamw(float* param, const float* grad, float* exp_avg, float* exp_avg_sq, int64_t n,
                  const AdamwStep<float>& step) {
  const AdamwVectors s{simd::broadcast(step.grad_scale), simd::broadcast(step.decay),
                       simd::broadcast(step.beta1_rest), simd::broadcast(step.beta2),
                       simd::broadcast(step.beta2_rest), simd::broadcast(step.bias2_sqrt),
                       simd::broadcast(step.eps),        simd::broadcast(step.step_size)};
  int64_t i = 0;
  for (; i + simd::kLanes <= n; i += simd::kLanes) {
    F p = simd::load(param + i), m = simd::load(exp_avg + i), v = simd::load(exp_avg_sq + i);
    adamw_vector(s, simd::load(grad + i), p, m, v);
    simd::store(param + i, p);
    simd::store(exp_avg + i, m);
    simd::store(exp_avg_sq + i, v);
  }
  if (i < n) {
    const int64_t tail = n - i;
    F p = simd::load_first(param + i, tail), m = simd::load_first(exp_avg + i, tail),
      v = simd::load_first(exp_avg_sq + i, tail);
    adamw_vector(s, simd::load_first(grad + i, tail), p, m, v);
    simd::store_first(param + i, p, tail);
    simd::store_first(exp_avg + i, m, tail);
    simd::store_first(exp_avg_sq + i, v, tail);
  }
}

inline void sgd(float* param, const float* grad, float* momentum, int64_t n, const SgdStep<float>& step) {
  const F scale = simd::broadcast(step.grad_scale), decay = simd::broadcast(step.weight_decay),
          mu = simd::broadcast(step.momentum), lr = simd::broadcast(step.lr);
  const auto update = [&](F p, F g, F& m) {
    g = g * scale + decay * p;
    if (momentum) {
      m = mu * m + g;
      g = step.nesterov ? g + mu * m : m;
    }
    return p - lr * g;
  };
  int64_t i = 0;
  for (; i + simd::kLanes <= n; i += simd::kLanes) {
    F m = momentum ? simd::load(momentum + i) : scale;
    simd::store(param + i, update(simd::load(param + i), simd::load(grad + i), m));
    if (momentum) simd::store(momentum + i, m);
  }
  if (i < n) {
    const int64_t tail = n - i;
    F m = momentum ? simd::load_first(momentum + i, tail) : scale;
    simd::store_first(param + i, update(simd::load_first(param + i, tail), simd::load_first(grad + i, tail), m), tail);
    if (momentum) simd::store_first(momentum + i, m, tail);
  }
}

inline double sum_squares(const float* x, int64_t n) {
  D s[8];
  for (D& sum : s) sum = zero_doubles();
  int64_t i = 0;
  for (; i + 4 * simd::kLanes <= n; i += 4 * simd::kLanes)
    for (int u = 0; u < 4; ++u) {
      const F v = simd::load(x + i + u * simd::kLanes);
      const D low = low_doubles(v), high = high_doubles(v);
      s[2 * u] = fma(low, low, s[2 * u]);
      s[2 * u + 1] = fma(high, high, s[2 * u + 1]);
    }
  for (; i < n; i += simd::kLanes) {
    const F v = n - i >= simd::kLanes ? simd::load(x + i) : simd::load_first(x + i, n - i);
    const D low = low_doubles(v), high = high_doubles(v);
    s[0] = fma(low, low, s[0]);
    s[1] = fma(high, high, s[1]);
  }
  return sum_lanes(((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7])));
}

}  // namespace
}  // namespace blutensor
