// What layer_norm and rms_norm share: rows of x [M, C] that are scaled to unit variance, or to unit mean square.
//
// rms_norm is layer_norm without the mean: wherever `mean` is undefined (or null), the mean is 0 and bias has no place.
#pragma once

#include "ops/matmul/operand.h"

namespace blutensor {

Shape leading_shape(const Shape& shape, int trailing);
Shape trailing_shape(const Shape& shape, int trailing);

// Number of trailing axes that are normalised, checked against x.
int check_norm_axes(const char* op, const Tensor& x, int64_t num_axes);
// Throws unless `parameter` is missing or has x's dtype and this shape.
void check_norm_parameter(const char* op, const Tensor& parameter, const char* name, const Tensor& x,
                          const Shape& shape);
// Throws unless a gradient buffer of a parameter is missing or floating, of this shape.
void check_norm_target(const char* op, const Tensor& target, const char* name, const Shape& shape);
// The result of an in-place backward operator: the gradient of x, or nothing where `sum` takes it.
std::vector<TensorSpec> norm_gradient_spec(const char* op, const Tensor& x, const Tensor& sum);

struct NormForward {
  View x, weight, bias;  // the last two may be undefined
  View y, mean, rstd;    // mean may be undefined
  double eps;
  int num_axes;
};

struct NormBackward {
  View grad, x, weight, mean, rstd;  // weight and mean may be undefined
  View dx, dweight, dbias;           // the last two may be undefined
  int num_axes;
  bool accumulate_weight, accumulate_bias, accumulate_x;
};

// On the host (norm.cpp) and on CUDA (forward_cuda.cu, backward_cuda.cu).
void norm_forward(const NormForward& operands, Execution& run);
void norm_backward(const NormBackward& operands, Execution& run);
void norm_forward_cuda(const NormForward& operands, const Launch& launch, Execution& run);
void norm_backward_cuda(const NormBackward& operands, const Launch& launch, Execution& run);

// How an operator's operands become these: by layer_norm.cpp and rms_norm.cpp, for both devices.
NormForward layer_norm_operands(const Launch& launch);
NormBackward layer_norm_backward_operands(const Launch& launch);
NormBackward layer_norm_backward_in_place_operands(const Launch& launch);
NormForward rms_norm_operands(const Launch& launch);
NormBackward rms_norm_backward_operands(const Launch& launch);
NormBackward rms_norm_backward_in_place_operands(const Launch& launch);

}  // namespace blutensor
