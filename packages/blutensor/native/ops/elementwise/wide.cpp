// Functions that are computed in float64 whatever the dtype of the operands: one instantiation each, and results that
// are rounded once. The cost is that of the C library, some nanoseconds per element.
#include <bit>
#include <cmath>
#include <limits>

#include "ops/elementwise/elementwise_kernels.h"

namespace blutensor {

namespace {

template <UnaryOp op>
auto apply(double a) {
  if constexpr (op == UnaryOp::floor) return std::floor(a);
  if constexpr (op == UnaryOp::ceil) return std::ceil(a);
  if constexpr (op == UnaryOp::trunc) return std::trunc(a);
  if constexpr (op == UnaryOp::round) return std::nearbyint(a);  // halves to even
  if constexpr (op == UnaryOp::sin) return std::sin(a);
  if constexpr (op == UnaryOp::cos) return std::cos(a);
  if constexpr (op == UnaryOp::tan) return std::tan(a);
  if constexpr (op == UnaryOp::asin) return std::asin(a);
  if constexpr (op == UnaryOp::acos) return std::acos(a);
  if constexpr (op == UnaryOp::atan) return std::atan(a);
  if constexpr (op == UnaryOp::sinh) return std::sinh(a);
  if constexpr (op == UnaryOp::cosh) return std::cosh(a);
  if constexpr (op == UnaryOp::asinh) return std::asinh(a);
  if constexpr (op == UnaryOp::acosh) return std::acosh(a);
  if constexpr (op == UnaryOp::atanh) return std::atanh(a);
  if constexpr (op == UnaryOp::expm1) return std::expm1(a);
  if constexpr (op == UnaryOp::log1p) return std::log1p(a);
  if constexpr (op == UnaryOp::log2) return std::log2(a);
  if constexpr (op == UnaryOp::log10) return std::log10(a);
  if constexpr (op == UnaryOp::isnan) return static_cast<uint8_t>(std::isnan(a));
  if constexpr (op == UnaryOp::isfinite) return static_cast<uint8_t>(std::isfinite(a));
  if constexpr (op == UnaryOp::isinf) return static_cast<uint8_t>(std::isinf(a));
  if constexpr (op == UnaryOp::signbit) return static_cast<uint8_t>(std::signbit(a));
}

// The remainder has the sign of b, and the quotient is the whole number that belongs to it: fmod is exact, a / b
// rounded down is not.
double remainder(double a, double b) {
  const double r = std::fmod(a, b);
  if (r == 0) return std::copysign(0.0, b);
  return (r < 0) != (b < 0) ? r + b : r;
}
double floor_divide(double a, double b) {
  if (b == 0) return a / b;
  const double r = std::fmod(a, b);
  double quotient = (a - r) / b;
  if (r != 0 && (r < 0) != (b < 0)) quotient -= 1;
  if (quotient == 0) return std::copysign(0.0, a / b);
  const double whole = std::floor(quotient);
  return quotient - whole > 0.5 ? whole + 1 : whole;
}

// Squares of doubles overflow no long double. The C library's own hypot would ask for one of 2022.
double hypotenuse(double a, double b) {
  if (std::isinf(a) || std::isinf(b)) return INFINITY;  // also beside NaN
  const long double x = a, y = b;
  return static_cast<double>(std::sqrt(x * x + y * y));
}

// log(e^a + e^b) without overflow.
double logaddexp(double a, double b) {
  if (a == b) return a + M_LN2;  // infinities too
  const double larger = std::fmax(a, b), smaller = std::fmin(a, b);
  if (std::isnan(a) || std::isnan(b)) return a + b;
  return larger + std::log1p(std::exp(smaller - larger));
}

template <BinaryOp op>
double apply(double a, double b) {
  if constexpr (op == BinaryOp::floor_divide) return floor_divide(a, b);
  if constexpr (op == BinaryOp::remainder) return remainder(a, b);
  if constexpr (op == BinaryOp::atan2) return std::atan2(a, b);
  if constexpr (op == BinaryOp::hypot) return hypotenuse(a, b);
  if constexpr (op == BinaryOp::logaddexp) return logaddexp(a, b);
  if constexpr (op == BinaryOp::copysign) return std::copysign(a, b);
}

template <UnaryOp op>
void unary_loop(int64_t n, void* out, const void* a) {
  for (int64_t i = 0; i < n; ++i)
    static_cast<decltype(apply<op>(0.0))*>(out)[i] = apply<op>(static_cast<const double*>(a)[i]);
}

template <BinaryOp op>
void binary_loop(int64_t n, void* out, const void* a, const void* b, Scalar scalar) {
  const int64_t step_a = scalar == Scalar::first ? 0 : 1, step_b = scalar == Scalar::second ? 0 : 1;
  for (int64_t i = 0; i < n; ++i)
    static_cast<double*>(out)[i] =
        apply<op>(static_cast<const double*>(a)[i * step_a], static_cast<const double*>(b)[i * step_b]);
}

// The neighbour of a in the direction of b: bits of floats of one sign are ordered as integers.
template <class T, class Bits>
void nextafter_loop(int64_t n, void* out, const void* a, const void* b, Scalar scalar) {
  const int64_t step_a = scalar == Scalar::first ? 0 : 1, step_b = scalar == Scalar::second ? 0 : 1;
  constexpr Bits kSign = Bits{1} << (8 * sizeof(Bits) - 1);
  for (int64_t i = 0; i < n; ++i) {
    const T from = static_cast<const T*>(a)[i * step_a], to = static_cast<const T*>(b)[i * step_b];
    const auto x = static_cast<double>(static_cast<compute_t<T>>(from)),
               y = static_cast<double>(static_cast<compute_t<T>>(to));
    Bits bits = std::bit_cast<Bits>(from);
    if (x != x || x == y)
      bits = x != x ? bits : std::bit_cast<Bits>(to);
    else if (y != y)
      bits = std::bit_cast<Bits>(to);
    else if (x == 0)
      bits = static_cast<Bits>((y < 0 ? kSign : Bits{0}) | 1);
    else
      bits = static_cast<Bits>((x < y) == (x > 0) ? bits + 1 : bits - 1);
    static_cast<Bits*>(out)[i] = bits;
  }
}

template <UnaryOp... ops>
void use_unary(ElementwiseKernels& kernels) {
  ((kernels.unary[static_cast<int>(ops)][static_cast<int>(DType::float64)] = unary_loop<ops>), ...);
}
template <BinaryOp... ops>
void use_binary(ElementwiseKernels& kernels) {
  ((kernels.binary[static_cast<int>(ops)][static_cast<int>(DType::float64)] = binary_loop<ops>), ...);
}
template <class T, class Bits>
void use_nextafter(ElementwiseKernels& kernels) {
  kernels.binary[static_cast<int>(BinaryOp::nextafter)][static_cast<int>(dtype_of<T>::value)] = nextafter_loop<T, Bits>;
}

}  // namespace

void use_wide(ElementwiseKernels& kernels) {
  using U = UnaryOp;
  use_unary<U::floor, U::ceil, U::trunc, U::round, U::sin, U::cos, U::tan, U::asin, U::acos, U::atan, U::sinh, U::cosh,
            U::asinh, U::acosh, U::atanh, U::expm1, U::log1p, U::log2, U::log10, U::isnan, U::isfinite, U::isinf,
            U::signbit>(kernels);
  using B = BinaryOp;
  use_binary<B::floor_divide, B::remainder, B::atan2, B::hypot, B::logaddexp, B::copysign>(kernels);
  use_nextafter<float, uint32_t>(kernels);
  use_nextafter<double, uint64_t>(kernels);
  use_nextafter<bfloat16, uint16_t>(kernels);
  use_nextafter<float16, uint16_t>(kernels);
}

}  // namespace blutensor
