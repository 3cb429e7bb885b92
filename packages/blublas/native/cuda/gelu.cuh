// GELU and its gradient; the formulas of native/simd/gelu.h.
#pragma once

namespace blublas {

__device__ __forceinline__ float exponential(float x) { return __expf(x); }
__device__ __forceinline__ double exponential(double x) { return exp(x); }
__device__ __forceinline__ float quotient(float x, float y) { return __fdividef(x, y); }
__device__ __forceinline__ double quotient(double x, double y) { return x / y; }
__device__ __forceinline__ float erfc_of(float x) { return erfcf(x); }
__device__ __forceinline__ double erfc_of(double x) { return erfc(x); }

// Beyond these GELU is x or 0 and its gradient 1 or 0.
template <typename T>
constexpr T kGeluTanhRange = sizeof(T) == 4 ? T(9.6) : T(20.5);
template <typename T>
constexpr T kGeluErfRange = sizeof(T) == 4 ? T(12.5) : T(37);

// x within +-range; NaN stays NaN
template <typename T>
__device__ __forceinline__ T within(T x, T range) {
  return x > range ? range : x < -range ? -range : x;
}

// 2 sqrt(2/pi) (x + 0.044715 x^3)
template <typename T>
__device__ __forceinline__ T twice_tanh_argument(T x) {
  const T root = T(2 * 0.79788456080286535588), cubic = T(2 * 0.79788456080286535588 * 0.044715);
  return x * (cubic * (x * x) + root);
}

template <typename T>
__device__ __forceinline__ T gelu_tanh(T x) {
  // Within the range, so that the quotient's divisor stays far below the 2^126 where it would give 0 or NaN.
  const T inside = within(x, kGeluTanhRange<T>);
  const T sigmoid = quotient(T(1), T(1) + exponential(-twice_tanh_argument(inside)));
  return x * (x < -kGeluTanhRange<T> ? T(0) : sigmoid);
}

// s + 2 x s (1 - s) u', s = sigmoid(2 u)
template <typename T>
__device__ __forceinline__ T gelu_tanh_gradient(T x) {
  x = within(x, kGeluTanhRange<T>);
  const T e = exponential(-twice_tanh_argument(x)), s = quotient(T(1), T(1) + e);
  const T slope = T(6 * 0.79788456080286535588 * 0.044715) * (x * x) + T(2 * 0.79788456080286535588);
  return (x * s * (e * s)) * slope + s;
}

template <typename T>
__device__ __forceinline__ T gelu_erf(T x) {
  const T tail = T(0.5) * erfc_of(within(x, kGeluErfRange<T>) * T(-0.70710678118654752440));
  return x * (x < -kGeluErfRange<T> ? T(0) : tail);
}

template <typename T>
__device__ __forceinline__ T gelu_erf_gradient(T x) {
  x = within(x, kGeluErfRange<T>);
  const T gauss = exponential(T(-0.5) * x * x);
  return (x * gauss) * T(0.39894228040143267794) + T(0.5) * erfc_of(x * T(-0.70710678118654752440));
}

}  // namespace blublas
