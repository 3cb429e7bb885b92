// The epilogue on vectors: one pass over a tile of sums that is still in the first level of cache.
// Include only in files compiled for the vector type.
#pragma once

#include <algorithm>
#include <cstdint>

#include "gemm/kernels.h"
#include "gemm/pack.h"
#include "simd/bfloat16.h"
#include "simd/gelu.h"

namespace blublas {
namespace {

// n elements at `index` with a stride; contiguous ones as vectors.
template <typename V>
inline V gather(const char* data, int32_t dtype, int64_t index, int64_t stride, int64_t n) {
  if (stride == 1) return load_converted<V>(data, dtype, index, n);
  typename V::Element values[V::width] = {};
  for (int64_t i = 0; i < n; ++i) values[i] = load_element<typename V::Element>(data, dtype, index + i * stride);
  return V::load(values);
}

template <typename V>
inline void scatter(V value, char* data, int32_t dtype, int64_t index, int64_t stride, int64_t n) {
  using T = typename V::Element;
  if (stride == 1) {
    if constexpr (sizeof(T) == 4) {
      if (dtype == BLUBLAS_BFLOAT16) {
        uint16_t* at = reinterpret_cast<uint16_t*>(data) + index;
        return n == V::width ? value.store_bfloat16(at) : value.store_bfloat16(at, n);
      }
    }
    return store_part(value, reinterpret_cast<T*>(data) + index, n);
  }
  T values[V::width];
  value.store(values);
  for (int64_t i = 0; i < n; ++i) store_element(data, dtype, index + i * stride, values[i]);
}

template <typename V>
void finish(const FinishTile<typename V::Element>& tile) {
  using T = typename V::Element;
  const int32_t flags = tile.epilogue;
  const V c_scale = V::all(tile.c_scale);
  for (int64_t j = 0; j < tile.cols; j += V::width) {
    const int64_t n = std::min(V::width, tile.cols - j);
    const V bias = tile.bias ? load_converted<V>(tile.bias, tile.bias_dtype, j, n) : V::zero();
    V column_sum = tile.column_sum ? gather<V>(reinterpret_cast<const char*>(tile.column_sum),
                                               sizeof(T) == 8 ? BLUBLAS_FLOAT64 : BLUBLAS_FLOAT32, j, 1, n)
                                   : V::zero();
    for (int64_t i = 0; i < tile.rows; ++i) {
      const int64_t at = i * tile.c_row_stride + j * tile.c_col_stride,
                    aux_at = i * tile.aux_row_stride + j * tile.aux_col_stride;
      const T* sum = tile.sum + i * tile.sum_stride + j;
      V v = n == V::width ? V::load(sum) : V::load(sum, n);
      if (tile.c_scale != T{0}) v = V::fma(c_scale, gather<V>(tile.c, tile.c_dtype, at, tile.c_col_stride, n), v);
      if (tile.bias) v = v + bias;
      if (flags & BLUBLAS_EPILOGUE_STORE_PREACTIVATION)
        scatter(v, tile.aux, tile.aux_dtype, aux_at, tile.aux_col_stride, n);
      if (flags & BLUBLAS_EPILOGUE_GELU_TANH) v = gelu_tanh(v);
      if (flags & BLUBLAS_EPILOGUE_GELU_ERF) v = gelu_erf(v);
      if (flags & BLUBLAS_EPILOGUE_GELU_TANH_GRADIENT)
        v = v * gelu_tanh_gradient(gather<V>(tile.aux, tile.aux_dtype, aux_at, tile.aux_col_stride, n));
      if (flags & BLUBLAS_EPILOGUE_GELU_ERF_GRADIENT)
        v = v * gelu_erf_gradient(gather<V>(tile.aux, tile.aux_dtype, aux_at, tile.aux_col_stride, n));
      if (tile.residual)
        v = v + gather<V>(tile.residual, tile.residual_dtype,
                          i * tile.residual_row_stride + j * tile.residual_col_stride, tile.residual_col_stride, n);
      if (flags & BLUBLAS_EPILOGUE_ACCUMULATE) v = v + gather<V>(tile.c, tile.c_dtype, at, tile.c_col_stride, n);
      scatter(v, tile.c, tile.c_dtype, at, tile.c_col_stride, n);
      column_sum = column_sum + v;
    }
    if (tile.column_sum) store_part(column_sum, tile.column_sum + j, n);
  }
}

}  // namespace
}  // namespace blublas
