// 512-bit vectors of float and double behind one interface, so that kernels are written once. vector_avx2.h is the same
// in 256 bits.
// Include only in files compiled for AVX-512: everything is internal to them.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace blublas {
namespace {

struct Float16 {
  using Element = float;
  static constexpr int64_t width = 16;
  __m512 v;

  static Float16 zero() { return {_mm512_setzero_ps()}; }
  static Float16 all(float x) { return {_mm512_set1_ps(x)}; }
  static Float16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
  // n <= width elements; the rest is 0.
  static Float16 load(const float* p, int64_t n) { return {_mm512_maskz_loadu_ps(mask(n), p)}; }
  void store(float* p) const { _mm512_storeu_ps(p, v); }
  void store(float* p, int64_t n) const { _mm512_mask_storeu_ps(p, mask(n), v); }
  static Float16 load_bfloat16(const uint16_t* p) {
    return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static Float16 load_bfloat16(const uint16_t* p, int64_t n) { return widen(_mm256_maskz_loadu_epi16(mask(n), p)); }
  void store_bfloat16(uint16_t* p) const { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow()); }
  void store_bfloat16(uint16_t* p, int64_t n) const { _mm256_mask_storeu_epi16(p, mask(n), narrow()); }

  friend Float16 operator+(Float16 x, Float16 y) { return {_mm512_add_ps(x.v, y.v)}; }
  friend Float16 operator-(Float16 x, Float16 y) { return {_mm512_sub_ps(x.v, y.v)}; }
  friend Float16 operator*(Float16 x, Float16 y) { return {_mm512_mul_ps(x.v, y.v)}; }
  friend Float16 operator/(Float16 x, Float16 y) { return {_mm512_div_ps(x.v, y.v)}; }
  static Float16 fma(Float16 x, Float16 y, Float16 z) { return {_mm512_fmadd_ps(x.v, y.v, z.v)}; }    // x y + z
  static Float16 fnma(Float16 x, Float16 y, Float16 z) { return {_mm512_fnmadd_ps(x.v, y.v, z.v)}; }  // z - x y
  // Between low and high; NaN stays NaN.
  static Float16 clamp(Float16 x, float low, float high) {
    return {_mm512_min_ps(_mm512_set1_ps(high), _mm512_max_ps(_mm512_set1_ps(low), x.v))};
  }
  static Float16 round(Float16 x) { return {_mm512_roundscale_ps(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
  static Float16 abs(Float16 x) { return {_mm512_abs_ps(x.v)}; }
  // x 2^n for integral n, with denormal results.
  static Float16 scale(Float16 x, Float16 n) { return {_mm512_scalef_ps(x.v, n.v)}; }
  // negative where s < 0, otherwise elsewhere
  static Float16 select_negative(Float16 s, Float16 negative, Float16 otherwise) {
    return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(s.v, _mm512_setzero_ps(), _CMP_LT_OQ), otherwise.v, negative.v)};
  }
  // Sum of the elements, pairs first: the same order everywhere.
  float sum() const {
    const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    const __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    const __m128 pair = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
    return _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)));
  }
  static void transpose(Float16 (&rows)[16]);

 private:
  static __mmask16 mask(int64_t n) { return static_cast<__mmask16>((1U << n) - 1U); }
  static Float16 widen(__m256i bits) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
  }
  __m256i narrow() const {
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(
        _mm512_srli_epi32(_mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000)), 16));
  }
};

struct Double8 {
  using Element = double;
  static constexpr int64_t width = 8;
  __m512d v;

  static Double8 zero() { return {_mm512_setzero_pd()}; }
  static Double8 all(double x) { return {_mm512_set1_pd(x)}; }
  static Double8 load(const double* p) { return {_mm512_loadu_pd(p)}; }
  static Double8 load(const double* p, int64_t n) { return {_mm512_maskz_loadu_pd(mask(n), p)}; }
  void store(double* p) const { _mm512_storeu_pd(p, v); }
  void store(double* p, int64_t n) const { _mm512_mask_storeu_pd(p, mask(n), v); }

