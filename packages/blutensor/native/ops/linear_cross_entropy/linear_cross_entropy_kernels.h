// Kernels of linear_cross_entropy: over one row of a block of logits.
#pragma once

#include <cstdint>

namespace blutensor {

// Largest logit of a row's block, and the sum of exp(logit - max). A block of -inf alone: max -inf, sum 0.
template <class T>
struct ExpSum {
  T max, sum;
};

struct LinearCrossEntropyKernels {
  // Replaces n logits by exp(logit - max).
  ExpSum<float> (*exponentiate_f32)(float* logits, int64_t n);
  void (*scale_f32)(float* x, int64_t n, float factor);
  // target = source * factor, or target += source * factor. factor 1 copies.
  void (*store_scaled_f32)(float* target, const float* source, int64_t n, float factor, bool accumulate);
};

void use_reference(LinearCrossEntropyKernels& kernels);
void use_avx2(LinearCrossEntropyKernels& kernels);
void use_avx512(LinearCrossEntropyKernels& kernels);

}  // namespace blutensor
