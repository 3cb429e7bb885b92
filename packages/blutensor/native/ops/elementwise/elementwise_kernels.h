// Kernels over blocks of elements: contiguous operands of one compute type, or one scalar. Strides, broadcasting and
// conversions are the block loop's business (block_loop.h).
#pragma once

#include <cstdint>
#include <type_traits>

#include "tensor/dtype.h"

namespace blutensor {

enum class UnaryOp : int {
  negative,  // from here on: numbers
  absolute,
  sign,
  square,
  relu,
  floor,  // and the next three: floats in float64, integers are what they were
  ceil,
  trunc,
  round,
  reciprocal,  // from here on: floats
  exp,
  log,
  sqrt,
  rsqrt,
  tanh,
  erf,
  gelu_tanh,
  gelu_erf,
  sigmoid,
  silu,
  sin,  // from here on: in float64, whatever the dtype
  cos,
  tan,
  asin,
  acos,
  atan,
  sinh,
  cosh,
  asinh,
  acosh,
  atanh,
  expm1,
  log1p,
  log2,
  log10,
  bitwise_invert,  // integers and bool
  isnan,           // from here on: bool result
  isfinite,
  isinf,
  signbit,      // floats
  logical_not,  // bool operands
};
inline constexpr int kNumUnaryOps = static_cast<int>(UnaryOp::logical_not) + 1;

enum class BinaryOp : int {
  add,  // from here on: numbers
  subtract,
  multiply,
  maximum,
  minimum,
  power,
  floor_divide,  // and the next: floats in float64
  remainder,
  divide,              // from here on: floats
  gelu_tanh_backward,  // (gradient, x)
  gelu_erf_backward,
  silu_backward,
  atan2,  // from here on: in float64, whatever the dtype
  hypot,
  logaddexp,
  copysign,
  nextafter,    // in the dtype itself
  bitwise_and,  // from here on: integers, and bool for the first three
  bitwise_or,
  bitwise_xor,
  bitwise_left_shift,
  bitwise_right_shift,
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
inline constexpr int kNumBinaryOps = static_cast<int>(BinaryOp::logical_xor) + 1;

constexpr bool has_bool_result(UnaryOp op) { return op >= UnaryOp::isnan; }
constexpr bool has_bool_operands(UnaryOp op) { return op == UnaryOp::logical_not; }
constexpr bool has_bool_result(BinaryOp op) { return op >= BinaryOp::equal; }
constexpr bool has_bool_operands(BinaryOp op) { return op >= BinaryOp::logical_and; }
// Whether floats of every dtype are computed in float64: functions that are not worth kernels of their own.
constexpr bool is_wide(UnaryOp op) {
  return (op >= UnaryOp::floor && op <= UnaryOp::round) || (op >= UnaryOp::sin && op <= UnaryOp::log10) ||
         op == UnaryOp::isinf || op == UnaryOp::signbit;
}
constexpr bool is_wide(BinaryOp op) {
  return op == BinaryOp::floor_divide || op == BinaryOp::remainder ||
         (op >= BinaryOp::atan2 && op <= BinaryOp::copysign);
}

// The dtype in which floats of a dtype are computed on: float32 for the 16-bit ones.
constexpr DType compute_dtype(DType dtype) {
  return dtype == DType::bfloat16 || dtype == DType::float16 ? DType::float32 : dtype;
}
// The dtype in which an operator works on tensors of `dtype`. All integers are computed in 64 bits, whose low bits are
// what the narrower ones wrap to: one instantiation serves them all.
template <class Op>
constexpr DType compute_dtype(Op op, DType dtype) {
  if (has_bool_operands(op)) return DType::boolean;
  if (is_integer(dtype)) return widest_integer(dtype);
  if (is_floating(dtype) && is_wide(op)) return DType::float64;
  if constexpr (std::is_same_v<Op, BinaryOp>)
    if (op == BinaryOp::nextafter) return dtype;
  return compute_dtype(dtype);
}

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
void use_wide(ElementwiseKernels& kernels);  // a part of it: functions computed in float64
void use_avx2(ElementwiseKernels& kernels);
void use_avx512(ElementwiseKernels& kernels);

}  // namespace blutensor
