// Kernels over blocks of elements: contiguous operands of one compute type, or one scalar. Strides, broadcasting and
// conversions are the block loop's business (block_loop.h).
#pragma once

#include <cstdint>

#include "tensor/dtype.h"

namespace blutensor {

enum class UnaryOp : int {
  negative,
  absolute,
  sign,
  square,
  reciprocal,
  exp,
  log,
  sqrt,
  rsqrt,
  tanh,
  erf,
  gelu_tanh,
  gelu_erf,
  isnan,        // bool result
  isfinite,     // bool result
  logical_not,  // bool operands and result
};
inline constexpr int kNumUnaryOps = 16;

enum class BinaryOp : int {
  add,
  subtract,
  multiply,
  divide,
  maximum,
  minimum,
  power,
  gelu_tanh_backward,  // (gradient, x)
  gelu_erf_backward,
  equal,  // from here on: bool result
  not_equal,
  less,
  less_equal,
  greater,
  greater_equal,
  logical_and,  // bool operands
  logical_or,
  logical_xor,
};
inline constexpr int kNumBinaryOps = 18;

// Which operand of a binary kernel is one element for the whole block.
enum class Scalar : int { none, first, second };

using UnaryKernel = void (*)(int64_t n, void* out, const void* a);
using BinaryKernel = void (*)(int64_t n, void* out, const void* a, const void* b, Scalar scalar);
using WhereKernel = void (*)(int64_t n, void* out, const void* condition, const void* a, const void* b);

// [operator][compute dtype]; nullptr where the operator is not defined for the dtype. Results: of the compute dtype,
// or bool. `out` may be one of the operands.
struct ElementwiseKernels {
  UnaryKernel unary[kNumUnaryOps][kNumDTypes] = {};
  BinaryKernel binary[kNumBinaryOps][kNumDTypes] = {};
  WhereKernel where[kNumDTypes] = {};
};

void use_reference(ElementwiseKernels& kernels);
void use_avx2(ElementwiseKernels& kernels);
void use_avx512(ElementwiseKernels& kernels);

}  // namespace blutensor
