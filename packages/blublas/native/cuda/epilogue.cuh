// The epilogue on the device: kernels bring sums in groups of four columns ("quads"), whatever produced them.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "cuda/epilogue.h"
#include "cuda/gelu.cuh"

namespace blublas {

__device__ __forceinline__ int64_t element_bytes(int32_t dtype) {
  return dtype == BLUBLAS_FLOAT64 ? 8 : dtype == BLUBLAS_FLOAT32 ? 4 : 2;
}

template <typename T>
__device__ __forceinline__ T load_element(const char* data, int32_t dtype, int64_t index) {
  if constexpr (sizeof(T) == 8) return reinterpret_cast<const double*>(data)[index];
  if (dtype == BLUBLAS_BFLOAT16) return __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(data)[index]);
  return static_cast<T>(reinterpret_cast<const float*>(data)[index]);
}

template <typename T>
__device__ __forceinline__ void store_element(char* data, int32_t dtype, int64_t index, T value) {
  if constexpr (sizeof(T) == 8) {
    reinterpret_cast<double*>(data)[index] = value;
  } else if (dtype == BLUBLAS_BFLOAT16) {
    reinterpret_cast<__nv_bfloat16*>(data)[index] = __float2bfloat16_rn(value);
  } else {
    reinterpret_cast<float*>(data)[index] = value;
  }
}

// Four columns from (row, column) on, of which `count` exist; the rest is 0.
template <typename T>
__device__ __forceinline__ void load_quad(const MatrixRef& x, int64_t batch, int64_t row, int64_t column, int count,
                                          T (&v)[4]) {
  const char* data = x.data + batch * x.batch_stride * element_bytes(x.dtype);
  if constexpr (sizeof(T) == 4) {
    if (x.vectors && count == 4) {
      const int64_t at = row * x.row_stride + column;
      if (x.dtype == BLUBLAS_BFLOAT16) {
        const uint2 bits = *reinterpret_cast<const uint2*>(data + at * 2);
        v[0] = __uint_as_float(bits.x << 16), v[1] = __uint_as_float(bits.x & 0xFFFF0000u);
        v[2] = __uint_as_float(bits.y << 16), v[3] = __uint_as_float(bits.y & 0xFFFF0000u);
      } else {
        const float4 values = *reinterpret_cast<const float4*>(data + at * 4);
        v[0] = values.x, v[1] = values.y, v[2] = values.z, v[3] = values.w;
      }
      return;
    }
  }
#pragma unroll
  for (int j = 0; j < 4; ++j)
    v[j] = j < count ? load_element<T>(data, x.dtype, row * x.row_stride + (column + j) * x.col_stride) : T(0);
}

__device__ __forceinline__ uint32_t pack_bfloat16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

template <typename T>
__device__ __forceinline__ void store_quad(const MatrixRef& x, int64_t batch, int64_t row, int64_t column, int count,
                                           const T (&v)[4]) {
  char* data = x.data + batch * x.batch_stride * element_bytes(x.dtype);
  if constexpr (sizeof(T) == 4) {
    if (x.vectors && count == 4) {
      const int64_t at = row * x.row_stride + column;
      if (x.dtype == BLUBLAS_BFLOAT16)
        *reinterpret_cast<uint2*>(data + at * 2) = make_uint2(pack_bfloat16(v[0], v[1]), pack_bfloat16(v[2], v[3]));
      else
        *reinterpret_cast<float4*>(data + at * 4) = make_float4(v[0], v[1], v[2], v[3]);
      return;
    }
  }
#pragma unroll
  for (int j = 0; j < 4; ++j)
    if (j < count) store_element<T>(data, x.dtype, row * x.row_stride + (column + j) * x.col_stride, v[j]);
}

