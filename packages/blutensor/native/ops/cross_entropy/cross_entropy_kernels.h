// Kernel signatures of cross entropy: one row of logits [V] at a time. cross_entropy.cpp owns the loops over rows and
// threads.
#pragma once

#include <cstdint>

namespace blutensor {

// Of one row: sum = sum of exp(x - maximum); NaN where there is NaN, +inf, or nothing but -inf.
template <class Stat>
struct RowSum {
  Stat maximum;
  double sum;
};

// log(sum(exp(x))) = maximum + log_sum, in two parts: the probabilities exp((x - maximum) - log_sum) lose nothing that
// way.
template <class Stat>
struct LogSumExp {
  Stat maximum;
  Stat log_sum;
};

struct CrossEntropyKernels {
  RowSum<float> (*row_sum)(const float* logits, int64_t n) = nullptr;
  // grad[j] = exp((logits[j] - maximum) - log_sum) * scale - offset
  void (*probabilities)(const float* logits, float* grad, int64_t n, LogSumExp<float> parts, float scale,
                        float offset) = nullptr;
};

void use_reference(CrossEntropyKernels& kernels);
void use_avx2(CrossEntropyKernels& kernels);
void use_avx512(CrossEntropyKernels& kernels);

// Any floating dtype and stride. Instantiated in reference.cpp.
template <class T, class Stat>
RowSum<Stat> row_sum_reference(const T* logits, int64_t stride, int64_t n);
template <class T, class Stat>
void probabilities_reference(const T* logits, int64_t stride, T* grad, int64_t n, LogSumExp<Stat> parts, Stat scale,
                             Stat offset);

}  // namespace blutensor
