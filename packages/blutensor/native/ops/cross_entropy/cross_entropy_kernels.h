// Kernel signatures of cross entropy: one row of logits [V] at a time. cross_entropy.cpp owns the loops over rows and threads.
#pragma once

#include <cstdint>

namespace blutensor {

// log(sum(exp(x))) = maximum + log_sum. In two parts, because the loss of a row, (maximum - x[target]) + log_sum, loses nothing that way.
template <class Stat>
struct LogSumExp {
  Stat maximum;
  Stat log_sum;
};

struct CrossEntropyKernels {
  LogSumExp<float> (*log_sum_exp)(const float* logits, int64_t n) = nullptr;
  // grad[j] = exp(logits[j] - logsumexp) * scale
  void (*probabilities)(const float* logits, float* grad, int64_t n, float logsumexp, float scale) = nullptr;
};

void use_reference(CrossEntropyKernels& kernels);
void use_avx2(CrossEntropyKernels& kernels);
void use_avx512(CrossEntropyKernels& kernels);

// Any floating dtype and stride. Instantiated in reference.cpp.
template <class T, class Stat>
LogSumExp<Stat> log_sum_exp_reference(const T* logits, int64_t stride, int64_t n);
template <class T, class Stat>
void probabilities_reference(const T* logits, int64_t stride, T* grad, int64_t n, Stat logsumexp, Stat scale);

}  // namespace blutensor