// The bias of four columns, which all rows of a thread share.
template <typename T>
__device__ __forceinline__ void load_bias(const EpilogueParams& e, int64_t batch, int64_t column, int count,
                                          T (&bias)[4]) {
#pragma unroll
  for (int j = 0; j < 4; ++j)
    bias[j] = e.bias != nullptr && j < count
                  ? load_element<T>(e.bias, e.bias_dtype, batch * e.bias_batch_stride + column + j)
                  : T(0);
}

// Does the epilogue for kRows rows (row, row + row_step, ...) of four columns, of which `count` exist. v: the sums over
// K in, the result out. Results are added to column_sum.
// All loads of one kind come before anything that waits for them.
template <int kRows, typename T>
__device__ __forceinline__ void finish_quads(const EpilogueParams& e, int64_t batch, int64_t row, int64_t row_step,
                                             int64_t column, int count, const T (&bias)[4], T (&v)[kRows][4],
                                             T (&column_sum)[4]) {
  const auto for_rows = [&](auto&& body) {
#pragma unroll
    for (int i = 0; i < kRows; ++i)
      if (row + i * row_step < e.m) body(i, row + i * row_step);
  };
  const auto add_matrix = [&](const MatrixRef& x, T factor) {
    T w[kRows][4];
    for_rows([&](int i, int64_t at) { load_quad(x, batch, at, column, count, w[i]); });
    for_rows([&](int i, int64_t) {
#pragma unroll
      for (int j = 0; j < 4; ++j) v[i][j] += factor * w[i][j];
    });
  };
  const auto each = [&](auto&& body) {
#pragma unroll
    for (int i = 0; i < kRows; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) v[i][j] = body(v[i][j], j);
  };
  if (count <= 0) return;

  const T alpha = static_cast<T>(e.alpha);
  each([&](T x, int) { return alpha * x; });
  if (e.beta != 0) add_matrix(e.c, static_cast<T>(e.beta));
  if (e.bias != nullptr) each([&](T x, int j) { return x + bias[j]; });
  if (e.flags & BLUBLAS_EPILOGUE_STORE_PREACTIVATION)
    for_rows([&](int i, int64_t at) { store_quad(e.aux, batch, at, column, count, v[i]); });
  if (e.flags & BLUBLAS_EPILOGUE_GELU_TANH) each([](T x, int) { return gelu_tanh(x); });
  if (e.flags & BLUBLAS_EPILOGUE_GELU_ERF) each([](T x, int) { return gelu_erf(x); });
  if (e.flags & (BLUBLAS_EPILOGUE_GELU_TANH_GRADIENT | BLUBLAS_EPILOGUE_GELU_ERF_GRADIENT)) {
    T w[kRows][4];
    for_rows([&](int i, int64_t at) { load_quad(e.aux, batch, at, column, count, w[i]); });
    const bool is_tanh = e.flags & BLUBLAS_EPILOGUE_GELU_TANH_GRADIENT;
    for_rows([&](int i, int64_t) {
#pragma unroll
      for (int j = 0; j < 4; ++j) v[i][j] *= is_tanh ? gelu_tanh_gradient(w[i][j]) : gelu_erf_gradient(w[i][j]);
    });
  }
  if (e.flags & BLUBLAS_EPILOGUE_RESIDUAL) add_matrix(e.residual, T(1));
  if (e.flags & BLUBLAS_EPILOGUE_ACCUMULATE) add_matrix(e.c, T(1));
  for_rows([&](int i, int64_t at) {
    store_quad(e.c, batch, at, column, count, v[i]);
#pragma unroll
    for (int j = 0; j < 4; ++j) column_sum[j] += v[i][j];
  });
}

// The sums of a group of rows to their place among the partial sums.
template <typename T>
__device__ __forceinline__ void store_partial(const EpilogueParams& e, int64_t batch, int64_t partial, int64_t column,
                                              int count, const T (&column_sum)[4]) {
  T* target = reinterpret_cast<T*>(e.partials) + (batch * e.num_partials + partial) * e.n + column;
#pragma unroll
  for (int j = 0; j < 4; ++j)
    if (j < count) target[j] = column_sum[j];
}

}  // namespace blublas
