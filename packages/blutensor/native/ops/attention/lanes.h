// Work across the lanes of a vector, which blublas/simd/vector.h leaves to its users: sums, maxima, transposes.
// For the AVX2 and AVX-512 kernels of attention, softmax and cross entropy; internal linkage throughout.
#pragma once

#include <cstdint>

#include <blublas/simd/exp2.h>
#include <blublas/simd/vector.h>

namespace {

namespace simd = blublas::simd;

constexpr float kInfinity = __builtin_inff();

// 0, 1, 2, ...
[[maybe_unused]] inline simd::F lane_index() {
  alignas(64) static constexpr float kIndex[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return simd::load(kIndex);
}

// The first n lanes (0 <= n < kLanes), the others read as `fill`.
[[maybe_unused]] inline simd::F load_first_or(const float* p, int64_t n, float fill) {
  return simd::select(simd::less(lane_index(), simd::broadcast(static_cast<float>(n))), simd::load_first(p, n),
                      simd::broadcast(fill));
}

// In a fixed order: halves, quarters, ...
[[maybe_unused]] inline float reduce_add(__m256 x) {
  __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  quarter = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
  return _mm_cvtss_f32(_mm_add_ss(quarter, _mm_movehdup_ps(quarter)));
}
[[maybe_unused]] inline float reduce_max(__m256 x) {
  __m128 quarter = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  quarter = _mm_max_ps(quarter, _mm_movehl_ps(quarter, quarter));
  return _mm_cvtss_f32(_mm_max_ss(quarter, _mm_movehdup_ps(quarter)));
}

#if defined(__AVX512F__)

[[maybe_unused]] inline float reduce_add(__m512 x) {
  return reduce_add(_mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1)));
}
[[maybe_unused]] inline float reduce_max(__m512 x) {
  return reduce_max(_mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1)));
}

// out[c * out_stride + r] = rows[r][column + c] for kLanes rows and 4 columns.
[[maybe_unused]] inline void transpose_strip(const float* const* rows, int64_t column, float* out, int64_t out_stride) {
  __m512 r[4];
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm512_castps128_ps512(_mm_loadu_ps(rows[i] + column));
    r[i] = _mm512_insertf32x4(r[i], _mm_loadu_ps(rows[i + 4] + column), 1);
    r[i] = _mm512_insertf32x4(r[i], _mm_loadu_ps(rows[i + 8] + column), 2);
    r[i] = _mm512_insertf32x4(r[i], _mm_loadu_ps(rows[i + 12] + column), 3);
  }
  const __m512d t0 = _mm512_castps_pd(_mm512_unpacklo_ps(r[0], r[1]));
  const __m512d t1 = _mm512_castps_pd(_mm512_unpackhi_ps(r[0], r[1]));
  const __m512d t2 = _mm512_castps_pd(_mm512_unpacklo_ps(r[2], r[3]));
  const __m512d t3 = _mm512_castps_pd(_mm512_unpackhi_ps(r[2], r[3]));
  simd::store(out, _mm512_castpd_ps(_mm512_unpacklo_pd(t0, t2)));
  simd::store(out + out_stride, _mm512_castpd_ps(_mm512_unpackhi_pd(t0, t2)));
  simd::store(out + 2 * out_stride, _mm512_castpd_ps(_mm512_unpacklo_pd(t1, t3)));
  simd::store(out + 3 * out_stride, _mm512_castpd_ps(_mm512_unpackhi_pd(t1, t3)));
}

#else

// out[c * out_stride + r] = rows[r][column + c] for kLanes rows and 4 columns.
[[maybe_unused]] inline void transpose_strip(const float* const* rows, int64_t column, float* out, int64_t out_stride) {
  __m256 r[4];
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(rows[i] + column)), _mm_loadu_ps(rows[i + 4] + column), 1);
  }
  const __m256d t0 = _mm256_castps_pd(_mm256_unpacklo_ps(r[0], r[1]));
  const __m256d t1 = _mm256_castps_pd(_mm256_unpackhi_ps(r[0], r[1]));
  const __m256d t2 = _mm256_castps_pd(_mm256_unpacklo_ps(r[2], r[3]));
  const __m256d t3 = _mm256_castps_pd(_mm256_unpackhi_ps(r[2], r[3]));
  simd::store(out, _mm256_castpd_ps(_mm256_unpacklo_pd(t0, t2)));
  simd::store(out + out_stride, _mm256_castpd_ps(_mm256_unpackhi_pd(t0, t2)));
  simd::store(out + 2 * out_stride, _mm256_castpd_ps(_mm256_unpacklo_pd(t1, t3)));
  simd::store(out + 3 * out_stride, _mm256_castpd_ps(_mm256_unpackhi_pd(t1, t3)));
}

#endif

}  // namespace
