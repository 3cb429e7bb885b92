// 2^x and e^x for sums of weights (softmax, log-sum-exp, attention), on vectors of float32.
//
// They differ from exp in math.h in what they do with results below 2^-126: those are 0. Softmax adds them to
// something that is at least 1, and processors take a hundred times as long for an operation that gives a denormal
// number. Otherwise within 1 unit in the last place (degree 6, Cephes' coefficients) for results up to 2^127; NaN
// stays NaN.
// All instruction sets and the portable form give the same bits.
#pragma once

#include <blublas/simd/vector.h>

namespace blublas::simd {

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
inline namespace avx512 {
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
inline namespace avx2 {
#else
inline namespace portable {
#endif

// 2^r for |r| <= 1/2
inline F exp2_fraction(F r) {
  F p = fma(broadcast(1.535336188319500e-4f), r, broadcast(1.339887440266574e-3f));
  p = fma(p, r, broadcast(9.618437357674640e-3f));
  p = fma(p, r, broadcast(5.550332471162809e-2f));
  p = fma(p, r, broadcast(2.402264791363012e-1f));
  p = fma(p, r, broadcast(6.931472028550421e-1f));
  return fma(p, r, broadcast(1.0f));
}

// 2^(whole + r) where x, the same number but for rounding, says whether the result is normal.
inline F exp2_flushed_parts(F x, F whole, F r) {
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
  return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ), exp2_fraction(r), whole);
#else
  const F exponent = select(is_nan(x), broadcast(0.0f), whole);
  const F power = from_bits(shift_left(add(to_int(exponent), broadcast_int(127)), 23));
  return select(less(x, broadcast(-126.0f)), broadcast(0.0f), exp2_fraction(r) * power);
#endif
}

// x with what lies far outside the range of results brought to its edge: keeps infinities out of the differences
// below. NaN passes.
inline F exp2_inside(F x) { return min(broadcast(128.0f), max(broadcast(-127.0f), x)); }

inline F exp2_flushed(F x) {
  x = exp2_inside(x);
  const F whole = round_even(x);
  return exp2_flushed_parts(x, whole, x - whole);
}

// log2(e) in two parts: the remainder r = x log2(e) - whole is exact but for its last rounding.
inline F exp_flushed(F x) {
  x = min(broadcast(88.8f), max(broadcast(-88.0f), x));
  const F scaled = x * broadcast(0x1.715476p+0f), whole = round_even(scaled);
  const F r = fma(x, broadcast(0x1.4ae0cp-26f), fma(x, broadcast(0x1.715476p+0f), negate(whole)));
  return exp2_flushed_parts(scaled, whole, r);
}

}  // inline namespace of the instruction set

}  // namespace blublas::simd
