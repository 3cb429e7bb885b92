// Kernel signatures of softmax and log_softmax and their gradients. softmax.cpp owns the loops over rows and threads.
#pragma once

#include <cstdint>

namespace blutensor {

// A row is the elements along the softmax axis, `stride` apart. The kernels for columns do `columns` neighbouring
// rows at once, whose elements lie side by side (stride >= columns apart along the axis, in both operands).
struct SoftmaxKernels {
  // y = softmax(x), or log_softmax(x), over n contiguous elements.
  void (*forward_row)(const float* x, float* y, int64_t n, bool log) = nullptr;
  void (*forward_columns)(const float* x, int64_t x_stride, float* y, int64_t y_stride, int64_t n, int64_t columns,
                          bool log) = nullptr;
  // dx from the gradient g of the result y: y (g - sum(g y)), or g - exp(y) sum(g) for log_softmax.
  void (*backward_row)(const float* g, const float* y, float* dx, int64_t n, bool log) = nullptr;
};

void use_reference(SoftmaxKernels& kernels);
void use_avx2(SoftmaxKernels& kernels);
void use_avx512(SoftmaxKernels& kernels);

// Any floating dtype, any strides; statistics in float32 (float64 for float64). Instantiated in reference.cpp.
template <class T>
void softmax_forward_reference(const T* x, int64_t x_stride, T* y, int64_t y_stride, int64_t n, bool log);
template <class T>
void softmax_backward_reference(const T* g, int64_t g_stride, const T* y, int64_t y_stride, T* dx, int64_t dx_stride,
                                int64_t n, bool log);

}  // namespace blutensor
