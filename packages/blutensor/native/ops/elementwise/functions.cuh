// The elementwise operators of floats on one element, by compute type: float or double. Those of integers stand in
// integer_cuda.cu, those that are computed in double alone in wide_cuda.cu.
#pragma once

#include <cstdint>
#include <type_traits>

#include "ops/cuda/math.cuh"
#include "ops/elementwise/elementwise_kernels.h"

namespace blutensor::cuda {

__device__ inline double gelu_tanh_f64(double x) {
  const double u = 0.79788456080286535588 * (x + 0.044715 * x * x * x);
  return x / (1 + exp(-2 * u));
}
__device__ inline double gelu_tanh_gradient_f64(double x) {
  x = x > 30 ? 30 : x < -30 ? -30 : x;
  const double slope = 0.79788456080286535588;
  const double s = 1 / (1 + exp(-2 * slope * (x + 0.044715 * x * x * x)));
  return s + x * s * (1 - s) * 2 * slope * (1 + 3 * 0.044715 * x * x);
}
__device__ inline double gelu_erf_f64(double x) { return x * 0.5 * erfc(-x * 0.70710678118654752440); }
__device__ inline double gelu_erf_gradient_f64(double x) {
  x = x > 40 ? 40 : x < -40 ? -40 : x;
  return 0.5 * erfc(-x * 0.70710678118654752440) + x * exp(x * x * -0.5) * 0.39894228040143267794;
}

// Beyond 1000 e^-x is infinite or 0: infinities give the limits; NaN passes.
template <class C>
__device__ inline C bounded(C x) {
  return x > C(1000) ? C(1000) : x < C(-1000) ? C(-1000) : x;
}
template <class C>
__device__ inline C sigmoid(C x) {
  if constexpr (std::is_same_v<C, float>)
    return __fdiv_rn(1.0f, __fadd_rn(1.0f, exp_f32(-x)));
  else
    return 1 / (1 + exp(-x));
}
template <class C>
__device__ inline C silu(C x) {
  const C above = x < C(-1000) ? C(-1000) : x;
  if constexpr (std::is_same_v<C, float>)
    return __fdiv_rn(above, __fadd_rn(1.0f, exp_f32(-x)));
  else
    return above / (1 + exp(-x));
}
template <class C>
__device__ inline C silu_gradient(C x) {
  x = bounded(x);
  const C s = sigmoid(x);
  if constexpr (std::is_same_v<C, float>)
    return __fmul_rn(s, __fadd_rn(1.0f, __fmul_rn(x, __fsub_rn(1.0f, s))));
  else
    return s * (1 + x * (1 - s));
}

// Results of operators that answer with bool are 0 or 1. `fast`: the result is rounded to a 16-bit float.
template <UnaryOp op, bool fast, class C>
__device__ inline C apply_unary(C a) {
  constexpr bool single = std::is_same_v<C, float>;
  if constexpr (op == UnaryOp::isnan) return a != a ? C(1) : C(0);
  if constexpr (op == UnaryOp::logical_not) return a != C(0) ? C(0) : C(1);
  if constexpr (op == UnaryOp::sign) return a > C(0) ? C(1) : a < C(0) ? C(-1) : a;
  if constexpr (op == UnaryOp::isfinite) return a - a == C(0) ? C(1) : C(0);
  if constexpr (op == UnaryOp::negative) return -a;
  if constexpr (op == UnaryOp::square) return a * a;
  if constexpr (op == UnaryOp::reciprocal) return C(1) / a;
  if constexpr (op == UnaryOp::relu) return a < C(0) ? C(0) : a;
  if constexpr (op == UnaryOp::sigmoid) return sigmoid(a);
  if constexpr (op == UnaryOp::silu) return silu(a);
  if constexpr (single) {
    if constexpr (op == UnaryOp::absolute) return fabsf(a);
    if constexpr (op == UnaryOp::exp) return exp_f32(a);
    if constexpr (op == UnaryOp::log) return log_f32(a);
    if constexpr (op == UnaryOp::sqrt) return __fsqrt_rn(a);
    if constexpr (op == UnaryOp::rsqrt) return __fdiv_rn(1.0f, __fsqrt_rn(a));
    if constexpr (op == UnaryOp::tanh) return tanh_f32(a);
    if constexpr (op == UnaryOp::erf) return erf_f32(a);
    if constexpr (op == UnaryOp::gelu_tanh) return fast ? gelu_tanh_fast(a) : gelu_tanh_f32(a);
    if constexpr (op == UnaryOp::gelu_erf) return fast ? gelu_erf_fast(a) : gelu_erf_f32(a);
  } else {
    if constexpr (op == UnaryOp::absolute) return fabs(a);
    if constexpr (op == UnaryOp::exp) return exp(a);
    if constexpr (op == UnaryOp::log) return log(a);
    if constexpr (op == UnaryOp::sqrt) return sqrt(a);
    if constexpr (op == UnaryOp::rsqrt) return 1.0 / sqrt(a);
    if constexpr (op == UnaryOp::tanh) return tanh(a);
    if constexpr (op == UnaryOp::erf) return erf(a);
    if constexpr (op == UnaryOp::gelu_tanh) return gelu_tanh_f64(a);
    if constexpr (op == UnaryOp::gelu_erf) return gelu_erf_f64(a);
  }
  return a;  // inference has refused what is not defined
}

// Exponents that are one multiplication or division give what the general form gives, rounded.
template <class C>
__device__ inline C power(C base, C exponent) {
  if (exponent == C(2)) return base * base;
  if (exponent == C(-1)) return C(1) / base;
  return static_cast<C>(pow(static_cast<double>(base), static_cast<double>(exponent)));
}

template <BinaryOp op, bool fast, class C>
__device__ inline C apply_binary(C a, C b) {
  constexpr bool single = std::is_same_v<C, float>;
  if constexpr (op == BinaryOp::equal) return a == b ? C(1) : C(0);
  if constexpr (op == BinaryOp::not_equal) return a != b ? C(1) : C(0);
  if constexpr (op == BinaryOp::less) return a < b ? C(1) : C(0);
  if constexpr (op == BinaryOp::less_equal) return a <= b ? C(1) : C(0);
  if constexpr (op == BinaryOp::greater) return a > b ? C(1) : C(0);
  if constexpr (op == BinaryOp::greater_equal) return a >= b ? C(1) : C(0);
  if constexpr (op == BinaryOp::logical_and) return a != C(0) && b != C(0) ? C(1) : C(0);
  if constexpr (op == BinaryOp::logical_or) return a != C(0) || b != C(0) ? C(1) : C(0);
  if constexpr (op == BinaryOp::logical_xor) return (a != C(0)) != (b != C(0)) ? C(1) : C(0);
  if constexpr (op == BinaryOp::maximum) return a != a || a > b ? a : b;  // the first NaN wins
  if constexpr (op == BinaryOp::minimum) return a != a || a < b ? a : b;
  if constexpr (op == BinaryOp::add) return a + b;
  if constexpr (op == BinaryOp::subtract) return a - b;
  if constexpr (op == BinaryOp::multiply) return a * b;
  if constexpr (op == BinaryOp::divide) return a / b;
  if constexpr (op == BinaryOp::power) return power(a, b);
  if constexpr (op == BinaryOp::silu_backward) return a * silu_gradient(b);
  if constexpr (op == BinaryOp::gelu_tanh_backward) {
    if constexpr (single)
      return __fmul_rn(a, fast ? gelu_tanh_gradient_fast(b) : gelu_tanh_gradient_f32(b));
    else
      return a * gelu_tanh_gradient_f64(b);
  }
  if constexpr (op == BinaryOp::gelu_erf_backward) {
    if constexpr (single)
      return __fmul_rn(a, fast ? gelu_erf_gradient_fast(b) : gelu_erf_gradient_f32(b));
    else
      return a * gelu_erf_gradient_f64(b);
  }
  return a;  // inference has refused what is not defined
}

// ---------------------------------------------------------------- functors of the map kernels (map.cuh)

template <UnaryOp op>
struct Unary {
  template <bool fast, int N, class C>
  __device__ void apply(C* out, const C* a) const {
#pragma unroll
    for (int i = 0; i < N; ++i) out[i] = apply_unary<op, fast>(a[i]);
  }
};
template <BinaryOp op>
struct Binary {
  template <bool fast, int N, class C>
  __device__ void apply(C* out, const C* a, const C* b) const {
#pragma unroll
    for (int i = 0; i < N; ++i) out[i] = apply_binary<op, fast>(a[i], b[i]);
  }
};

// The operator is an argument of the kernel: one kernel for all that are not worth their own.
struct AnyUnary {
  UnaryOp op;
  template <bool fast, int N, class C>
  __device__ void apply(C* out, const C* a) const {
    using enum UnaryOp;
    switch (op) {
      case negative:
        return Unary<negative>{}.template apply<fast, N>(out, a);
      case absolute:
        return Unary<absolute>{}.template apply<fast, N>(out, a);
      case sign:
        return Unary<sign>{}.template apply<fast, N>(out, a);
      case square:
        return Unary<square>{}.template apply<fast, N>(out, a);
      case reciprocal:
        return Unary<reciprocal>{}.template apply<fast, N>(out, a);
      case exp:
        return Unary<exp>{}.template apply<fast, N>(out, a);
      case log:
        return Unary<log>{}.template apply<fast, N>(out, a);
      case sqrt:
        return Unary<sqrt>{}.template apply<fast, N>(out, a);
      case rsqrt:
        return Unary<rsqrt>{}.template apply<fast, N>(out, a);
      case tanh:
        return Unary<tanh>{}.template apply<fast, N>(out, a);
      case erf:
        return Unary<erf>{}.template apply<fast, N>(out, a);
      case UnaryOp::gelu_tanh:
        return Unary<UnaryOp::gelu_tanh>{}.template apply<fast, N>(out, a);
      case UnaryOp::gelu_erf:
        return Unary<UnaryOp::gelu_erf>{}.template apply<fast, N>(out, a);
      case UnaryOp::isnan:
        return Unary<UnaryOp::isnan>{}.template apply<fast, N>(out, a);
      case UnaryOp::isfinite:
        return Unary<UnaryOp::isfinite>{}.template apply<fast, N>(out, a);
      case logical_not:
        return Unary<logical_not>{}.template apply<fast, N>(out, a);
      case relu:
        return Unary<relu>{}.template apply<fast, N>(out, a);
      case UnaryOp::sigmoid:
        return Unary<UnaryOp::sigmoid>{}.template apply<fast, N>(out, a);
      case UnaryOp::silu:
        return Unary<UnaryOp::silu>{}.template apply<fast, N>(out, a);
      default:  // elsewhere
        return;
    }
  }
};

struct AnyBinary {
  BinaryOp op;
  template <bool fast, int N, class C>
  __device__ void apply(C* out, const C* a, const C* b) const {
    using enum BinaryOp;
    switch (op) {
      case add:
        return Binary<add>{}.template apply<fast, N>(out, a, b);
      case subtract:
        return Binary<subtract>{}.template apply<fast, N>(out, a, b);
      case multiply:
        return Binary<multiply>{}.template apply<fast, N>(out, a, b);
      case divide:
        return Binary<divide>{}.template apply<fast, N>(out, a, b);
      case maximum:
        return Binary<maximum>{}.template apply<fast, N>(out, a, b);
      case minimum:
        return Binary<minimum>{}.template apply<fast, N>(out, a, b);
      case power:  // large, and in the kernel for any operands alone (N = 1)
        if constexpr (N == 1) Binary<power>{}.template apply<fast, N>(out, a, b);
        return;
      case gelu_tanh_backward:
        return Binary<gelu_tanh_backward>{}.template apply<fast, N>(out, a, b);
      case gelu_erf_backward:
        return Binary<gelu_erf_backward>{}.template apply<fast, N>(out, a, b);
      case equal:
        return Binary<equal>{}.template apply<fast, N>(out, a, b);
      case not_equal:
        return Binary<not_equal>{}.template apply<fast, N>(out, a, b);
      case less:
        return Binary<less>{}.template apply<fast, N>(out, a, b);
      case less_equal:
        return Binary<less_equal>{}.template apply<fast, N>(out, a, b);
      case greater:
        return Binary<greater>{}.template apply<fast, N>(out, a, b);
      case greater_equal:
        return Binary<greater_equal>{}.template apply<fast, N>(out, a, b);
      case logical_and:
        return Binary<logical_and>{}.template apply<fast, N>(out, a, b);
      case logical_or:
        return Binary<logical_or>{}.template apply<fast, N>(out, a, b);
      case logical_xor:
        return Binary<logical_xor>{}.template apply<fast, N>(out, a, b);
      case silu_backward:
        return Binary<silu_backward>{}.template apply<fast, N>(out, a, b);
      default:  // elsewhere
        return;
    }
  }
};

}  // namespace blutensor::cuda
