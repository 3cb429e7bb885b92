// The passes of linear_cross_entropy for any floating type: sums in double.
#pragma once

#include <cmath>
#include <limits>

#include "ops/linear_cross_entropy/linear_cross_entropy_kernels.h"

namespace blutensor {

template <class T>
ExpSum<T> exponentiate_reference(T* logits, int64_t n) {
  T max = -std::numeric_limits<T>::infinity();
  for (int64_t j = 0; j < n; ++j)
    if (logits[j] > max) max = logits[j];
  const T shift = max == -std::numeric_limits<T>::infinity() ? T{0} : max;
  double sum = 0;
  for (int64_t j = 0; j < n; ++j) {
    logits[j] = std::exp(logits[j] - shift);
    sum += static_cast<double>(logits[j]);
  }
  return {max, static_cast<T>(sum)};
}

template <class T>
void scale_reference(T* x, int64_t n, T factor) {
  for (int64_t j = 0; j < n; ++j) x[j] *= factor;
}

template <class T>
void store_scaled_reference(T* target, const T* source, int64_t n, T factor, bool accumulate) {
  for (int64_t j = 0; j < n; ++j) target[j] = accumulate ? target[j] + source[j] * factor : source[j] * factor;
}

}  // namespace blutensor
