// Kernels that fold blocks of elements. Sums of float32 accumulate in float64 over a fixed set of lanes: the result
// is the exact sum but for float64 rounding, and depends on the order of elements alone.
#pragma once

#include <cstdint>

namespace blutensor {

struct ReduceKernels {
  // Sum of n contiguous elements.
  double (*sum_f32)(int64_t n, const float* x) = nullptr;
  // sums[c] += sum over rows of x[r * row_stride + c], 0 <= c < num_columns.
  void (*add_columns_f32)(int64_t num_rows, int64_t num_columns, const float* x, int64_t row_stride,
                          double* sums) = nullptr;
  // Largest (smallest) of n >= 1 contiguous elements; the first NaN if there is one.
  float (*max_f32)(int64_t n, const float* x) = nullptr;
  float (*min_f32)(int64_t n, const float* x) = nullptr;
};

void use_reference(ReduceKernels& kernels);
void use_avx2(ReduceKernels& kernels);
void use_avx512(ReduceKernels& kernels);

}  // namespace blutensor
