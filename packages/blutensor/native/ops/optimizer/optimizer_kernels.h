// Kernels of the optimizers: serial, over contiguous elements; the operators cut the work and run the pieces in
// parallel.
#pragma once

#include <cstdint>

namespace blutensor {

// The scalars of one step, computed in double and rounded once to the type of the parameters.
template <class T>
struct AdamwStep {
  T grad_scale, decay, beta1_rest, beta2, beta2_rest, bias2_sqrt, eps, step_size;
};

template <class T>
struct SgdStep {
  T grad_scale, weight_decay, momentum, lr;
  bool nesterov;
};

struct OptimizerKernels {
  void (*adamw_f32)(float* param, const float* grad, float* exp_avg, float* exp_avg_sq, int64_t n,
                    const AdamwStep<float>& step);
  void (*sgd_f32)(float* param, const float* grad, float* momentum, int64_t n,
                  const SgdStep<float>& step);  // momentum may be NULL
  double (*sum_squares_f32)(const float* x, int64_t n);
};

void use_reference(OptimizerKernels& kernels);
void use_avx2(OptimizerKernels& kernels);
void use_avx512(OptimizerKernels& kernels);

}  // namespace blutensor
