// Transposing strips of a float32 matrix, and lane numbers, for the attention kernels. Only for the files of one
// instruction set.
#pragma once

#include "ops/simd/lanes.h"

namespace blutensor {
namespace {

// 0, 1, 2, ...
inline F lane_index() {
  alignas(64) static constexpr float kIndex[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return simd::load(kIndex);
}

#if defined(__AVX512F__)

// out[c * out_stride + r] = rows[r][column + c] for kLanes rows and 4 columns.
inline void transpose_strip(const float* const* rows, int64_t column, float* out, int64_t out_stride) {
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
inline void transpose_strip(const float* const* rows, int64_t column, float* out, int64_t out_stride) {
  __m256 r[4];
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(rows[i] + column)),
                                _mm_loadu_ps(rows[i + 4] + column), 1);
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
}  // namespace blutensor
