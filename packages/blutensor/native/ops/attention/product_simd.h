// The two small matrix products that attention is made of, on float32 blocks that lie in L1 and L2.
//
//   C[rows, cols] (+)= A[rows, depth] * B[depth, cols]         A row-major:            a[i * lda + p]
//   C[rows, cols] (+)= At[depth, rows]^T * B[depth, cols]      A stored transposed:    a[p * lda + i]
//
// Register-blocked: a tile of M rows x N vectors stays in registers over the whole depth; each step loads N vectors
// of B and broadcasts M elements of A. rows is a multiple of 4 and cols of 16 (callers pad). Internal linkage; ISA
// files only.
#pragma once

#include <cstdint>

#include "ops/simd/lanes.h"

namespace blutensor {
namespace {

// What happens to C: overwritten, or C * row_scale + product (row_scale nullptr: 1).
struct Accumulate {
  bool add = false;
  const float* row_scale = nullptr;  // [rows]
};

template <int kRows, int kVectors, bool kTransposed>
inline void product_tile(int64_t depth, const float* a, int64_t lda, const float* b, int64_t ldb, float* c, int64_t ldc,
                         Accumulate how, int64_t first_row) {
  F sum[kRows][kVectors];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) sum[i][j] = simd::broadcast(0.0f);
  }
  for (int64_t p = 0; p < depth; ++p) {
    F right[kVectors];
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) right[j] = simd::load(b + j * simd::kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const F left = simd::broadcast(kTransposed ? a[i] : a[i * lda]);
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) sum[i][j] = simd::fma(left, right[j], sum[i][j]);
    }
    a += kTransposed ? lda : 1;
    b += ldb;
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
    float* row = c + i * ldc;
    if (!how.add) {
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) simd::store(row + j * simd::kLanes, sum[i][j]);
    } else if (how.row_scale == nullptr) {
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) {
        simd::store(row + j * simd::kLanes, simd::load(row + j * simd::kLanes) + sum[i][j]);
      }
    } else {
      const F factor = simd::broadcast(how.row_scale[first_row + i]);
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) {
        simd::store(row + j * simd::kLanes, simd::fma(simd::load(row + j * simd::kLanes), factor, sum[i][j]));
      }
    }
  }
}

// All rows of one panel of kVectors vectors: kTall rows at a time while a multiple of 4 remains, then 4 at a time.
template <int kTall, int kVectors, bool kTransposed>
inline void product_panel(int64_t rows, int64_t depth, const float* a, int64_t lda, const float* b, int64_t ldb,
                          float* c, int64_t ldc, Accumulate how) {
  const int64_t step = kTransposed ? 1 : lda;
  int64_t i = 0;
  if constexpr (kTall % 4 == 0) {
    for (; i + kTall <= rows; i += kTall) {
      product_tile<kTall, kVectors, kTransposed>(depth, a + i * step, lda, b, ldb, c + i * ldc, ldc, how, i);
    }
  } else {
    static_assert(kTall == 6);
    for (; i + 2 * kTall <= rows; i += 2 * kTall) {  // an even number of them leaves a multiple of 4
      product_tile<kTall, kVectors, kTransposed>(depth, a + i * step, lda, b, ldb, c + i * ldc, ldc, how, i);
      product_tile<kTall, kVectors, kTransposed>(depth, a + (i + kTall) * step, lda, b, ldb, c + (i + kTall) * ldc, ldc,
                                                 how, i + kTall);
    }
  }
  for (; i < rows; i += 4) {
    product_tile<4, kVectors, kTransposed>(depth, a + i * step, lda, b, ldb, c + i * ldc, ldc, how, i);
  }
}

// So many products are added in one chain before the sum goes to memory; longer chains round worse.
constexpr int64_t kLongestChain = 128;

template <bool kTransposed>
[[gnu::noinline]] void product(int64_t rows, int64_t cols, int64_t depth, const float* a, int64_t lda, const float* b,
                               int64_t ldb, float* c, int64_t ldc, Accumulate how = {}) {
  for (; depth > kLongestChain; depth -= kLongestChain) {
    product<kTransposed>(rows, cols, kLongestChain, a, lda, b, ldb, c, ldc, how);
    a += kTransposed ? kLongestChain * lda : kLongestChain;
    b += kLongestChain * ldb;
    how = {true, nullptr};
  }
  int64_t j = 0;
  if constexpr (simd::kLanes == 16) {
    for (; j + 64 <= cols; j += 64) product_panel<6, 4, kTransposed>(rows, depth, a, lda, b + j, ldb, c + j, ldc, how);
    if (j + 48 <= cols) {
      product_panel<8, 3, kTransposed>(rows, depth, a, lda, b + j, ldb, c + j, ldc, how);
      j += 48;
    }
    if (j + 32 <= cols) {
      product_panel<8, 2, kTransposed>(rows, depth, a, lda, b + j, ldb, c + j, ldc, how);
      j += 32;
    }
    if (j < cols) product_panel<8, 1, kTransposed>(rows, depth, a, lda, b + j, ldb, c + j, ldc, how);
  } else {
    for (; j < cols; j += 16) product_panel<6, 2, kTransposed>(rows, depth, a, lda, b + j, ldb, c + j, ldc, how);
  }
}

}  // namespace
}  // namespace blutensor
