// Elementwise functions that are computed in float64 whatever the dtype, as on the host: one kernel for those of one
// tensor, one for those of two. The results are rounded once; they are the host's but for the last bit of the C library.
#include "ops/elementwise/cuda.h"
#include "ops/elementwise/map.cuh"

namespace blutensor::cuda {

namespace {

struct WideUnary {
  UnaryOp op;
  template <bool fast, int N, class C>
  __device__ void apply(C* out, const C* in) const {
    *out = result(*in);
  }
  __device__ double result(double a) const {
    switch (op) {
      case UnaryOp::floor:
        return ::floor(a);
      case UnaryOp::ceil:
        return ::ceil(a);
      case UnaryOp::trunc:
        return ::trunc(a);
      case UnaryOp::round:
        return ::rint(a);
      case UnaryOp::sin:
        return ::sin(a);
      case UnaryOp::cos:
        return ::cos(a);
      case UnaryOp::tan:
        return ::tan(a);
      case UnaryOp::asin:
        return ::asin(a);
      case UnaryOp::acos:
        return ::acos(a);
      case UnaryOp::atan:
        return ::atan(a);
      case UnaryOp::sinh:
        return ::sinh(a);
      case UnaryOp::cosh:
        return ::cosh(a);
      case UnaryOp::asinh:
        return ::asinh(a);
      case UnaryOp::acosh:
        return ::acosh(a);
      case UnaryOp::atanh:
        return ::atanh(a);
      case UnaryOp::expm1:
        return ::expm1(a);
      case UnaryOp::log1p:
        return ::log1p(a);
      case UnaryOp::log2:
        return ::log2(a);
      case UnaryOp::log10:
        return ::log10(a);
      case UnaryOp::isinf:
        return isinf(a) ? 1 : 0;
      default:  // signbit
        return __double_as_longlong(a) < 0 ? 1 : 0;
    }
  }
};

// The neighbour of a in the direction of b among the numbers of a dtype of `digits` binary digits and exponents from
// `lowest` to `highest`.
__device__ inline double neighbour(double a, double b, int digits, int lowest, int highest) {
  if (a == 0) return copysign(ldexp(1.0, lowest - (digits - 1)), b);
  if (isinf(a)) return copysign(ldexp(2 - ldexp(1.0, 1 - digits), highest), a);
  const double size = fabs(a);
  const bool grows = (b > a) == (a > 0);
  int exponent = max(ilogb(size), lowest);
  if (!grows && exponent > lowest && size == ldexp(1.0, exponent)) --exponent;
  const double unit = ldexp(1.0, exponent - (digits - 1));
  return copysign(grows ? size + unit : size - unit, a);
}

struct WideBinary {
  BinaryOp op;
  DType dtype;
  template <bool fast, int N, class C>
  __device__ void apply(C* out, const C* first, const C* second) const {
    *out = result(*first, *second);
  }
  __device__ double result(double a, double b) const {
    switch (op) {
      case BinaryOp::floor_divide: {
        if (b == 0) return a / b;
        const double r = fmod(a, b);
        double quotient = (a - r) / b;
        if (r != 0 && (r < 0) != (b < 0)) quotient -= 1;
        if (quotient == 0) return copysign(0.0, a / b);
        const double whole = ::floor(quotient);
        return quotient - whole > 0.5 ? whole + 1 : whole;
      }
      case BinaryOp::remainder: {
        const double r = fmod(a, b);
        if (r == 0) return copysign(0.0, b);
        return (r < 0) != (b < 0) ? r + b : r;
      }
      case BinaryOp::atan2:
        return ::atan2(a, b);
      case BinaryOp::hypot:
        return ::hypot(a, b);
      case BinaryOp::logaddexp: {
        if (a == b) return a + 0.69314718055994530942;  // infinities too
        if (a != a || b != b) return a + b;
        const double larger = fmax(a, b), smaller = fmin(a, b);
        return larger + ::log1p(::exp(smaller - larger));
      }
      case BinaryOp::copysign:
        return ::copysign(a, b);
      default:
        return next(a, b);
    }
  }
  __device__ double next(double a, double b) const {
    if (a != a || b != b) return a + b;
    if (a == b) return b;
    switch (dtype) {
      case DType::float32:
        return neighbour(a, b, 24, -126, 127);
      case DType::bfloat16:
        return neighbour(a, b, 8, -126, 127);
      case DType::float16:
        return neighbour(a, b, 11, -14, 15);
      default:
        return ::nextafter(a, b);
    }
  }
};

}  // namespace

void run_wide_unary(UnaryOp op, const Iteration& it, const View& out, const View& a, cudaStream_t stream) {
  launch_map_any<double, 1>(it, out, {&a}, WideUnary{op}, stream);
  check_launch("elementwise");
}

void run_wide_binary(BinaryOp op, DType dtype, const Iteration& it, const View& out, const View& a, const View& b,
                     cudaStream_t stream) {
  launch_map_any<double, 2>(it, out, {&a, &b}, WideBinary{op, dtype}, stream);
  check_launch("elementwise");
}

}  // namespace blutensor::cuda
