// Packing into panels [k][width], and row sums: vector versions. Include only in files compiled for the vector type.
#pragma once

#include <algorithm>
#include <cstdint>

#include "simd/bfloat16.h"

namespace blublas {
namespace {

// n elements (n <= V::width) at `index`, converted; the rest is 0.
template <typename V>
inline V load_converted(const char* data, int32_t dtype, int64_t index, int64_t n) {
  using T = typename V::Element;
  if constexpr (sizeof(T) == 4) {
    if (dtype == BLUBLAS_BFLOAT16) {
      const uint16_t* at = reinterpret_cast<const uint16_t*>(data) + index;
      return n == V::width ? V::load_bfloat16(at) : V::load_bfloat16(at, n);
    }
  }
  const T* at = reinterpret_cast<const T*>(data) + index;
  return n == V::width ? V::load(at) : V::load(at, n);
}

template <typename V>
inline void store_part(V value, typename V::Element* at, int64_t n) {
  n == V::width ? value.store(at) : value.store(at, n);
}

// Elements contiguous along the panels' width: copied. A few k at a time go through all panels: memory is read in long
// runs, and written in runs too (panels often lie a power of two apart, where single lines of all of them would push
// each other out of the cache).
template <typename V>
void pack_along(const char* source, int32_t dtype, int64_t stride_k, int64_t size, int64_t k,
                typename V::Element* panels, int64_t width) {
  constexpr int64_t run = 8;
  const int64_t tail = (width - 1) % V::width + 1, whole = width - tail;
  for (int64_t begin = 0; begin < k; begin += run) {
    const int64_t end = std::min(k, begin + run);
    for (int64_t first = 0; first < size; first += width) {
      typename V::Element* panel = panels + first * k;
      if (first + width <= size) {
        for (int64_t p = begin; p < end; ++p) {
          for (int64_t i = 0; i < whole; i += V::width)
            load_converted<V>(source, dtype, p * stride_k + first + i, V::width).store(panel + p * width + i);
          store_part(load_converted<V>(source, dtype, p * stride_k + first + whole, tail), panel + p * width + whole,
                     tail);
        }
        continue;
      }
      for (int64_t p = begin; p < end; ++p)
        for (int64_t i = 0; i < width; i += V::width) {
          const int64_t have = std::clamp<int64_t>(size - first - i, 0, V::width);
          const V values = have == 0 ? V::zero() : load_converted<V>(source, dtype, p * stride_k + first + i, have);
          store_part(values, panel + p * width + i, std::min(V::width, width - i));
        }
    }
  }
}

// Elements contiguous along k: transposed in square blocks. One panel.
template <typename V>
void pack_across(const char* source, int32_t dtype, int64_t stride_i, int64_t used, int64_t k,
                 typename V::Element* panel, int64_t width) {
  constexpr int64_t w = V::width;
  for (int64_t i = 0; i < width; i += w) {
    const int64_t rows = std::clamp<int64_t>(used - i, 0, w), store = std::min(w, width - i);
    for (int64_t p = 0; p < k; p += w) {
      const int64_t depth = std::min(w, k - p);
      V block[w];
#pragma GCC unroll 16
      for (int64_t r = 0; r < w; ++r)
        block[r] = r < rows ? load_converted<V>(source, dtype, (i + r) * stride_i + p, depth) : V::zero();
      V::transpose(block);
      typename V::Element* at = panel + p * width + i;
      if (depth == w && store == w) {
#pragma GCC unroll 16
        for (int64_t r = 0; r < w; ++r) block[r].store(at + r * width);
      } else {
        for (int64_t r = 0; r < depth; ++r) store_part(block[r], at + r * width, store);
      }
    }
  }
}

template <typename V>
void pack(const char* source, int32_t dtype, int64_t stride_i, int64_t stride_k, int64_t size, int64_t k,
          typename V::Element* panels, int64_t width) {
  using T = typename V::Element;
  if (stride_i == 1 || size == 1) return pack_along<V>(source, dtype, stride_k, size, k, panels, width);
  for (int64_t first = 0; first < size; first += width) {
    T* panel = panels + first * k;
    const int64_t used = std::min(width, size - first);
    if (stride_k == 1 || k == 1) {
      pack_across<V>(source + first * stride_i * (dtype == BLUBLAS_BFLOAT16 ? 2 : static_cast<int64_t>(sizeof(T))),
                     dtype, stride_i, used, k, panel, width);
      continue;
    }
    for (int64_t p = 0; p < k; ++p)
      for (int64_t i = 0; i < width; ++i)
        panel[p * width + i] = i < used ? load_element<T>(source, dtype, (first + i) * stride_i + p * stride_k) : T{0};
  }
}

// Sums over k of each row. Along rows: a vector holds V::width rows, k in four interleaved chains. Along k: four
// interleaved vectors.
template <typename V>
void row_sum(const char* source, int32_t dtype, int64_t stride_i, int64_t stride_k, int64_t rows, int64_t k,
             typename V::Element* sums, bool accumulate) {
  using T = typename V::Element;
  if (stride_i == 1) {
    for (int64_t i = 0; i < rows; i += V::width) {
      const int64_t n = std::min(V::width, rows - i);
      V chain[4] = {V::zero(), V::zero(), V::zero(), V::zero()};
      int64_t p = 0;
      for (; p + 4 <= k; p += 4)
        for (int64_t q = 0; q < 4; ++q)
          chain[q] = chain[q] + load_converted<V>(source, dtype, (p + q) * stride_k + i, n);
      for (; p < k; ++p) chain[0] = chain[0] + load_converted<V>(source, dtype, p * stride_k + i, n);
      V total = (chain[0] + chain[1]) + (chain[2] + chain[3]);
      if (accumulate)
        total = load_converted<V>(reinterpret_cast<const char*>(sums),
                                  sizeof(T) == 8 ? BLUBLAS_FLOAT64 : BLUBLAS_FLOAT32, i, n) +
                total;
      store_part(total, sums + i, n);
    }
    return;
  }
  for (int64_t i = 0; i < rows; ++i) {
    T sum = 0;
    if (stride_k == 1) {
      V chain[4] = {V::zero(), V::zero(), V::zero(), V::zero()};
      for (int64_t p = 0; p < k; p += V::width) {
        V& link = chain[p / V::width % 4];
        link = link + load_converted<V>(source, dtype, i * stride_i + p, std::min(V::width, k - p));
      }
      sum = ((chain[0] + chain[1]) + (chain[2] + chain[3])).sum();
    } else {
      for (int64_t p = 0; p < k; ++p) sum += load_element<T>(source, dtype, i * stride_i + p * stride_k);
    }
    sums[i] = accumulate ? sums[i] + sum : sum;
  }
}

}  // namespace
}  // namespace blublas