  friend Double8 operator+(Double8 x, Double8 y) { return {_mm512_add_pd(x.v, y.v)}; }
  friend Double8 operator-(Double8 x, Double8 y) { return {_mm512_sub_pd(x.v, y.v)}; }
  friend Double8 operator*(Double8 x, Double8 y) { return {_mm512_mul_pd(x.v, y.v)}; }
  friend Double8 operator/(Double8 x, Double8 y) { return {_mm512_div_pd(x.v, y.v)}; }
  static Double8 fma(Double8 x, Double8 y, Double8 z) { return {_mm512_fmadd_pd(x.v, y.v, z.v)}; }
  static Double8 fnma(Double8 x, Double8 y, Double8 z) { return {_mm512_fnmadd_pd(x.v, y.v, z.v)}; }
  static Double8 clamp(Double8 x, double low, double high) {
    return {_mm512_min_pd(_mm512_set1_pd(high), _mm512_max_pd(_mm512_set1_pd(low), x.v))};
  }
  static Double8 round(Double8 x) { return {_mm512_roundscale_pd(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
  static Double8 abs(Double8 x) { return {_mm512_abs_pd(x.v)}; }
  static Double8 scale(Double8 x, Double8 n) { return {_mm512_scalef_pd(x.v, n.v)}; }
  static Double8 select_negative(Double8 s, Double8 negative, Double8 otherwise) {
    return {_mm512_mask_blend_pd(_mm512_cmp_pd_mask(s.v, _mm512_setzero_pd(), _CMP_LT_OQ), otherwise.v, negative.v)};
  }
  double sum() const {
    const __m256d half = _mm256_add_pd(_mm512_castpd512_pd256(v), _mm512_extractf64x4_pd(v, 1));
    const __m128d pair = _mm_add_pd(_mm256_castpd256_pd128(half), _mm256_extractf128_pd(half, 1));
    return _mm_cvtsd_f64(_mm_add_sd(pair, _mm_unpackhi_pd(pair, pair)));
  }
  static void transpose(Double8 (&rows)[8]);

 private:
  static __mmask8 mask(int64_t n) { return static_cast<__mmask8>((1U << n) - 1U); }
};

inline void Float16::transpose(Float16 (&r)[16]) {
  __m512 t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_ps(r[i].v, r[i + 1].v);
    t[i + 1] = _mm512_unpackhi_ps(r[i].v, r[i + 1].v);
  }
  // u[4 q + s]: in each 128-bit lane l, column 4 l + s of rows 4 q to 4 q + 3.
  __m512 u[16];
  for (int q = 0; q < 16; q += 4) {
    u[q] = _mm512_shuffle_ps(t[q], t[q + 2], 0x44);
    u[q + 1] = _mm512_shuffle_ps(t[q], t[q + 2], 0xee);
    u[q + 2] = _mm512_shuffle_ps(t[q + 1], t[q + 3], 0x44);
    u[q + 3] = _mm512_shuffle_ps(t[q + 1], t[q + 3], 0xee);
  }
  for (int s = 0; s < 4; ++s) {
    const __m512 low_even = _mm512_shuffle_f32x4(u[s], u[4 + s], 0x88),
                 low_odd = _mm512_shuffle_f32x4(u[s], u[4 + s], 0xdd);
    const __m512 high_even = _mm512_shuffle_f32x4(u[8 + s], u[12 + s], 0x88),
                 high_odd = _mm512_shuffle_f32x4(u[8 + s], u[12 + s], 0xdd);
    r[s].v = _mm512_shuffle_f32x4(low_even, high_even, 0x88);
    r[4 + s].v = _mm512_shuffle_f32x4(low_odd, high_odd, 0x88);
    r[8 + s].v = _mm512_shuffle_f32x4(low_even, high_even, 0xdd);
    r[12 + s].v = _mm512_shuffle_f32x4(low_odd, high_odd, 0xdd);
  }
}

inline void Double8::transpose(Double8 (&r)[8]) {
  __m512d t[8];
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm512_unpacklo_pd(r[i].v, r[i + 1].v);
    t[i + 1] = _mm512_unpackhi_pd(r[i].v, r[i + 1].v);
  }
  for (int s = 0; s < 2; ++s) {
    const __m512d low_even = _mm512_shuffle_f64x2(t[s], t[2 + s], 0x88),
                  low_odd = _mm512_shuffle_f64x2(t[s], t[2 + s], 0xdd);
    const __m512d high_even = _mm512_shuffle_f64x2(t[4 + s], t[6 + s], 0x88),
                  high_odd = _mm512_shuffle_f64x2(t[4 + s], t[6 + s], 0xdd);
    r[s].v = _mm512_shuffle_f64x2(low_even, high_even, 0x88);
    r[2 + s].v = _mm512_shuffle_f64x2(low_odd, high_odd, 0x88);
    r[4 + s].v = _mm512_shuffle_f64x2(low_even, high_even, 0xdd);
    r[6 + s].v = _mm512_shuffle_f64x2(low_odd, high_odd, 0xdd);
  }
}

}  // namespace
}  // namespace blublas
