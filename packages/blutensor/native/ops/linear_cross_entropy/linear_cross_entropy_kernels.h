// Kernels of linear_cross_entropy: over a block of logits that stays in cache.
#pragma once

#include <cstdint>

namespace blutensor {

// Logits of `classes` classes (rows) for `cols` tokens (columns), `stride` elements from class to class.
template <class T>
struct LogitBlock {
  T* x;
  int64_t stride, classes, cols;
};

struct LinearCrossEntropyKernels {
  // Per token: the largest logit and the sum of exp(logit - max); replaces logits by exp(logit - max). Where all are
  // -inf: max -inf, sum 0.
  void (*exponentiate_f32)(const LogitBlock<float>& block, float* max, float* sum);
  // Multiplies by factor[token]; what has factor 0 becomes 0, NaN too.
  void (*scale_f32)(const LogitBlock<float>& block, const float* factor);
  // target = source * factor, or target += source * factor.
  void (*store_scaled_f32)(float* target, const float* source, int64_t n, float factor, bool accumulate);
};

void use_reference(LinearCrossEntropyKernels& kernels);
void use_avx2(LinearCrossEntropyKernels& kernels);
void use_avx512(LinearCrossEntropyKernels& kernels);

}  // namespace blutensor
