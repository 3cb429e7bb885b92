// 256-bit vectors of float and double; vector_avx512.h has the interface's comments.
// Include only in files compiled for AVX2 and FMA: everything is internal to them.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace blublas {
namespace {

// All ones for the first n elements: a window into this table.
alignas(64) constexpr int32_t kMask32[16] = {-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0};
alignas(64) constexpr int64_t kMask64[8] = {-1, -1, -1, -1, 0, 0, 0, 0};

struct Float8 {
  using Element = float;
  static constexpr int64_t width = 8;
  __m256 v;

  static Float8 zero() { return {_mm256_setzero_ps()}; }
  static Float8 all(float x) { return {_mm256_set1_ps(x)}; }
  static Float8 load(const float* p) { return {_mm256_loadu_ps(p)}; }
  static Float8 load(const float* p, int64_t n) { return {_mm256_maskload_ps(p, mask(n))}; }
  void store(float* p) const { _mm256_storeu_ps(p, v); }
  void store(float* p, int64_t n) const { _mm256_maskstore_ps(p, mask(n), v); }
  static Float8 load_bfloat16(const uint16_t* p) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(wide, 16))};
  }
  static Float8 load_bfloat16(const uint16_t* p, int64_t n) {
    uint16_t copy[8] = {};
    std::memcpy(copy, p, static_cast<size_t>(n) * 2);
    return load_bfloat16(copy);
  }
  void store_bfloat16(uint16_t* p) const { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), narrow()); }
  void store_bfloat16(uint16_t* p, int64_t n) const {
    uint16_t copy[8];
    store_bfloat16(copy);
    std::memcpy(p, copy, static_cast<size_t>(n) * 2);
  }

  friend Float8 operator+(Float8 x, Float8 y) { return {_mm256_add_ps(x.v, y.v)}; }
  friend Float8 operator-(Float8 x, Float8 y) { return {_mm256_sub_ps(x.v, y.v)}; }
  friend Float8 operator*(Float8 x, Float8 y) { return {_mm256_mul_ps(x.v, y.v)}; }
  friend Float8 operator/(Float8 x, Float8 y) { return {_mm256_div_ps(x.v, y.v)}; }
  static Float8 fma(Float8 x, Float8 y, Float8 z) { return {_mm256_fmadd_ps(x.v, y.v, z.v)}; }
  static Float8 fnma(Float8 x, Float8 y, Float8 z) { return {_mm256_fnmadd_ps(x.v, y.v, z.v)}; }
  static Float8 clamp(Float8 x, float low, float high) {
    return {_mm256_min_ps(_mm256_set1_ps(high), _mm256_max_ps(_mm256_set1_ps(low), x.v))};
  }
  static Float8 round(Float8 x) { return {_mm256_round_ps(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
  static Float8 abs(Float8 x) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0F), x.v)}; }
  // In two steps, each a normal power of two, for |n| <= 252.
  static Float8 scale(Float8 x, Float8 n) {
    const __m256i whole = _mm256_cvtps_epi32(n.v), half = _mm256_srai_epi32(whole, 1);
    return {_mm256_mul_ps(_mm256_mul_ps(x.v, power(half)), power(_mm256_sub_epi32(whole, half)))};
  }
  static Float8 select_negative(Float8 s, Float8 negative, Float8 otherwise) {
    return {_mm256_blendv_ps(otherwise.v, negative.v, _mm256_cmp_ps(s.v, _mm256_setzero_ps(), _CMP_LT_OQ))};
  }
  float sum() const {
    const __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 pair = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
    return _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)));
  }
  static void transpose(Float8 (&rows)[8]);

 private:
  static __m256i mask(int64_t n) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(kMask32 + 8 - n)); }
  static __m256 power(__m256i n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
  }
  __m128i narrow() const {
    const __m256i bits = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i upper = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(upper), _mm256_extracti128_si256(upper, 1));
  }
};

struct Double4 {
  using Element = double;
  static constexpr int64_t width = 4;
  __m256d v;

  static Double4 zero() { return {_mm256_setzero_pd()}; }
  static Double4 all(double x) { return {_mm256_set1_pd(x)}; }
  static Double4 load(const double* p) { return {_mm256_loadu_pd(p)}; }
  static Double4 load(const double* p, int64_t n) { return {_mm256_maskload_pd(p, mask(n))}; }
  void store(double* p) const { _mm256_storeu_pd(p, v); }
  void store(double* p, int64_t n) const { _mm256_maskstore_pd(p, mask(n), v); }

