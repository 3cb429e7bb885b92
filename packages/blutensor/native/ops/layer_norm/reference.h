// layer_norm and rms_norm over contiguous rows, any floating dtype: sums in double, the rest in the compute type of T.
#pragma once

#include <cmath>
#include <cstdint>

#include "tensor/dtype.h"

namespace blutensor {

// Statistics are in compute_t<T>: float32, or float64 for float64. weight and bias may be NULL, and mean: rms_norm,
// with a mean of 0.
template <class T>
void layer_norm_forward_reference(const T* x, int64_t x_stride, const T* weight, const T* bias, double eps,
                                  int64_t rows, int64_t cols, T* y, compute_t<T>* mean, compute_t<T>* rstd) {
  using C = compute_t<T>;
  for (int64_t r = 0; r < rows; ++r, x += x_stride, y += cols) {
    double sum = 0, squares = 0;
    for (int64_t j = 0; mean && j < cols; ++j) sum += static_cast<double>(static_cast<C>(x[j]));
    const double m = sum / static_cast<double>(cols);
    for (int64_t j = 0; j < cols; ++j) {
      const double d = static_cast<double>(static_cast<C>(x[j])) - (mean ? m : 0.0);
      squares += d * d;
    }
    const C centre = static_cast<C>(mean ? m : 0.0);
    if (mean) mean[r] = centre;
    rstd[r] = static_cast<C>(1 / std::sqrt(squares / static_cast<double>(cols) + eps));
    for (int64_t j = 0; j < cols; ++j) {
      const C xhat = (static_cast<C>(x[j]) - centre) * rstd[r];
      const C v = xhat * (weight ? static_cast<C>(weight[j]) : C{1});
      y[j] = static_cast<T>(mean ? v + (bias ? static_cast<C>(bias[j]) : C{0}) : v);
    }
  }
}

template <class T>
void layer_norm_backward_reference(const T* dy, int64_t dy_stride, const T* x, int64_t x_stride, const T* weight,
                                   const compute_t<T>* mean, const compute_t<T>* rstd, int64_t rows, int64_t cols,
                                   T* dx, compute_t<T>* dweight, compute_t<T>* dbias) {
  using C = compute_t<T>;
  for (int64_t j = 0; j < cols; ++j) dweight[j] = dbias[j] = 0;
  for (int64_t r = 0; r < rows; ++r, x += x_stride, dy += dy_stride, dx += cols) {
    double sum = 0, product = 0;
    const C centre = mean ? mean[r] : C{0};
    const auto at = [&](int64_t j, C* xhat, C* g) {
      *xhat = (static_cast<C>(x[j]) - centre) * rstd[r];
      *g = static_cast<C>(dy[j]) * (weight ? static_cast<C>(weight[j]) : C{1});
    };
    C xhat, g;
    for (int64_t j = 0; j < cols; ++j) {
      at(j, &xhat, &g);
      sum += static_cast<double>(g);
      product += static_cast<double>(g) * static_cast<double>(xhat);
      dweight[j] += static_cast<C>(dy[j]) * xhat;
      dbias[j] += static_cast<C>(dy[j]);
    }
    const C mean_g = mean ? static_cast<C>(sum / static_cast<double>(cols)) : C{0},
            mean_product = static_cast<C>(product / static_cast<double>(cols));
    for (int64_t j = 0; j < cols; ++j) {
      at(j, &xhat, &g);
      dx[j] = static_cast<T>(rstd[r] * (g - mean_g - xhat * mean_product));
    }
  }
}

}  // namespace blutensor
