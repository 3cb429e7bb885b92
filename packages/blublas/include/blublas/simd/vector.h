// One vector of float32 for the instruction set that the including file is compiled for.
//
//   AVX-512 (F, BW, DQ, VL)   16 lanes   blublas::simd::avx512
//   AVX2 and FMA               8 lanes   blublas::simd::avx2
//   anything else              1 lane    blublas::simd::portable
//
// The names below mean the same in all three, so mathematics is written once (math.h) and gives the same bits
// everywhere: every operation here is one IEEE operation, rounded once. The instruction set is part of the namespace,
// hence of every mangled name: the linker can never hand AVX-512 code to a file that was compiled for less.
//
//   F   float lanes       I   int32 lanes       M   lane mask
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#if defined(__AVX2__) && defined(__FMA__)
// GCC 12 takes the "undefined" start values of its own intrinsics for mistakes of ours (GCC bug 105593).
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#endif

namespace blublas::simd {

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)

inline namespace avx512 {

inline constexpr int kLanes = 16;
using F = __m512;
using I = __m512i;
using M = __mmask16;

inline M first_lanes(int64_t n) { return static_cast<M>((1u << n) - 1u); }  // 0 <= n < kLanes
inline F load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, F v) { _mm512_storeu_ps(p, v); }
inline F load_first(const float* p, int64_t n) { return _mm512_maskz_loadu_ps(first_lanes(n), p); }  // the rest: 0
inline void store_first(float* p, F v, int64_t n) { _mm512_mask_storeu_ps(p, first_lanes(n), v); }
inline F broadcast(float v) { return _mm512_set1_ps(v); }
inline I broadcast_int(int32_t v) { return _mm512_set1_epi32(v); }

