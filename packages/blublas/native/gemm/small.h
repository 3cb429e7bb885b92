// Products with few rows (decode steps, single tokens): B is read once, where it is, at the speed of memory.
// Include only in files compiled for the vector type.
//
//   dot:  B's columns lie along K. R rows of A against 4 columns of B at once: R x 4 vectors of partial sums along K,
//   added up at the end.
//   axpy: B's rows lie along N. R rows of A against a strip of columns: sums in registers, K in blocks whose sums are
//   added.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "gemm/kernels.h"
#include "gemm/pack.h"
#include "simd/bfloat16.h"

namespace blublas {
namespace {

template <typename V, bool BFloat16>
inline V load_from(const char* data, int64_t index) {
  if constexpr (BFloat16)
    return V::load_bfloat16(reinterpret_cast<const uint16_t*>(data) + index);
  else
    return V::load(reinterpret_cast<const typename V::Element*>(data) + index);
}

template <typename V, bool BFloat16>
inline V load_from(const char* data, int64_t index, int64_t n) {
  if constexpr (BFloat16)
    return V::load_bfloat16(reinterpret_cast<const uint16_t*>(data) + index, n);
  else
    return V::load(reinterpret_cast<const typename V::Element*>(data) + index, n);
}

// Rows i .. i + R, columns j .. j + C.
template <typename V, bool BFloat16, int R, int C>
void dot_tile(const SmallProduct<typename V::Element>& x, int64_t i, int64_t j) {
  V sum[R][C];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) sum[r][c] = V::zero();
  const auto step = [&](int64_t p, auto load) {
    V column[C];
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) column[c] = load(x.b, (j + c) * x.b_stride + p);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const V row = load(x.a, (i + r) * x.a_row_stride + p);
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) sum[r][c] = V::fma(row, column[c], sum[r][c]);
    }
  };
  int64_t p = 0;
  for (; p + V::width <= x.k; p += V::width)
    step(p, [](const char* data, int64_t index) { return load_from<V, BFloat16>(data, index); });
  if (const int64_t n = x.k - p; n > 0)
    step(p, [n](const char* data, int64_t index) { return load_from<V, BFloat16>(data, index, n); });
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) x.sum[(i + r) * x.sum_stride + j + c] = x.alpha * sum[r][c].sum();
}

// One row of A: B is read from its first element to its last, one stream, in chains of partial sums along K.
template <typename V, bool BFloat16>
void dot_row(const SmallProduct<typename V::Element>& x) {
  constexpr int64_t chains = 8, stride = chains * V::width;
  for (int64_t j = 0; j < x.cols; ++j) {
    V sum[chains];
#pragma GCC unroll 8
    for (int64_t q = 0; q < chains; ++q) sum[q] = V::zero();
    const int64_t at = j * x.b_stride;
    int64_t p = 0;
    for (; p + stride <= x.k; p += stride)
#pragma GCC unroll 8
      for (int64_t q = 0; q < chains; ++q) {
        const V column = load_from<V, BFloat16>(x.b, at + p + q * V::width);
        sum[q] = V::fma(load_from<V, BFloat16>(x.a, p + q * V::width), column, sum[q]);
      }
    for (int64_t q = 0; p < x.k; p += V::width, ++q) {
      const int64_t n = std::min(V::width, x.k - p);
      sum[q] = V::fma(load_from<V, BFloat16>(x.a, p, n), load_from<V, BFloat16>(x.b, at + p, n), sum[q]);
    }
    const V total = ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
    x.sum[j] = x.alpha * total.sum();
  }
}

template <typename V, bool BFloat16, int R>
void dot_rows(const SmallProduct<typename V::Element>& x, int64_t i, int64_t j, int64_t cols) {
  switch (cols) {
    case 4:
      return dot_tile<V, BFloat16, R, 4>(x, i, j);
    case 3:
      return dot_tile<V, BFloat16, R, 3>(x, i, j);
    case 2:
      return dot_tile<V, BFloat16, R, 2>(x, i, j);
    default:
      return dot_tile<V, BFloat16, R, 1>(x, i, j);
  }
}

