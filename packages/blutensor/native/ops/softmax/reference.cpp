// Softmax and log_softmax of one row in plain C++, any floating dtype and stride.
//
// Forward: maximum, sum of exp(x - maximum), result. Sums are float64 and every result is rounded once.
#include <cmath>
#include <limits>

#include "ops/softmax/softmax_kernels.h"
#include "tensor/dtype.h"

namespace blutensor {

template <class T>
void softmax_forward_reference(const T* x, int64_t x_stride, T* y, int64_t y_stride, int64_t n, bool log) {
  using C = compute_t<T>;
  C maximum = -std::numeric_limits<C>::infinity();
  for (int64_t i = 0; i < n; ++i) {
    const C v = static_cast<C>(x[i * x_stride]);
    if (v > maximum) maximum = v;
  }
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(std::exp(static_cast<C>(x[i * x_stride]) - maximum));
  const double log_sum = std::log(sum);
  for (int64_t i = 0; i < n; ++i) {
    const C shifted = static_cast<C>(x[i * x_stride]) - maximum;
    y[i * y_stride] = static_cast<T>(
        static_cast<C>(log ? static_cast<double>(shifted) - log_sum : static_cast<double>(std::exp(shifted)) / sum));
  }
}

template <class T>
void softmax_backward_reference(const T* g, int64_t g_stride, const T* y, int64_t y_stride, T* dx, int64_t dx_stride,
                                int64_t n, bool log) {
  using C = compute_t<T>;
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double grad = static_cast<double>(static_cast<C>(g[i * g_stride]));
    sum += log ? grad : grad * static_cast<double>(static_cast<C>(y[i * y_stride]));
  }
  for (int64_t i = 0; i < n; ++i) {
    const double grad = static_cast<double>(static_cast<C>(g[i * g_stride])),
                 result = static_cast<double>(static_cast<C>(y[i * y_stride]));
    dx[i * dx_stride] = static_cast<T>(static_cast<C>(log ? grad - std::exp(result) * sum : result * (grad - sum)));
  }
}

template void softmax_forward_reference(const float*, int64_t, float*, int64_t, int64_t, bool);
template void softmax_forward_reference(const double*, int64_t, double*, int64_t, int64_t, bool);
template void softmax_forward_reference(const bfloat16*, int64_t, bfloat16*, int64_t, int64_t, bool);
template void softmax_forward_reference(const float16*, int64_t, float16*, int64_t, int64_t, bool);
template void softmax_backward_reference(const float*, int64_t, const float*, int64_t, float*, int64_t, int64_t, bool);
template void softmax_backward_reference(const double*, int64_t, const double*, int64_t, double*, int64_t, int64_t,
                                         bool);
template void softmax_backward_reference(const bfloat16*, int64_t, const bfloat16*, int64_t, bfloat16*, int64_t,
                                         int64_t, bool);
template void softmax_backward_reference(const float16*, int64_t, const float16*, int64_t, float16*, int64_t, int64_t,
                                         bool);

void use_reference(SoftmaxKernels& kernels) {
  kernels.forward_row = [](const float* x, float* y, int64_t n, bool log) {
    softmax_forward_reference(x, 1, y, 1, n, log);
  };
  kernels.forward_columns = [](const float* x, int64_t x_stride, float* y, int64_t y_stride, int64_t n, int64_t columns,
                               bool log) {
    for (int64_t c = 0; c < columns; ++c) softmax_forward_reference(x + c, x_stride, y + c, y_stride, n, log);
  };
  kernels.backward_row = [](const float* g, const float* y, float* dx, int64_t n, bool log) {
    softmax_backward_reference(g, 1, y, 1, dx, 1, n, log);
  };
}

}  // namespace blutensor
