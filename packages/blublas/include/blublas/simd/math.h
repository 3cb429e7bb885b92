// exp, log, tanh, erf, GELU and its derivative on vectors of float32.
//
// Every function is written once over the lanes of vector.h; all instruction sets and the portable form give the same
// bits. Polynomials are minimax fits (Lawson's reweighting in 120-bit arithmetic, coefficients rounded to float32 one
// after the other with the remaining ones refitted: lab/simd/fit_polynomials.py). Errors against float64 over
// every thirteenth float32, in units of the last place:
//
//   exp 1.02    log 0.80    tanh 1.33    erf 1.05     (blutensor's tests/ops/test_elementwise.py)
//
// Special values follow IEEE 754 and C's <math.h>: NaN stays NaN, exp(inf) = inf, log(0) = -inf, log(-1) = NaN,
// tanh(-0) = -0; denormal inputs and results are exact to the same bound.
#pragma once

#include <limits>

#include <blublas/simd/vector.h>

namespace blublas::simd {

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
inline namespace avx512 {
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
inline namespace avx2 {
#else
inline namespace portable {
#endif

// y 2^n for |n| <= 252, rounded once: the first factor keeps every y of ordinary size normal.
inline F scale_by_power_of_2(F y, I n) {
  const I half = shift_right(n, 1), rest = subtract(n, half), bias = broadcast_int(127);
  return y * from_bits(shift_left(add(half, bias), 23)) * from_bits(shift_left(add(rest, bias), 23));
}

// e^x = 2^n e^r with n = round(x / ln 2), |r| <= ln 2 / 2; e^r = 1 + r + r^2 q(r).
inline F exp(F x) {
  x = min(broadcast(89.0f), max(broadcast(-104.0f), x));  // results beyond are inf and 0; NaN passes
  const F n = round_even(x * broadcast(1.44269504f));
  F r = fnma(n, broadcast(0x1.62e4p-1f), x);  // ln 2 in two parts: the first product is exact
  r = fnma(n, broadcast(0x1.7f7d1cp-20f), r);
  F q = fma(r, broadcast(0x1.6a3d12p-10f), broadcast(0x1.123858p-7f));
  q = fma(q, r, broadcast(0x1.5558bep-5f));
  q = fma(q, r, broadcast(0x1.555494p-3f));
  q = fma(q, r, broadcast(0x1.fffffcp-2f));
  const F y = broadcast(1.0f) + fma(r * r, q, r);
  return select(is_nan(x), x, scale_by_power_of_2(y, to_int(select(is_nan(x), broadcast(0.0f), n))));
}

// log x = e ln 2 + log(1 + f) with x = 2^e (1 + f), sqrt(1/2) <= 1 + f < sqrt 2; log(1 + f) = f - f^2 / 2 + f^3 P(f).
inline F log(F x) {
  const F smallest_normal = broadcast(0x1p-126f), infinity = broadcast(std::numeric_limits<float>::infinity());
  const M denormal = less(x, smallest_normal);
  const F scaled = select(denormal, x * broadcast(0x1p23f), x);
  const I word = bits(scaled);
  const I exponent = shift_right(subtract(word, broadcast_int(0x3f3504f3)), 23);
  const F f = from_bits(subtract(word, shift_left(exponent, 23))) - broadcast(1.0f);
  const F e = to_float(exponent) - select(denormal, broadcast(23.0f), broadcast(0.0f));
  const F s = f * f;
  F p = fma(f, broadcast(0x1.147204p-4f), broadcast(-0x1.de00e4p-4f));
  p = fma(p, f, broadcast(0x1.e6bff2p-4f));
  p = fma(p, f, broadcast(-0x1.fc28dep-4f));
  p = fma(p, f, broadcast(0x1.233ba4p-3f));
  p = fma(p, f, broadcast(-0x1.555c44p-3f));
  p = fma(p, f, broadcast(0x1.99a476p-3f));
  p = fma(p, f, broadcast(-0x1.000006p-2f));
  p = fma(p, f, broadcast(0x1.555548p-2f));
  F r = f * s * p;
  r = fma(e, broadcast(0x1.7f7d1cp-20f), r);
  r = fnma(broadcast(0.5f), s, r);
  r = fma(e, broadcast(0x1.62e4p-1f), f + r);
  r = select(less(x, infinity), r, x);  // inf and NaN
  r = select(less(x, broadcast(0.0f)), broadcast(std::numeric_limits<float>::quiet_NaN()), r);
  return select(equal(x, broadcast(0.0f)), negate(infinity), r);
}

// |x| < 0.625: x + x^3 P(x^2); beyond: 1 - 2 / (e^(2|x|) + 1) with the sign of x.
inline F tanh(F x) {
  const F t = absolute(x), s = x * x, one = broadcast(1.0f), two = broadcast(2.0f);
  F p = fma(s, broadcast(-0x1.750ce4p-8f), broadcast(0x1.51f8cep-6f));
  p = fma(p, s, broadcast(-0x1.b835a4p-5f));
  p = fma(p, s, broadcast(0x1.1106f6p-3f));
  p = fma(p, s, broadcast(-0x1.555532p-2f));
  const F small = fma(x * s, p, x);
  const F large = one - two / (exp(t + t) + one);
  return copy_sign(select(less(t, broadcast(0.625f)), small, large), x);  // -0 stays -0
}

// |x| < 0.92: x + x P(x^2); beyond: 1 - e^-r, r = |x| + |x| Q(|x|) = -log(erfc |x|), with the sign of x.
inline F erf(F x) {
  const F t = absolute(x), s = x * x;
  F p = fma(s, broadcast(-0x1.38741cp-11f), broadcast(0x1.46d9e2p-8f));
  p = fma(p, s, broadcast(-0x1.b67c04p-6f));
  p = fma(p, s, broadcast(0x1.ce1986p-4f));
  p = fma(p, s, broadcast(-0x1.8126e2p-2f));
  p = fma(p, s, broadcast(0x1.06eba6p-3f));
  const F small = fma(x, p, x);
  const F u = min(broadcast(4.0f), t);  // erf is 1 beyond; NaN passes
  F q = fma(u, broadcast(0x1.829408p-17f), broadcast(-0x1.55756ap-12f));
  q = fma(q, u, broadcast(0x1.dee682p-9f));
  q = fma(q, u, broadcast(-0x1.85b2a6p-6f));
  q = fma(q, u, broadcast(0x1.b340e8p-4f));
  q = fma(q, u, broadcast(0x1.45308ap-1f));
  q = fma(q, u, broadcast(0x1.077ac8p-3f));
  const F large = copy_sign(broadcast(1.0f) - exp(negate(fma(u, q, u))), x);
  return select(less(t, broadcast(0.92f)), small, large);
}

// Sine and cosine of 2 pi x for 0 <= x < 1: the remainder from a quarter turn is exact, |angle| <= pi / 4.
inline void sin_cos_turn(F x, F& sine, F& cosine) {
  const F quarters = round_even(x * broadcast(4.0f));  // 0 ... 4
  const F angle = fnma(broadcast(0.25f), quarters, x) * broadcast(6.28318531f), s = angle * angle;
  F p = fma(s, broadcast(-0x1.995408p-13f), broadcast(0x1.110778p-7f));
  p = fma(p, s, broadcast(-0x1.555546p-3f));
  const F sin_angle = fma(angle * s, p, angle);
  F q = fma(s, broadcast(0x1.99e914p-16f), broadcast(-0x1.6c0c2ap-10f));
  q = fma(q, s, broadcast(0x1.55554ap-5f));
  const F cos_angle = fma(s * s, q, fnma(broadcast(0.5f), s, broadcast(1.0f)));
  const M first = equal(quarters, broadcast(1.0f)), half = equal(quarters, broadcast(2.0f));
  const M third = equal(quarters, broadcast(3.0f)), swapped = either(first, third);
  const F along = select(swapped, cos_angle, sin_angle), across = select(swapped, sin_angle, cos_angle);
  sine = select(either(half, third), negate(along), along);
  cosine = select(either(first, half), negate(across), across);
}

// 1 / (1 + e^-x)
inline F sigmoid(F x) { return broadcast(1.0f) / (broadcast(1.0f) + exp(negate(x))); }

// GELU, tanh form: x (1 + tanh u) / 2 with u = sqrt(2/pi) (x + 0.044715 x^3), written as x sigmoid(2u): one
// exponential, and no cancellation for negative x.
inline F gelu_tanh(F x) {
  const F twice_u = x * fma(x * x, broadcast(0.0713548162726f), broadcast(1.59576912161f));
  return x / (broadcast(1.0f) + exp(negate(twice_u)));
}

// d/dx of the above: s + x s (1 - s) 2u', s = sigmoid(2u). Beyond |x| = 30 it is 0 or 1; cut there, so that x^2 stays
// finite.
inline F gelu_tanh_gradient(F x) {
  const F one = broadcast(1.0f);
  x = min(broadcast(30.0f), max(broadcast(-30.0f), x));  // NaN passes
  const F square = x * x;
  const F twice_u = x * fma(square, broadcast(0.0713548162726f), broadcast(1.59576912161f));
  const F slope = fma(square, broadcast(0.2140644488178f), broadcast(1.59576912161f));
  const F s = sigmoid(twice_u);
  return fma(x * s * (one - s), slope, s);
}

// GELU: x (1 + erf(x / sqrt 2)) / 2.
inline F gelu_erf(F x) {
  const F half = x * broadcast(0.5f);
  return fma(half, erf(x * broadcast(0.707106781187f)), half);
}

// d/dx of the above: Phi(x) + x phi(x), with phi the density and Phi the distribution of the normal law. Cut as above.
inline F gelu_erf_gradient(F x) {
  x = min(broadcast(30.0f), max(broadcast(-30.0f), x));  // NaN passes
  const F half = broadcast(0.5f);
  const F distribution = fma(half, erf(x * broadcast(0.707106781187f)), half);
  const F density = broadcast(0.398942280401f) * exp(x * x * broadcast(-0.5f));
  return fma(x, density, distribution);
}

}  // inline namespace of the instruction set

}  // namespace blublas::simd
