// Kernel signatures of cross entropy: one row of logits [V] at a time. cross_entropy.cpp owns the loops over rows and
// threads.
#pragma once

#include <cstdint>

namespace blutensor {

// log(sum(exp(x))) = maximum + log_sum, in two parts: the loss (maximum - x[target]) + log_sum and the probabilities
// exp((x - maximum) - log_sum) lose nothing that way.
template <class Stat>
struct LogSumExp {
  Stat maximum;
  Stat log_sum;
};

struct CrossEntropyKernels {
  LogSumExp<float> (*log_sum_exp)(const float* logits, int64_t n) = nullptr;
  // grad[j] = exp((logits[j] - maximum) - log_sum) * scale
  void (*probabilities)(const float* logits, float* grad, int64_t n, LogSumExp<float> parts, float scale) = nullptr;
};

void use_reference(CrossEntropyKernels& kernels);
void use_avx2(CrossEntropyKernels& kernels);
void use_avx512(CrossEntropyKernels& kernels);

// Any floating dtype and stride. Instantiated in reference.cpp.
template <class T, class Stat>
LogSumExp<Stat> log_sum_exp_reference(const T* logits, int64_t stride, int64_t n);
template <class T, class Stat>
void probabilities_reference(const T* logits, int64_t stride, T* grad, int64_t n, LogSumExp<Stat> parts, Stat scale);

}  // namespace blutensor