  friend Double4 operator+(Double4 x, Double4 y) { return {_mm256_add_pd(x.v, y.v)}; }
  friend Double4 operator-(Double4 x, Double4 y) { return {_mm256_sub_pd(x.v, y.v)}; }
  friend Double4 operator*(Double4 x, Double4 y) { return {_mm256_mul_pd(x.v, y.v)}; }
  friend Double4 operator/(Double4 x, Double4 y) { return {_mm256_div_pd(x.v, y.v)}; }
  static Double4 fma(Double4 x, Double4 y, Double4 z) { return {_mm256_fmadd_pd(x.v, y.v, z.v)}; }
  static Double4 fnma(Double4 x, Double4 y, Double4 z) { return {_mm256_fnmadd_pd(x.v, y.v, z.v)}; }
  static Double4 clamp(Double4 x, double low, double high) {
    return {_mm256_min_pd(_mm256_set1_pd(high), _mm256_max_pd(_mm256_set1_pd(low), x.v))};
  }
  static Double4 round(Double4 x) { return {_mm256_round_pd(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
  static Double4 abs(Double4 x) { return {_mm256_andnot_pd(_mm256_set1_pd(-0.0), x.v)}; }
  static Double4 scale(Double4 x, Double4 n) {
    const __m128i whole = _mm256_cvtpd_epi32(n.v), half = _mm_srai_epi32(whole, 1);
    return {_mm256_mul_pd(_mm256_mul_pd(x.v, power(half)), power(_mm_sub_epi32(whole, half)))};
  }
  static Double4 select_negative(Double4 s, Double4 negative, Double4 otherwise) {
    return {_mm256_blendv_pd(otherwise.v, negative.v, _mm256_cmp_pd(s.v, _mm256_setzero_pd(), _CMP_LT_OQ))};
  }
  double sum() const {
    const __m128d pair = _mm_add_pd(_mm256_castpd256_pd128(v), _mm256_extractf128_pd(v, 1));
    return _mm_cvtsd_f64(_mm_add_sd(pair, _mm_unpackhi_pd(pair, pair)));
  }
  static void transpose(Double4 (&rows)[4]);

 private:
  static __m256i mask(int64_t n) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(kMask64 + 4 - n)); }
  static __m256d power(__m128i n) {
    return _mm256_castsi256_pd(
        _mm256_slli_epi64(_mm256_add_epi64(_mm256_cvtepi32_epi64(n), _mm256_set1_epi64x(1023)), 52));
  }
};

inline void Float8::transpose(Float8 (&r)[8]) {
  __m256 t[8], u[8];
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps(r[i].v, r[i + 1].v);
    t[i + 1] = _mm256_unpackhi_ps(r[i].v, r[i + 1].v);
  }
  for (int q = 0; q < 8; q += 4) {
    u[q] = _mm256_shuffle_ps(t[q], t[q + 2], 0x44);
    u[q + 1] = _mm256_shuffle_ps(t[q], t[q + 2], 0xee);
    u[q + 2] = _mm256_shuffle_ps(t[q + 1], t[q + 3], 0x44);
    u[q + 3] = _mm256_shuffle_ps(t[q + 1], t[q + 3], 0xee);
  }
  for (int s = 0; s < 4; ++s) {
    r[s].v = _mm256_permute2f128_ps(u[s], u[4 + s], 0x20);
    r[4 + s].v = _mm256_permute2f128_ps(u[s], u[4 + s], 0x31);
  }
}

inline void Double4::transpose(Double4 (&r)[4]) {
  const __m256d a = _mm256_unpacklo_pd(r[0].v, r[1].v), b = _mm256_unpackhi_pd(r[0].v, r[1].v);
  const __m256d c = _mm256_unpacklo_pd(r[2].v, r[3].v), d = _mm256_unpackhi_pd(r[2].v, r[3].v);
  r[0].v = _mm256_permute2f128_pd(a, c, 0x20);
  r[1].v = _mm256_permute2f128_pd(b, d, 0x20);
  r[2].v = _mm256_permute2f128_pd(a, c, 0x31);
  r[3].v = _mm256_permute2f128_pd(b, d, 0x31);
}

}  // namespace
}  // namespace blublas
