// Kernels of layer_norm and rms_norm: serial, over a block of rows; the operator cuts the rows and runs the blocks in parallel.
#pragma once

#include <cstdint>

namespace blutensor {

// Rows are contiguous; x_stride and dy_stride are the distances between rows, in elements. weight and bias: [cols] or
// NULL. Where mean is NULL it is rms_norm: a mean of 0, no bias, and dbias is left at 0.
struct LayerNormForward {
  const float* x;
  int64_t x_stride;
  const float* weight;
  const float* bias;
  float eps;
  int64_t rows, cols;
  float* y;     // [rows, cols]
  float* mean;  // [rows] or NULL
  float* rstd;  // [rows]
};

struct LayerNormBackward {
  const float* dy;
  int64_t dy_stride;
  const float* x;
  int64_t x_stride;
  const float* weight;
  const float* mean;  // [rows] or NULL
  const float* rstd;
  int64_t rows, cols;
  float* dx;       // [rows, cols]
  float* dweight;  // [cols], overwritten with the sum over these rows
  float* dbias;    // [cols], likewise
};

struct LayerNormKernels {
  void (*forward_f32)(const LayerNormForward&);
  void (*backward_f32)(const LayerNormBackward&);
};

void use_reference(LayerNormKernels& kernels);
void use_avx2(LayerNormKernels& kernels);
void use_avx512(LayerNormKernels& kernels);

}  // namespace blutensor
