// Work across the lanes of blublas/simd/vector.h, and doubles beside its floats: sums, maxima, wider accumulators.
// Only for the files of one instruction set; internal linkage throughout.
#pragma once

#include <cstdint>

#include <blublas/simd/vector.h>

namespace blutensor {
namespace {

namespace simd = blublas::simd;
using simd::F;

// Lanes are added in a fixed order: halves, quarters, ...
[[maybe_unused]] inline float sum_lanes(__m256 v) {
  __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  quarter = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
  return _mm_cvtss_f32(_mm_add_ss(quarter, _mm_movehdup_ps(quarter)));
}
[[maybe_unused]] inline double sum_lanes(__m256d v) {
  const __m128d half = _mm_add_pd(_mm256_castpd256_pd128(v), _mm256_extractf128_pd(v, 1));
  return _mm_cvtsd_f64(_mm_add_sd(half, _mm_unpackhi_pd(half, half)));
}
[[maybe_unused]] inline float max_lanes(__m256 v) {
  __m128 quarter = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  quarter = _mm_max_ps(quarter, _mm_movehl_ps(quarter, quarter));
  return _mm_cvtss_f32(_mm_max_ss(quarter, _mm_movehdup_ps(quarter)));
}
[[maybe_unused]] inline float square_root(float v) { return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(v))); }

#if defined(__AVX512F__)

[[maybe_unused]] inline float sum_lanes(__m512 v) {
  return sum_lanes(_mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1)));
}
[[maybe_unused]] inline double sum_lanes(__m512d v) {
  return sum_lanes(_mm256_add_pd(_mm512_castpd512_pd256(v), _mm512_extractf64x4_pd(v, 1)));
}
[[maybe_unused]] inline float max_lanes(__m512 v) {
  return max_lanes(_mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1)));
}
// v with zeros behind its first n lanes, n < kLanes.
[[maybe_unused]] inline F keep_first(F v, int64_t n) { return _mm512_maskz_mov_ps(simd::first_lanes(n), v); }
// The first n values at p, `fill` in the other lanes.
[[maybe_unused]] inline F load_first_or(const float* p, int64_t n, F fill) {
  return _mm512_mask_loadu_ps(fill, simd::first_lanes(n), p);
}

using D = __m512d;  // half as many lanes as F
[[maybe_unused]] inline D zero_doubles() { return _mm512_setzero_pd(); }
[[maybe_unused]] inline D low_doubles(F v) { return _mm512_cvtps_pd(_mm512_castps512_ps256(v)); }
[[maybe_unused]] inline D high_doubles(F v) { return _mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1)); }
[[maybe_unused]] inline D fma(D a, D b, D c) { return _mm512_fmadd_pd(a, b, c); }

#else

[[maybe_unused]] inline F keep_first(F v, int64_t n) {
  return _mm256_and_ps(v, _mm256_castsi256_ps(simd::lanes_below(n)));
}
[[maybe_unused]] inline F load_first_or(const float* p, int64_t n, F fill) {
  return _mm256_blendv_ps(fill, simd::load_first(p, n), _mm256_castsi256_ps(simd::lanes_below(n)));
}

using D = __m256d;
[[maybe_unused]] inline D zero_doubles() { return _mm256_setzero_pd(); }
[[maybe_unused]] inline D low_doubles(F v) { return _mm256_cvtps_pd(_mm256_castps256_ps128(v)); }
[[maybe_unused]] inline D high_doubles(F v) { return _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1)); }
[[maybe_unused]] inline D fma(D a, D b, D c) { return _mm256_fmadd_pd(a, b, c); }

#endif

}  // namespace
}  // namespace blutensor