inline F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }    // a b + c
inline F fnma(F a, F b, F c) { return _mm512_fnmadd_ps(a, b, c); }  // c - a b
inline F min(F a, F b) { return _mm512_min_ps(a, b); }              // b when either is NaN
inline F max(F a, F b) { return _mm512_max_ps(a, b); }              // b when either is NaN
inline F sqrt(F a) { return _mm512_sqrt_ps(a); }
inline F round_even(F a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline I to_int(F a) { return _mm512_cvtps_epi32(a); }
inline F to_float(I a) { return _mm512_cvtepi32_ps(a); }
inline I bits(F a) { return _mm512_castps_si512(a); }
inline F from_bits(I a) { return _mm512_castsi512_ps(a); }
inline I add(I a, I b) { return _mm512_add_epi32(a, b); }
inline I subtract(I a, I b) { return _mm512_sub_epi32(a, b); }
inline I shift_left(I a, int n) { return _mm512_slli_epi32(a, static_cast<unsigned>(n)); }
inline I shift_right(I a, int n) { return _mm512_srai_epi32(a, static_cast<unsigned>(n)); }  // arithmetic
inline F absolute(F a) { return _mm512_andnot_ps(_mm512_set1_ps(-0.0f), a); }
inline F negate(F a) { return _mm512_xor_ps(_mm512_set1_ps(-0.0f), a); }
inline F copy_sign(F magnitude, F sign) {
  return _mm512_or_ps(absolute(magnitude), _mm512_and_ps(_mm512_set1_ps(-0.0f), sign));
}

inline M less(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
inline M less_equal(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_LE_OQ); }
inline M equal(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
inline M is_nan(F a) { return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q); }
inline M both(M a, M b) { return static_cast<M>(a & b); }
inline M either(M a, M b) { return static_cast<M>(a | b); }
inline F select(M m, F yes, F no) { return _mm512_mask_blend_ps(m, no, yes); }

// bfloat16 and float16 in memory, float32 in registers; rounded to nearest even, NaN stays NaN.
inline F load_bfloat16(const uint16_t* p) {
  return _mm512_castsi512_ps(
      _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))), 16));
}
inline void store_bfloat16(uint16_t* p, F v) {
  const __m512i word = _mm512_castps_si512(v), high = _mm512_srli_epi32(word, 16);
  const __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
  const __m512i rounded =
      _mm512_srli_epi32(_mm512_add_epi32(word, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
  const __m512i quiet = _mm512_or_si512(high, _mm512_set1_epi32(0x40));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtepi32_epi16(_mm512_mask_blend_epi32(is_nan(v), rounded, quiet)));
}
inline F load_float16(const uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline void store_float16(uint16_t* p, F v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

}  // namespace avx512

#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

inline namespace avx2 {

inline constexpr int kLanes = 8;
using F = __m256;
using I = __m256i;
using M = __m256;  // all bits of a lane set or none

inline I lanes_below(int64_t n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
inline F load(const float* p) { return _mm256_loadu_ps(p); }
inline void store(float* p, F v) { _mm256_storeu_ps(p, v); }
inline F load_first(const float* p, int64_t n) { return _mm256_maskload_ps(p, lanes_below(n)); }  // the rest: 0
inline void store_first(float* p, F v, int64_t n) { _mm256_maskstore_ps(p, lanes_below(n), v); }
inline F broadcast(float v) { return _mm256_set1_ps(v); }
inline I broadcast_int(int32_t v) { return _mm256_set1_epi32(v); }

inline F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }    // a b + c
inline F fnma(F a, F b, F c) { return _mm256_fnmadd_ps(a, b, c); }  // c - a b
inline F min(F a, F b) { return _mm256_min_ps(a, b); }              // b when either is NaN
inline F max(F a, F b) { return _mm256_max_ps(a, b); }              // b when either is NaN
inline F sqrt(F a) { return _mm256_sqrt_ps(a); }
inline F round_even(F a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline I to_int(F a) { return _mm256_cvtps_epi32(a); }
inline F to_float(I a) { return _mm256_cvtepi32_ps(a); }
inline I bits(F a) { return _mm256_castps_si256(a); }
inline F from_bits(I a) { return _mm256_castsi256_ps(a); }
inline I add(I a, I b) { return _mm256_add_epi32(a, b); }
inline I subtract(I a, I b) { return _mm256_sub_epi32(a, b); }
inline I shift_left(I a, int n) { return _mm256_slli_epi32(a, n); }
inline I shift_right(I a, int n) { return _mm256_srai_epi32(a, n); }  // arithmetic
inline F absolute(F a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
inline F negate(F a) { return _mm256_xor_ps(_mm256_set1_ps(-0.0f), a); }
inline F copy_sign(F magnitude, F sign) {
  return _mm256_or_ps(absolute(magnitude), _mm256_and_ps(_mm256_set1_ps(-0.0f), sign));
}

inline M less(F a, F b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
inline M less_equal(F a, F b) { return _mm256_cmp_ps(a, b, _CMP_LE_OQ); }
inline M equal(F a, F b) { return _mm256_cmp_ps(a, b, _CMP_EQ_OQ); }
inline M is_nan(F a) { return _mm256_cmp_ps(a, a, _CMP_UNORD_Q); }
inline M both(M a, M b) { return _mm256_and_ps(a, b); }
inline M either(M a, M b) { return _mm256_or_ps(a, b); }
inline F select(M m, F yes, F no) { return _mm256_blendv_ps(no, yes, m); }

// bfloat16 and float16 in memory, float32 in registers; rounded to nearest even, NaN stays NaN.
inline F load_bfloat16(const uint16_t* p) {
  return _mm256_castsi256_ps(
      _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), 16));
}
inline void store_bfloat16(uint16_t* p, F v) {
  const __m256i word = _mm256_castps_si256(v), high = _mm256_srli_epi32(word, 16);
  const __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
  const __m256i rounded =
      _mm256_srli_epi32(_mm256_add_epi32(word, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
  const __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
  const __m256i chosen = _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(is_nan(v)));
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(chosen, chosen), 0x08);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
}
inline F load_float16(const uint16_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline void store_float16(uint16_t* p, F v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

}  // namespace avx2

#else

inline namespace portable {

inline constexpr int kLanes = 1;
using F = float;
using I = int32_t;
using M = bool;

inline F load(const float* p) { return *p; }
inline void store(float* p, F v) { *p = v; }
inline F load_first(const float*, int64_t) { return 0.0f; }
inline void store_first(float*, F, int64_t) {}
inline F broadcast(float v) { return v; }
inline I broadcast_int(int32_t v) { return v; }

inline F fma(F a, F b, F c) { return std::fma(a, b, c); }    // a b + c
inline F fnma(F a, F b, F c) { return std::fma(-a, b, c); }  // c - a b
inline F min(F a, F b) { return a < b ? a : b; }             // b when either is NaN
inline F max(F a, F b) { return a > b ? a : b; }             // b when either is NaN
inline F sqrt(F a) { return std::sqrt(a); }
// Adding 1.5 * 2^23 leaves no bits below the units; enough for |a| < 2^22.
inline F round_even(F a) { return (a + 12582912.0f) - 12582912.0f; }
inline I to_int(F a) { return static_cast<I>(a); }  // of an integral value
inline F to_float(I a) { return static_cast<F>(a); }
inline I bits(F a) { return std::bit_cast<I>(a); }
inline F from_bits(I a) { return std::bit_cast<F>(a); }
inline I add(I a, I b) { return static_cast<I>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b)); }
inline I subtract(I a, I b) { return static_cast<I>(static_cast<uint32_t>(a) - static_cast<uint32_t>(b)); }
inline I shift_left(I a, int n) { return static_cast<I>(static_cast<uint32_t>(a) << n); }
inline I shift_right(I a, int n) { return a >> n; }  // arithmetic
inline F absolute(F a) { return std::fabs(a); }
inline F negate(F a) { return -a; }
inline F copy_sign(F magnitude, F sign) { return std::copysign(magnitude, sign); }

inline M less(F a, F b) { return a < b; }
inline M less_equal(F a, F b) { return a <= b; }
inline M equal(F a, F b) { return a == b; }
inline M is_nan(F a) { return a != a; }
inline M both(M a, M b) { return a && b; }
inline M either(M a, M b) { return a || b; }
inline F select(M m, F yes, F no) { return m ? yes : no; }

}  // namespace portable

#endif

}  // namespace blublas::simd
