// The passes of linear_cross_entropy for any floating type: sums in double.
#pragma once

#include <cmath>
#include <limits>

#include "ops/linear_cross_entropy/linear_cross_entropy_kernels.h"

namespace blutensor {

template <class T>
void exponentiate_reference(const LogitBlock<T>& block, T* max, T* sum) {
  constexpr T lowest = -std::numeric_limits<T>::infinity();
  for (int64_t j = 0; j < block.cols; ++j) {
    max[j] = lowest;
    for (int64_t v = 0; v < block.classes; ++v)
      if (block.x[v * block.stride + j] > max[j]) max[j] = block.x[v * block.stride + j];
    const T shift = max[j] == lowest ? T{0} : max[j];
    double total = 0;
    for (int64_t v = 0; v < block.classes; ++v) {
      T& x = block.x[v * block.stride + j];
      x = std::exp(x - shift);
      total += static_cast<double>(x);
    }
    sum[j] = static_cast<T>(total);
  }
}

template <class T>
void scale_reference(const LogitBlock<T>& block, const T* factor) {
  for (int64_t v = 0; v < block.classes; ++v)
    for (int64_t j = 0; j < block.cols; ++j) {
      T& x = block.x[v * block.stride + j];
      x = factor[j] == T{0} ? T{0} : x * factor[j];
    }
}

template <class T>
void store_scaled_reference(T* target, const T* source, int64_t n, T factor, bool accumulate) {
  for (int64_t j = 0; j < n; ++j) target[j] = accumulate ? target[j] + source[j] * factor : source[j] * factor;
}

}  // namespace blutensor
