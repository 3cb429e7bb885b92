// The optimizers over contiguous elements of any floating type. Every operation rounds on its own, so all instruction
// sets give the same bits. Not for files of an instruction set: what a template compiles to there could be linked
// elsewhere.
#pragma once

#include <cmath>

#include "ops/optimizer/optimizer_kernels.h"

namespace blutensor {

// PyTorch's AdamW: decay first, decoupled from the gradient; eps outside the square root.
template <class T>
void adamw_reference(T* param, const T* grad, T* exp_avg, T* exp_avg_sq, int64_t n, const AdamwStep<T>& s) {
  for (int64_t i = 0; i < n; ++i) {
    const T g = grad[i] * s.grad_scale;
    const T m = exp_avg[i] + s.beta1_rest * (g - exp_avg[i]);
    const T v = exp_avg_sq[i] * s.beta2 + s.beta2_rest * (g * g);
    exp_avg[i] = m;
    exp_avg_sq[i] = v;
    param[i] = param[i] * s.decay - s.step_size * (m / (std::sqrt(v) / s.bias2_sqrt + s.eps));
  }
}

// PyTorch's SGD without dampening. momentum may be NULL.
template <class T>
void sgd_reference(T* param, const T* grad, T* momentum, int64_t n, const SgdStep<T>& s) {
  for (int64_t i = 0; i < n; ++i) {
    T g = grad[i] * s.grad_scale + s.weight_decay * param[i];
    if (momentum) {
      momentum[i] = s.momentum * momentum[i] + g;
      g = s.nesterov ? g + s.momentum * momentum[i] : momentum[i];
    }
    param[i] = param[i] - s.lr * g;
  }
}

}  // namespace blutensor