template <typename V, bool BFloat16>
void dot_all(const SmallProduct<typename V::Element>& x) {
  constexpr int64_t most = V::width * sizeof(typename V::Element) == 64 ? 6 : 2;  // rows that fit the registers
  if (x.rows == 1) return dot_row<V, BFloat16>(x);
  for (int64_t j = 0; j < x.cols; j += 4)
    for (int64_t i = 0; i < x.rows; i += most) {
      const int64_t cols = std::min<int64_t>(4, x.cols - j);
      switch (std::min(most, x.rows - i)) {
        case 1:
          dot_rows<V, BFloat16, 1>(x, i, j, cols);
          break;
        case 2:
          dot_rows<V, BFloat16, 2>(x, i, j, cols);
          break;
        case 3:
          dot_rows < V, BFloat16, most<3 ? 1 : 3>(x, i, j, cols);
          break;
        case 4:
          dot_rows < V, BFloat16, most<4 ? 1 : 4>(x, i, j, cols);
          break;
        case 5:
          dot_rows < V, BFloat16, most<5 ? 1 : 5>(x, i, j, cols);
          break;
        default:
          dot_rows < V, BFloat16, most<6 ? 1 : 6>(x, i, j, cols);
          break;
      }
    }
}

template <typename V>
void small_dot(const SmallProduct<typename V::Element>& x) {
  if constexpr (sizeof(typename V::Element) == 4)
    if (x.dtype == BLUBLAS_BFLOAT16) return dot_all<V, true>(x);
  dot_all<V, false>(x);
}

constexpr int64_t kAxpyBlock = 256;

// Rows i .. i + R, columns j .. j + C vectors, the last one perhaps cut to `rest` elements.
template <typename V, bool BFloat16, int R, int C>
void axpy_tile(const SmallProduct<typename V::Element>& x, int64_t i, int64_t j, int64_t rest) {
  using T = typename V::Element;
  for (int64_t begin = 0; begin < x.k; begin += kAxpyBlock) {
    const int64_t end = std::min(x.k, begin + kAxpyBlock);
    V sum[R][C];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) sum[r][c] = V::zero();
    for (int64_t p = begin; p < end; ++p) {
      const int64_t at = p * x.b_stride + j;
      V row[C];
#pragma GCC unroll 8
      for (int c = 0; c < C - 1; ++c) row[c] = load_from<V, BFloat16>(x.b, at + c * V::width);
      row[C - 1] = rest == V::width ? load_from<V, BFloat16>(x.b, at + (C - 1) * V::width)
                                    : load_from<V, BFloat16>(x.b, at + (C - 1) * V::width, rest);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const V element =
            V::all(load_element<T>(x.a, BFloat16 ? BLUBLAS_BFLOAT16 : BLUBLAS_FLOAT32, (i + r) * x.a_row_stride + p));
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) sum[r][c] = V::fma(element, row[c], sum[r][c]);
      }
    }
    const V alpha = V::all(x.alpha);
    for (int r = 0; r < R; ++r)
      for (int c = 0; c < C; ++c) {
        T* at = x.sum + (i + r) * x.sum_stride + j + c * V::width;
        const int64_t n = c < C - 1 ? V::width : rest;
        V total = alpha * sum[r][c];
        if (begin > 0) total = (n == V::width ? V::load(at) : V::load(at, n)) + total;
        store_part(total, at, n);
      }
  }
}

template <typename V, bool BFloat16, int R, int C>
void axpy_strip(const SmallProduct<typename V::Element>& x, int64_t i) {
  int64_t j = 0;
  for (; j + C * V::width <= x.cols; j += C * V::width) axpy_tile<V, BFloat16, R, C>(x, i, j, V::width);
  for (; j < x.cols; j += V::width) axpy_tile<V, BFloat16, R, 1>(x, i, j, std::min(V::width, x.cols - j));
}

template <typename V, bool BFloat16>
void axpy_all(const SmallProduct<typename V::Element>& x) {
  constexpr bool wide = V::width * sizeof(typename V::Element) == 64;  // 32 registers, not 16
  int64_t i = 0;
  while (i < x.rows) {
    const int64_t rows = x.rows - i;
    if (rows >= 4) {
      axpy_strip<V, BFloat16, 4, wide ? 4 : 2>(x, i);
      i += 4;
    } else if (rows >= 2) {
      axpy_strip<V, BFloat16, 2, wide ? 8 : 4>(x, i);
      i += 2;
    } else {
      axpy_strip<V, BFloat16, 1, 8>(x, i);
      i += 1;
    }
  }
}

template <typename V>
void small_axpy(const SmallProduct<typename V::Element>& x) {
  if constexpr (sizeof(typename V::Element) == 4)
    if (x.dtype == BLUBLAS_BFLOAT16) return axpy_all<V, true>(x);
  axpy_all<V, false>(x);
}

}  // namespace
}  // namespace blublas
