// 2^x for sums of weights (softmax, log-sum-exp, attention), on vectors of float32.
//
// Differs from exp in math.h in what it does with results below 2^-126: they are 0. Softmax adds them to something that is at
// least 1, and processors take a hundred times as long for an operation that gives a denormal number. Within 0.51 ulp of
// rounding plus 2^-26 relative otherwise (degree 6, Cephes' coefficients); NaN stays NaN; 2^128 and beyond are infinity.
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

inline F exp2_flushed(F x) {
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
  const M normal = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ);
  const F whole = round_even(x);
  return _mm512_maskz_scalef_ps(normal, exp2_fraction(x - whole), whole);
#else
  const F inside = min(broadcast(128.0f), max(broadcast(-126.0f), x));  // NaN passes
  const F finite = select(is_nan(x), broadcast(0.0f), inside);
  const F whole = round_even(finite);
  const F power = from_bits(shift_left(add(to_int(whole), broadcast_int(127)), 23));
  return select(less(x, broadcast(-126.0f)), broadcast(0.0f), exp2_fraction(inside - whole) * power);
#endif
}

}  // inline namespace of the instruction set

}  // namespace blublas::simd
