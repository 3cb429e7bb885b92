// exp, log, tanh, erf and GELU in float32: the polynomials and the order of operations of <blublas/simd/math.h>, every
// step rounded once, so that results have the bits of the CPU's (the intrinsics with _rn are never contracted); and
// GELU's derivative. The *_fast forms are for results that are rounded to 16 bits: absolute errors of some 2^-21, far below.
#pragma once

#include <cstdint>

#include "ops/cuda/ptx/approx.cuh"

namespace blutensor::cuda {

__device__ inline float exp_f32(float value) {
  const float x = fminf(89.0f, fmaxf(-104.0f, value));  // results beyond are inf and 0
  // Adding 3 * 2^22 rounds to an integer, to nearest even, and leaves it in the low bits.
  constexpr float kShift = 12582912.0f;
  const float shifted = __fadd_rn(__fmul_rn(x, 1.44269504f), kShift);
  const float n = __fadd_rn(shifted, -kShift);
  float r = __fmaf_rn(-n, 0x1.62e4p-1f, x);
  r = __fmaf_rn(-n, 0x1.7f7d1cp-20f, r);
  float q = __fmaf_rn(r, 0x1.6a3d12p-10f, 0x1.123858p-7f);
  q = __fmaf_rn(q, r, 0x1.5558bep-5f);
  q = __fmaf_rn(q, r, 0x1.555494p-3f);
  q = __fmaf_rn(q, r, 0x1.fffffcp-2f);
  const float y = __fadd_rn(1.0f, __fmaf_rn(__fmul_rn(r, r), q, r));
  const int power = __float_as_int(shifted) - __float_as_int(kShift);
  const int half = power >> 1, rest = power - half;
  const float result = __fmul_rn(__fmul_rn(y, __int_as_float((half + 127) << 23)), __int_as_float((rest + 127) << 23));
  return value != value ? value : result;
}

__device__ inline float log_f32(float x) {
  const bool denormal = x < 0x1p-126f;
  const int word = __float_as_int(denormal ? __fmul_rn(x, 0x1p23f) : x);
  const int exponent = (word - 0x3f3504f3) >> 23;
  const float f = __fadd_rn(__int_as_float(word - (exponent << 23)), -1.0f);
  const float e = __fadd_rn(static_cast<float>(exponent), denormal ? -23.0f : 0.0f);
  const float s = __fmul_rn(f, f);
  float p = __fmaf_rn(f, 0x1.147204p-4f, -0x1.de00e4p-4f);
  p = __fmaf_rn(p, f, 0x1.e6bff2p-4f);
  p = __fmaf_rn(p, f, -0x1.fc28dep-4f);
  p = __fmaf_rn(p, f, 0x1.233ba4p-3f);
  p = __fmaf_rn(p, f, -0x1.555c44p-3f);
  p = __fmaf_rn(p, f, 0x1.99a476p-3f);
  p = __fmaf_rn(p, f, -0x1.000006p-2f);
  p = __fmaf_rn(p, f, 0x1.555548p-2f);
  float r = __fmul_rn(__fmul_rn(f, s), p);
  r = __fmaf_rn(e, 0x1.7f7d1cp-20f, r);
  r = __fmaf_rn(-0.5f, s, r);
  r = __fmaf_rn(e, 0x1.62e4p-1f, __fadd_rn(f, r));
  r = x < __int_as_float(0x7f800000) ? r : x;  // inf and NaN
  r = x < 0.0f ? __int_as_float(0x7fc00000) : r;
  return x == 0.0f ? __int_as_float(static_cast<int>(0xff800000u)) : r;
}

__device__ inline float tanh_f32(float x) {
  const float t = fabsf(x), s = __fmul_rn(x, x);
  float p = __fmaf_rn(s, -0x1.750ce4p-8f, 0x1.51f8cep-6f);
  p = __fmaf_rn(p, s, -0x1.b835a4p-5f);
  p = __fmaf_rn(p, s, 0x1.1106f6p-3f);
  p = __fmaf_rn(p, s, -0x1.555532p-2f);
  const float small = __fmaf_rn(__fmul_rn(x, s), p, x);
  const float large = __fadd_rn(1.0f, -__fdiv_rn(2.0f, __fadd_rn(exp_f32(__fadd_rn(t, t)), 1.0f)));
  return copysignf(t < 0.625f ? small : large, x);
}

__device__ inline float erf_f32(float x) {
  const float t = fabsf(x), s = __fmul_rn(x, x);
  float p = __fmaf_rn(s, -0x1.38741cp-11f, 0x1.46d9e2p-8f);
  p = __fmaf_rn(p, s, -0x1.b67c04p-6f);
  p = __fmaf_rn(p, s, 0x1.ce1986p-4f);
  p = __fmaf_rn(p, s, -0x1.8126e2p-2f);
  p = __fmaf_rn(p, s, 0x1.06eba6p-3f);
  const float small = __fmaf_rn(x, p, x);
  const float u = t > 4.0f ? 4.0f : t;  // erf is 1 beyond; NaN passes
  float q = __fmaf_rn(u, 0x1.829408p-17f, -0x1.55756ap-12f);
  q = __fmaf_rn(q, u, 0x1.dee682p-9f);
  q = __fmaf_rn(q, u, -0x1.85b2a6p-6f);
  q = __fmaf_rn(q, u, 0x1.b340e8p-4f);
  q = __fmaf_rn(q, u, 0x1.45308ap-1f);
  q = __fmaf_rn(q, u, 0x1.077ac8p-3f);
  const float large = copysignf(__fadd_rn(1.0f, -exp_f32(-__fmaf_rn(u, q, u))), x);
  return t < 0.92f ? small : large;
}

// Sine and cosine of 2 pi x for 0 <= x < 1.
__device__ inline void sin_cos_turn(float x, float& sine, float& cosine) {
  constexpr float kShift = 12582912.0f;
  const float shifted = __fadd_rn(__fmul_rn(x, 4.0f), kShift);
  const float quarters = __fadd_rn(shifted, -kShift);  // 0 ... 4
  const float angle = __fmul_rn(__fmaf_rn(-0.25f, quarters, x), 6.28318531f), s = __fmul_rn(angle, angle);
  float p = __fmaf_rn(s, -0x1.995408p-13f, 0x1.110778p-7f);
  p = __fmaf_rn(p, s, -0x1.555546p-3f);
  const float sin_angle = __fmaf_rn(__fmul_rn(angle, s), p, angle);
  float q = __fmaf_rn(s, 0x1.99e914p-16f, -0x1.6c0c2ap-10f);
  q = __fmaf_rn(q, s, 0x1.55554ap-5f);
  const float cos_angle = __fmaf_rn(__fmul_rn(s, s), q, __fmaf_rn(-0.5f, s, 1.0f));
  const int quarter = __float_as_int(shifted) & 7;
  const bool swapped = quarter == 1 || quarter == 3;
  const float along = swapped ? cos_angle : sin_angle, across = swapped ? sin_angle : cos_angle;
  sine = quarter == 2 || quarter == 3 ? -along : along;
  cosine = quarter == 1 || quarter == 2 ? -across : across;
}

// NaN passes, as in the CPU's min(30, max(-30, x)).
__device__ inline float clamp_30(float x) { return x > 30.0f ? 30.0f : x < -30.0f ? -30.0f : x; }

__device__ inline float gelu_tanh_f32(float x) {
  const float twice_u = __fmul_rn(x, __fmaf_rn(__fmul_rn(x, x), 0.0713548162726f, 1.59576912161f));
  return __fdiv_rn(x, __fadd_rn(1.0f, exp_f32(-twice_u)));
}
// 1 - s cancels for large x; e^-2u s does not.
__device__ inline float gelu_tanh_gradient_f32(float value) {
  const float x = clamp_30(value), square = x * x;
  const float twice_u = x * (square * 0.0713548162726f + 1.59576912161f);
  const float slope = square * 0.2140644488178f + 1.59576912161f;
  const float e = exp_f32(-twice_u), s = __fdiv_rn(1.0f, 1.0f + e);
  return x * s * (x < 0.0f ? 1.0f - s : e * s) * slope + s;
}
__device__ inline float gelu_erf_f32(float x) {
  const float half = __fmul_rn(x, 0.5f);
  return __fmaf_rn(half, erf_f32(__fmul_rn(x, 0.707106781187f)), half);
}
__device__ inline float gelu_erf_gradient_f32(float value) {
  const float x = clamp_30(value);
  const float distribution = __fmaf_rn(0.5f, erf_f32(__fmul_rn(x, 0.707106781187f)), 0.5f);
  const float density = __fmul_rn(0.398942280401f, exp_f32(__fmul_rn(__fmul_rn(x, x), -0.5f)));
  return __fmaf_rn(x, density, distribution);
}

// x sigmoid(2u), u in units of log2: 2^(-2 u log2 e).
__device__ inline float gelu_tanh_fast(float x) {
  const float power = x * (x * x * -0.1029432397f - 2.3022081985f);
  return x * ptx::reciprocal_approx(1.0f + ptx::exp2_approx(power));
}
// Only factors are cut at |x| = 30: what is NaN stays so through the exponential.
__device__ inline float gelu_tanh_gradient_fast(float value) {
  const float x = fminf(30.0f, fmaxf(-30.0f, value)), square = x * x;
  const float power = value * (square * -0.1029432397f - 2.3022081985f);
  const float slope = square * 0.2140644488178f + 1.59576912161f;
  const float s = ptx::reciprocal_approx(1.0f + ptx::exp2_approx(power));
  return x * s * (1.0f - s) * slope + s;
}

// The distribution Phi(x) of the normal law, and e^(-x^2 / 2) on the way: erfc by formula 7.1.26 of Abramowitz and
// Stegun, absolute error 1.5e-7.
__device__ inline float normal_distribution_fast(float x, float& bell) {
  const float a = fabsf(x);
  const float t = ptx::reciprocal_approx(a * (0.3275911f * 0.707106781187f) + 1.0f);
  bell = ptx::exp2_approx(x * x * -0.7213475204f);
  float p = t * 1.061405429f - 1.453152027f;
  p = p * t + 1.421413741f;
  p = p * t - 0.284496736f;
  p = p * t + 0.254829592f;
  const float tail = 0.5f * p * t * bell;
  return x > 0.0f ? 1.0f - tail : tail;
}
__device__ inline float gelu_erf_fast(float x) {
  float bell;
  return x * normal_distribution_fast(x, bell);
}
__device__ inline float gelu_erf_gradient_fast(float value) {
  float bell;
  const float distribution = normal_distribution_fast(value, bell);
  return fminf(30.0f, fmaxf(-30.0f, value)) * (bell * 0.398942280401f) + distribution;
}

}  // namespace blutensor::cuda
