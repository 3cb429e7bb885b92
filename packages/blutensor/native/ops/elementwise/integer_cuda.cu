// Elementwise operators of integers and bool, in 64 bits (whose low bits are what the narrower types wrap to): one
// kernel with signs, one without, for operators of one and of two tensors each.
#include "ops/elementwise/cuda.h"
#include "ops/elementwise/map.cuh"

namespace blutensor::cuda {

namespace {

template <class C>
__device__ inline bool is_negative(C a) {
  if constexpr (std::is_signed_v<C>)
    return a < 0;
  else
    return false;
}

template <class C>
__device__ inline C integer_power(C base, C exponent) {
  if constexpr (std::is_signed_v<C>)
    if (exponent < 0) {  // 1 / base^|exponent|, towards zero
      if (base == 1) return 1;
      if (base == -1) return exponent & 1 ? -1 : 1;
      return 0;
    }
  uint64_t result = 1, factor = static_cast<uint64_t>(base);
  for (auto e = static_cast<uint64_t>(exponent); e != 0; e >>= 1, factor *= factor)
    if (e & 1) result *= factor;
  return static_cast<C>(result);
}

// By 0 they are 0; the lowest by -1 wraps.
template <class C>
__device__ inline C floor_divide(C a, C b) {
  if (b == 0) return 0;
  if constexpr (std::is_signed_v<C>) {
    if (b == -1) return static_cast<C>(0 - static_cast<uint64_t>(a));
    return a / b - ((a % b != 0) && ((a < 0) != (b < 0)) ? 1 : 0);
  } else {
    return a / b;
  }
}
template <class C>
__device__ inline C remainder(C a, C b) {
  if (b == 0) return 0;
  if constexpr (std::is_signed_v<C>) {
    if (b == -1) return 0;
    const C r = a % b;
    return r != 0 && ((r < 0) != (b < 0)) ? r + b : r;
  } else {
    return a % b;
  }
}

struct IntegerUnary {
  UnaryOp op;
  template <bool fast, int N, class C>
  __device__ void apply(C* out, const C* in) const {
    const C a = *in;
    const auto bits = static_cast<uint64_t>(a);
    using enum UnaryOp;
    switch (op) {
      case negative:
        *out = static_cast<C>(0 - bits);
        return;
      case absolute:
        *out = is_negative(a) ? static_cast<C>(0 - bits) : a;
        return;
      case sign:
        *out = is_negative(a) ? static_cast<C>(-1) : a != C(0);
        return;
      case square:
        *out = static_cast<C>(bits * bits);
        return;
      case relu:
        *out = is_negative(a) ? C(0) : a;
        return;
      case bitwise_invert:
        *out = static_cast<C>(~bits);
        return;
      case logical_not:
        *out = a == C(0);
        return;
      case UnaryOp::isfinite:
        *out = 1;
        return;
      case UnaryOp::isnan:
      case UnaryOp::isinf:
        *out = 0;
        return;
      default:  // floor, ceil, trunc, round
        *out = a;
        return;
    }
  }
};

struct IntegerBinary {
  BinaryOp op;
  template <bool fast, int N, class C>
  __device__ void apply(C* out, const C* first, const C* second) const {
    *out = result(*first, *second);
  }
  template <class C>
  __device__ C result(C a, C b) const {
    const auto x = static_cast<uint64_t>(a), y = static_cast<uint64_t>(b);
    using enum BinaryOp;
    switch (op) {
      case add:
        return static_cast<C>(x + y);
      case subtract:
        return static_cast<C>(x - y);
      case multiply:
        return static_cast<C>(x * y);
      case maximum:
        return a > b ? a : b;
      case minimum:
        return a < b ? a : b;
      case power:
        return integer_power(a, b);
      case BinaryOp::floor_divide:
        return cuda::floor_divide(a, b);
      case BinaryOp::remainder:
        return cuda::remainder(a, b);
      case bitwise_and:
        return a & b;
      case bitwise_or:
        return a | b;
      case bitwise_xor:
        return a ^ b;
      case bitwise_left_shift:
        return y > 63 ? C(0) : static_cast<C>(x << y);
      case bitwise_right_shift:
        return y > 63 ? (is_negative(a) ? static_cast<C>(-1) : C(0)) : static_cast<C>(a >> b);
      case equal:
        return a == b;
      case not_equal:
        return a != b;
      case less:
        return a < b;
      case less_equal:
        return a <= b;
      case greater:
        return a > b;
      case greater_equal:
        return a >= b;
      case logical_and:
        return a != C(0) && b != C(0);
      case logical_or:
        return a != C(0) || b != C(0);
      case logical_xor:
        return (a != C(0)) != (b != C(0));
      default:
        return a;  // inference has refused what is not defined
    }
  }
};

}  // namespace

void run_integer_unary(UnaryOp op, const Iteration& it, const View& out, const View& a, cudaStream_t stream) {
  if (op == UnaryOp::bitwise_invert && a.dtype == DType::boolean) op = UnaryOp::logical_not;
  if (a.dtype == DType::uint64)
    launch_map_any<uint64_t, 1>(it, out, {&a}, IntegerUnary{op}, stream);
  else
    launch_map_any<int64_t, 1>(it, out, {&a}, IntegerUnary{op}, stream);
  check_launch("elementwise");
}

void run_integer_binary(BinaryOp op, DType dtype, const Iteration& it, const View& out, const View& a, const View& b,
                        cudaStream_t stream) {
  if (dtype == DType::uint64)
    launch_map_any<uint64_t, 2>(it, out, {&a, &b}, IntegerBinary{op}, stream);
  else
    launch_map_any<int64_t, 2>(it, out, {&a, &b}, IntegerBinary{op}, stream);
  check_launch("elementwise");
}

}  // namespace blutensor::cuda
