// Float32 vectors for the kernel files of one instruction set: 16 lanes with AVX-512, 8 with AVX2.
//
// Only for files compiled with the flags of that instruction set. Everything is in an anonymous namespace, so that no function compiled
// for a newer CPU can be picked by the linker for an older one; for the same reason no standard templates are used here.
// `tail` arguments count the lanes in use, 0 < tail < kLanes; the other lanes read as zero and are not written.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace blutensor {
namespace {

#if defined(__AVX512F__)

using F32 = __m512;
constexpr int64_t kLanes = 16;

inline F32 set1(float v) { return _mm512_set1_ps(v); }
inline F32 load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, F32 v) { _mm512_storeu_ps(p, v); }
inline __mmask16 tail_mask(int64_t tail) { return static_cast<__mmask16>((1U << tail) - 1U); }
inline F32 load_tail(const float* p, int64_t tail) { return _mm512_maskz_loadu_ps(tail_mask(tail), p); }
// The unused lanes read as `fill`.
inline F32 load_tail(const float* p, int64_t tail, F32 fill) { return _mm512_mask_loadu_ps(fill, tail_mask(tail), p); }
inline void store_tail(float* p, int64_t tail, F32 v) { _mm512_mask_storeu_ps(p, tail_mask(tail), v); }
// v with zeros in the unused lanes.
inline F32 keep_tail(F32 v, int64_t tail) { return _mm512_maskz_mov_ps(tail_mask(tail), v); }
inline F32 fma(F32 a, F32 b, F32 c) { return _mm512_fmadd_ps(a, b, c); }
inline F32 sqrt(F32 v) { return _mm512_sqrt_ps(v); }
// NaN in `b` wins, NaN in `a` is dropped.
inline F32 max(F32 a, F32 b) { return _mm512_max_ps(a, b); }
// Lanes are added in a fixed tree.
inline float sum_lanes(F32 v) {
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
  __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  quarter = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
  return _mm_cvtss_f32(_mm_add_ss(quarter, _mm_shuffle_ps(quarter, quarter, 1)));
}
inline float max_lanes(F32 v) { return _mm512_reduce_max_ps(v); }
// 2^n v for integral n; gradual underflow included.
inline F32 scale_by_power_of_two(F32 v, F32 n) { return _mm512_scalef_ps(v, n); }
inline F32 round_to_integer(F32 v) { return _mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

using F64 = __m512d;
inline F64 set1_double(double v) { return _mm512_set1_pd(v); }
inline F64 low_doubles(F32 v) { return _mm512_cvtps_pd(_mm512_castps512_ps256(v)); }
inline F64 high_doubles(F32 v) { return _mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1)); }
inline F64 fma(F64 a, F64 b, F64 c) { return _mm512_fmadd_pd(a, b, c); }
inline double sum_lanes(F64 v) {
  const __m256d half = _mm256_add_pd(_mm512_castpd512_pd256(v), _mm512_extractf64x4_pd(v, 1));
  const __m128d quarter = _mm_add_pd(_mm256_castpd256_pd128(half), _mm256_extractf128_pd(half, 1));
  return _mm_cvtsd_f64(_mm_add_sd(quarter, _mm_unpackhi_pd(quarter, quarter)));
}

#else  // AVX2 and FMA

using F32 = __m256;
constexpr int64_t kLanes = 8;

inline F32 set1(float v) { return _mm256_set1_ps(v); }
inline F32 load(const float* p) { return _mm256_loadu_ps(p); }
inline void store(float* p, F32 v) { _mm256_storeu_ps(p, v); }
inline __m256i tail_mask(int64_t tail) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(tail)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
inline F32 load_tail(const float* p, int64_t tail) { return _mm256_maskload_ps(p, tail_mask(tail)); }
inline F32 load_tail(const float* p, int64_t tail, F32 fill) {
  const __m256i mask = tail_mask(tail);
  return _mm256_blendv_ps(fill, _mm256_maskload_ps(p, mask), _mm256_castsi256_ps(mask));
}
inline void store_tail(float* p, int64_t tail, F32 v) { _mm256_maskstore_ps(p, tail_mask(tail), v); }
inline F32 keep_tail(F32 v, int64_t tail) { return _mm256_and_ps(v, _mm256_castsi256_ps(tail_mask(tail))); }
inline F32 fma(F32 a, F32 b, F32 c) { return _mm256_fmadd_ps(a, b, c); }
inline F32 sqrt(F32 v) { return _mm256_sqrt_ps(v); }
inline F32 max(F32 a, F32 b) { return _mm256_max_ps(a, b); }
inline float sum_lanes(F32 v) {
  __m128 half = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  half = _mm_add_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_add_ss(half, _mm_shuffle_ps(half, half, 1)));
}
inline float max_lanes(F32 v) {
  __m128 half = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  half = _mm_max_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_max_ss(half, _mm_shuffle_ps(half, half, 1)));
}
// In two factors, so that results below the smallest normal number come out; |n| <= 252.
inline F32 scale_by_power_of_two(F32 v, F32 n) {
  const __m256i whole = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(whole, 1), rest = _mm256_sub_epi32(whole, half);
  const __m256i bias = _mm256_set1_epi32(127);
  const F32 first = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23));
  const F32 second = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23));
  return _mm256_mul_ps(_mm256_mul_ps(v, first), second);
}
inline F32 round_to_integer(F32 v) { return _mm256_round_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

using F64 = __m256d;
inline F64 set1_double(double v) { return _mm256_set1_pd(v); }
inline F64 low_doubles(F32 v) { return _mm256_cvtps_pd(_mm256_castps256_ps128(v)); }
inline F64 high_doubles(F32 v) { return _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1)); }
inline F64 fma(F64 a, F64 b, F64 c) { return _mm256_fmadd_pd(a, b, c); }
inline double sum_lanes(F64 v) {
  const __m128d half = _mm_add_pd(_mm256_castpd256_pd128(v), _mm256_extractf128_pd(v, 1));
  return _mm_cvtsd_f64(_mm_add_sd(half, _mm_unpackhi_pd(half, half)));
}

#endif

// exp(v) for v <= 0 (also -inf and NaN), within 1 unit in the last place: exp(v) = 2^n exp(r), n = round(v / ln 2), |r| <= ln(2) / 2, and
// exp(r) = 1 + r + r^2 p(r) with p the degree-4 Chebyshev fit of (exp(r) - 1 - r) / r^2 (relative error 1.1e-8).
inline F32 exp_nonpositive(F32 v) {
  v = max(set1(-150.0F), v);  // below, the result is 0; the order of operands keeps NaN
  const F32 n = round_to_integer(v * set1(1.44269504F));
  F32 r = fma(n, set1(-0.693359375F), v);  // ln 2 in two parts, the first with 9 bits: n times it is exact
  r = fma(n, set1(2.12194440e-4F), r);
  F32 p = set1(1.3933734e-3F);
  p = fma(p, r, set1(8.363236e-3F));
  p = fma(p, r, set1(4.1666463e-2F));
  p = fma(p, r, set1(0.16666576F));
  p = fma(p, r, set1(0.5F));
  const F32 result = fma(p * r, r, r) + set1(1.0F);
  return scale_by_power_of_two(result, n);
}

}  // namespace
}  // namespace blutensor
