// Portable block kernels for every compute dtype. float32 is the vector source over one lane: the same bits as AVX2
// and AVX-512.
#include <cmath>
#include <type_traits>

#include "ops/elementwise/elementwise_simd.h"

namespace blutensor {

namespace {

// Integers wrap: arithmetic is done on the unsigned type.
template <class T>
using Wrapping = std::conditional_t<std::is_integral_v<T>, std::make_unsigned<T>, std::type_identity<T>>::type;

// Of integers: what is whole already.
template <UnaryOp op>
constexpr bool is_rounding = op >= UnaryOp::floor && op <= UnaryOp::round;

template <class T>
T gelu_tanh(T x) {
  const T u = std::sqrt(T(2) / T(M_PI)) * (x + T(0.044715) * x * x * x);
  return x / (T(1) + std::exp(T(-2) * u));
}
template <class T>
T gelu_tanh_gradient(T x) {
  x = x > T(30) ? T(30) : x < T(-30) ? T(-30) : x;
  const T slope = std::sqrt(T(2) / T(M_PI));
  const T s = T(1) / (T(1) + std::exp(T(-2) * slope * (x + T(0.044715) * x * x * x)));
  return s + x * s * (T(1) - s) * T(2) * slope * (T(1) + T(3 * 0.044715) * x * x);
}
template <class T>
T gelu_erf(T x) {
  return x * T(0.5) * std::erfc(-x * T(M_SQRT1_2));
}
template <class T>
T gelu_erf_gradient(T x) {
  x = x > T(40) ? T(40) : x < T(-40) ? T(-40) : x;
  return T(0.5) * std::erfc(-x * T(M_SQRT1_2)) + x * std::exp(x * x * T(-0.5)) / std::sqrt(T(2) * T(M_PI));
}

template <class T>
T bounded(T x) {
  return x > T(1000) ? T(1000) : x < T(-1000) ? T(-1000) : x;
}
template <class T>
T silu_gradient(T x) {
  x = bounded(x);
  const T s = T(1) / (T(1) + std::exp(-x));
  return s * (T(1) + x * (T(1) - s));
}

template <UnaryOp op, class T>
T apply(T a) {
  using W = Wrapping<T>;
  if constexpr (op == UnaryOp::negative) return static_cast<T>(-static_cast<W>(a));
  if constexpr (op == UnaryOp::absolute) return a < T(0) || (a == T(0)) ? static_cast<T>(W(0) - static_cast<W>(a)) : a;
  if constexpr (op == UnaryOp::sign) return a > T(0) ? T(1) : a < T(0) ? static_cast<T>(-1) : a;
  if constexpr (op == UnaryOp::square) return static_cast<T>(static_cast<W>(a) * static_cast<W>(a));
  if constexpr (op == UnaryOp::relu) return a < T(0) ? T(0) : a;
  if constexpr (op == UnaryOp::bitwise_invert) return static_cast<T>(~a);
  if constexpr (is_rounding<op>) return a;
  if constexpr (std::is_floating_point_v<T>) {
    if constexpr (op == UnaryOp::sigmoid) return T(1) / (T(1) + std::exp(-a));
    if constexpr (op == UnaryOp::silu) return bounded(a) == a ? a / (T(1) + std::exp(-a)) : std::max(a, T(-0.0));
    if constexpr (op == UnaryOp::reciprocal) return T(1) / a;
    if constexpr (op == UnaryOp::exp) return std::exp(a);
    if constexpr (op == UnaryOp::log) return std::log(a);
    if constexpr (op == UnaryOp::sqrt) return std::sqrt(a);
    if constexpr (op == UnaryOp::rsqrt) return T(1) / std::sqrt(a);
    if constexpr (op == UnaryOp::tanh) return std::tanh(a);
    if constexpr (op == UnaryOp::erf) return std::erf(a);
    if constexpr (op == UnaryOp::gelu_tanh) return gelu_tanh(a);
    if constexpr (op == UnaryOp::gelu_erf) return gelu_erf(a);
  }
}

template <class T>
T integer_power(T base, T exponent) {
  if constexpr (std::is_signed_v<T>)
    if (exponent < T(0)) {  // 1 / base^|exponent|, towards zero
      if (base == T(1)) return T(1);
      if (base == static_cast<T>(-1)) return exponent & 1 ? static_cast<T>(-1) : T(1);
      return T(0);
    }
  uint64_t result = 1, factor = static_cast<uint64_t>(base);
  for (auto e = static_cast<uint64_t>(exponent); e != 0; e >>= 1, factor *= factor)
    if (e & 1) result *= factor;
  return static_cast<T>(result);
}

// Towards minus infinity; by 0 it is 0. The lowest by -1 wraps.
template <class T>
T integer_floor_divide(T a, T b) {
  if (b == T(0)) return T(0);
  if constexpr (std::is_signed_v<T>) {
    if (b == T(-1)) return static_cast<T>(0 - static_cast<uint64_t>(a));
    return static_cast<T>(a / b - ((a % b != 0) && ((a < 0) != (b < 0))));
  } else {
    return a / b;
  }
}
// With the sign of b; by 0 it is 0.
template <class T>
T integer_remainder(T a, T b) {
  if (b == T(0)) return T(0);
  if constexpr (std::is_signed_v<T>) {
    if (b == T(-1)) return T(0);
    const T r = a % b;
    return r != 0 && ((r < 0) != (b < 0)) ? r + b : r;
  } else {
    return a % b;
  }
}
// By the width and more (and by what is negative) everything is shifted out.
template <class T>
T left_shift(T a, T b) {
  return static_cast<uint64_t>(b) > 63 ? T(0) : static_cast<T>(static_cast<uint64_t>(a) << b);
}
template <class T>
T right_shift(T a, T b) {
  return static_cast<uint64_t>(b) > 63 ? (a < T(0) ? static_cast<T>(-1) : T(0)) : static_cast<T>(a >> b);
}

template <BinaryOp op, class T>
auto apply(T a, T b) {
  using W = Wrapping<T>;
  if constexpr (op == BinaryOp::add) return static_cast<T>(static_cast<W>(a) + static_cast<W>(b));
  if constexpr (op == BinaryOp::subtract) return static_cast<T>(static_cast<W>(a) - static_cast<W>(b));
  if constexpr (op == BinaryOp::multiply) return static_cast<T>(static_cast<W>(a) * static_cast<W>(b));
  if constexpr (op == BinaryOp::divide) return static_cast<T>(a / b);
  if constexpr (op == BinaryOp::maximum) return a != a || a > b ? a : b;  // the first NaN wins
  if constexpr (op == BinaryOp::minimum) return a != a || a < b ? a : b;
  if constexpr (op == BinaryOp::power) {
    if constexpr (std::is_integral_v<T>)
      return integer_power(a, b);
    else
      return static_cast<T>(std::pow(static_cast<double>(a), static_cast<double>(b)));
  }
  if constexpr (op == BinaryOp::floor_divide) return integer_floor_divide(a, b);
  if constexpr (op == BinaryOp::remainder) return integer_remainder(a, b);
  if constexpr (op == BinaryOp::bitwise_and) return static_cast<T>(a & b);
  if constexpr (op == BinaryOp::bitwise_or) return static_cast<T>(a | b);
  if constexpr (op == BinaryOp::bitwise_xor) return static_cast<T>(a ^ b);
  if constexpr (op == BinaryOp::bitwise_left_shift) return left_shift(a, b);
  if constexpr (op == BinaryOp::bitwise_right_shift) return right_shift(a, b);
  if constexpr (op == BinaryOp::silu_backward) return static_cast<T>(a * silu_gradient(b));
  if constexpr (op == BinaryOp::gelu_tanh_backward) return static_cast<T>(a * gelu_tanh_gradient(b));
  if constexpr (op == BinaryOp::gelu_erf_backward) return static_cast<T>(a * gelu_erf_gradient(b));
  if constexpr (op == BinaryOp::equal) return static_cast<uint8_t>(a == b);
  if constexpr (op == BinaryOp::not_equal) return static_cast<uint8_t>(a != b);
  if constexpr (op == BinaryOp::less) return static_cast<uint8_t>(a < b);
  if constexpr (op == BinaryOp::less_equal) return static_cast<uint8_t>(a <= b);
  if constexpr (op == BinaryOp::greater) return static_cast<uint8_t>(a > b);
  if constexpr (op == BinaryOp::greater_equal) return static_cast<uint8_t>(a >= b);
  if constexpr (op == BinaryOp::logical_and) return static_cast<uint8_t>(a & b);
  if constexpr (op == BinaryOp::logical_or) return static_cast<uint8_t>(a | b);
  if constexpr (op == BinaryOp::logical_xor) return static_cast<uint8_t>(a ^ b);
}

template <UnaryOp op, class T>
void unary_loop(int64_t n, void* out, const void* a) {
  for (int64_t i = 0; i < n; ++i) static_cast<T*>(out)[i] = apply<op>(static_cast<const T*>(a)[i]);
}

template <BinaryOp op, class T>
void binary_loop(int64_t n, void* out, const void* a, const void* b, Scalar scalar) {
  const int64_t step_a = scalar == Scalar::first ? 0 : 1, step_b = scalar == Scalar::second ? 0 : 1;
  auto* o = static_cast<decltype(apply<op>(T{}, T{}))*>(out);
  for (int64_t i = 0; i < n; ++i)
    o[i] = apply<op>(static_cast<const T*>(a)[i * step_a], static_cast<const T*>(b)[i * step_b]);
}

// isnan and isinf (isfinite) of what is neither (always finite), and logical_not.
template <uint8_t value>
void constant(int64_t n, void* out, const void*) {
  for (int64_t i = 0; i < n; ++i) static_cast<uint8_t*>(out)[i] = value;
}
void logical_not(int64_t n, void* out, const void* a) {
  for (int64_t i = 0; i < n; ++i) static_cast<uint8_t*>(out)[i] = !static_cast<const uint8_t*>(a)[i];
}

template <class T, UnaryOp... ops>
void use_unary(ElementwiseKernels& kernels) {
  const auto dtype = static_cast<int>(dtype_of<T>::value);
  ((kernels.unary[static_cast<int>(ops)][dtype] = unary_loop<ops, T>), ...);
}
// `T` is how elements of `dtype` are read: uint8_t for bool.
template <class T, BinaryOp... ops>
void use_binary(ElementwiseKernels& kernels, DType dtype = dtype_of<T>::value) {
  ((kernels.binary[static_cast<int>(ops)][static_cast<int>(dtype)] = binary_loop<ops, T>), ...);
}
template <class T>
void use_comparisons(ElementwiseKernels& kernels, DType dtype = dtype_of<T>::value) {
  using enum BinaryOp;
  use_binary<T, equal, not_equal, less, less_equal, greater, greater_equal>(kernels, dtype);
}

template <class T>
void use_integer(ElementwiseKernels& kernels) {
  {
    using enum UnaryOp;
    use_unary<T, negative, absolute, sign, square, relu, UnaryOp::floor, UnaryOp::ceil, UnaryOp::trunc, UnaryOp::round,
              bitwise_invert>(kernels);
  }
  using enum BinaryOp;
  use_binary<T, add, subtract, multiply, maximum, minimum, power, floor_divide, remainder, bitwise_and, bitwise_or,
             bitwise_xor, bitwise_left_shift, bitwise_right_shift>(kernels);
  use_comparisons<T>(kernels);
}

}  // namespace

void use_reference(ElementwiseKernels& kernels) {
  {
    using enum UnaryOp;
    use_unary<double, negative, absolute, sign, square, reciprocal, exp, log, sqrt, rsqrt, tanh, erf,
              UnaryOp::gelu_tanh, UnaryOp::gelu_erf, relu, sigmoid, silu>(kernels);
  }
  {
    using enum BinaryOp;
    use_binary<double, add, subtract, multiply, divide, maximum, minimum, power, gelu_tanh_backward, gelu_erf_backward,
               silu_backward>(kernels);
    use_binary<float, power>(kernels);
    use_binary<uint8_t, logical_and, logical_or, logical_xor, bitwise_and, bitwise_or, bitwise_xor>(kernels,
                                                                                                    DType::boolean);
  }
  use_comparisons<double>(kernels);
  use_comparisons<uint8_t>(kernels, DType::boolean);
  use_integer<int64_t>(kernels);
  use_integer<uint64_t>(kernels);
  for (DType dtype : {DType::int64, DType::uint64, DType::boolean}) {
    const auto d = static_cast<int>(dtype);
    kernels.unary[static_cast<int>(UnaryOp::isnan)][d] = constant<0>;
    kernels.unary[static_cast<int>(UnaryOp::isinf)][d] = constant<0>;
    kernels.unary[static_cast<int>(UnaryOp::isfinite)][d] = constant<1>;
  }
  kernels.unary[static_cast<int>(UnaryOp::logical_not)][static_cast<int>(DType::boolean)] = logical_not;
  kernels.unary[static_cast<int>(UnaryOp::bitwise_invert)][static_cast<int>(DType::boolean)] = logical_not;
  use_wide(kernels);
  use_float32(kernels);
}

}  // namespace blutensor
