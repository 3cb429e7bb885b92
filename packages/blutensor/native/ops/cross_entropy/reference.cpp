// Rows of cross entropy in plain C++, any floating dtype and stride. Sums are float64.
#include <cmath>
#include <limits>

#include "ops/cross_entropy/cross_entropy_kernels.h"
#include "tensor/dtype.h"

namespace blutensor {

template <class T, class Stat>
RowSum<Stat> row_sum_reference(const T* logits, int64_t stride, int64_t n) {
  Stat maximum = -std::numeric_limits<Stat>::infinity();
  for (int64_t j = 0; j < n; ++j) {
    const Stat x = static_cast<Stat>(logits[j * stride]);
    if (x > maximum) maximum = x;
  }
  double sum = 0;
  for (int64_t j = 0; j < n; ++j) sum += static_cast<double>(std::exp(static_cast<Stat>(logits[j * stride]) - maximum));
  return {maximum, sum};
}

template <class T, class Stat>
void probabilities_reference(const T* logits, int64_t stride, T* grad, int64_t n, LogSumExp<Stat> parts, Stat scale,
                             Stat offset) {
  for (int64_t j = 0; j < n; ++j) {
    const Stat shifted = static_cast<Stat>(logits[j * stride]) - parts.maximum;
    grad[j] = static_cast<T>(std::exp(shifted - parts.log_sum) * scale - offset);
  }
}

template RowSum<float> row_sum_reference(const float*, int64_t, int64_t);
template RowSum<double> row_sum_reference(const double*, int64_t, int64_t);
template RowSum<float> row_sum_reference(const bfloat16*, int64_t, int64_t);
template RowSum<float> row_sum_reference(const float16*, int64_t, int64_t);
template void probabilities_reference(const float*, int64_t, float*, int64_t, LogSumExp<float>, float, float);
template void probabilities_reference(const double*, int64_t, double*, int64_t, LogSumExp<double>, double, double);
template void probabilities_reference(const bfloat16*, int64_t, bfloat16*, int64_t, LogSumExp<float>, float, float);
template void probabilities_reference(const float16*, int64_t, float16*, int64_t, LogSumExp<float>, float, float);

void use_reference(CrossEntropyKernels& kernels) {
  kernels.row_sum = [](const float* logits, int64_t n) { return row_sum_reference<float, float>(logits, 1, n); };
  kernels.probabilities = [](const float* logits, float* grad, int64_t n, LogSumExp<float> parts, float scale,
                             float offset) { probabilities_reference(logits, 1, grad, n, parts, scale, offset); };
}

}  // namespace blutensor
