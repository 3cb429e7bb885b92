// The epilogue on the device: kernels bring sums in groups of four columns ("quads"), whatever produced them.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <type_traits>

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

__device__ __forceinline__ uint32_t pack_bfloat16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// The quads of a thread in one operand: any strides, at the edge too.
struct AnyQuads {
  const MatrixRef& x;
  int64_t first, row_step;  // index of row 0; from row to row of the thread
  int count;                // columns that exist

  __device__ AnyQuads(const MatrixRef& matrix, int64_t batch, int64_t row, int64_t step, int64_t column, int num)
      : x(matrix),
        first(batch * matrix.batch_stride + row * matrix.row_stride + column * matrix.col_stride),
        row_step(step * matrix.row_stride),
        count(num) {}

  template <typename T>
  __device__ __forceinline__ void load(int i, T (&v)[4]) const {
#pragma unroll
    for (int j = 0; j < 4; ++j)
      v[j] = j < count ? load_element<T>(x.data, x.dtype, first + i * row_step + j * x.col_stride) : T(0);
  }
  template <typename T>
  __device__ __forceinline__ void store(int i, const T (&v)[4]) const {
#pragma unroll
    for (int j = 0; j < 4; ++j)
      if (j < count) store_element<T>(x.data, x.dtype, first + i * row_step + j * x.col_stride, v[j]);
  }
};

// The same for float sums where every quad exists, is contiguous and aligned.
struct VectorQuads {
  char* at;
  int64_t row_step;  // in bytes
  bool is_bfloat16;

  __device__ VectorQuads(const MatrixRef& x, int64_t batch, int64_t row, int64_t step, int64_t column, int)
      : row_step(step * x.row_stride * (x.dtype == BLUBLAS_BFLOAT16 ? 2 : 4)),
        is_bfloat16(x.dtype == BLUBLAS_BFLOAT16) {
    at = x.data + (batch * x.batch_stride + row * x.row_stride + column) * (is_bfloat16 ? 2 : 4);
  }

  __device__ __forceinline__ void load(int i, float (&v)[4]) const {
    if (is_bfloat16) {
      const uint2 bits = *reinterpret_cast<const uint2*>(at + i * row_step);
      v[0] = __uint_as_float(bits.x << 16), v[1] = __uint_as_float(bits.x & 0xFFFF0000u);
      v[2] = __uint_as_float(bits.y << 16), v[3] = __uint_as_float(bits.y & 0xFFFF0000u);
    } else {
      const float4 values = *reinterpret_cast<const float4*>(at + i * row_step);
      v[0] = values.x, v[1] = values.y, v[2] = values.z, v[3] = values.w;
    }
  }
  __device__ __forceinline__ void store(int i, const float (&v)[4]) const {
    if (is_bfloat16)
      *reinterpret_cast<uint2*>(at + i * row_step) = make_uint2(pack_bfloat16(v[0], v[1]), pack_bfloat16(v[2], v[3]));
    else
      *reinterpret_cast<float4*>(at + i * row_step) = make_float4(v[0], v[1], v[2], v[3]);
  }
};

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

// The operands of the epilogue at the first of a thread's rows, which are `step` apart.
template <typename Quads>
struct QuadPlaces {
  Quads c, aux, residual;

  __device__ QuadPlaces(const EpilogueParams& e, int64_t batch, int64_t row, int64_t step, int64_t column, int count)
      : c(e.c, batch, row, step, column, count),
        aux(e.aux, batch, row, step, column, count),
        residual(e.residual, batch, row, step, column, count) {}
};

// Does the epilogue for rows first .. first + kRows - 1 of a thread, of which those below num_rows exist. v: the sums over
// K in, the result out. Results are added to column_sum.
// All loads of one kind come before anything that waits for them.
template <int kRows, typename T, typename Quads>
__device__ __forceinline__ void finish_quads(const EpilogueParams& e, const QuadPlaces<Quads>& at, int first,
                                             int num_rows, const T (&bias)[4], T (&v)[kRows][4], T (&column_sum)[4]) {
  const auto for_rows = [&](auto&& body) {
#pragma unroll
    for (int i = 0; i < kRows; ++i)
      if (std::is_same_v<Quads, VectorQuads> || first + i < num_rows) body(i);
  };
  const auto each = [&](auto&& body) {
#pragma unroll
    for (int i = 0; i < kRows; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) v[i][j] = body(v[i][j], j);
  };
  T w[kRows][4];
  const auto load = [&](const Quads& x) { for_rows([&](int i) { x.load(first + i, w[i]); }); };
  const auto add = [&](T scale) {
    for_rows([&](int i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) v[i][j] += scale * w[i][j];
    });
  };

  const T alpha = sizeof(T) == 4 ? static_cast<T>(e.alpha32) : static_cast<T>(e.alpha);
  const T beta = sizeof(T) == 4 ? static_cast<T>(e.beta32) : static_cast<T>(e.beta);
  each([&](T x, int) { return alpha * x; });
  if (beta != T(0)) load(at.c), add(beta);
  if (e.bias != nullptr) each([&](T x, int j) { return x + bias[j]; });
  if (e.flags & ~BLUBLAS_EPILOGUE_BIAS) {
    if (e.flags & BLUBLAS_EPILOGUE_STORE_PREACTIVATION) for_rows([&](int i) { at.aux.store(first + i, v[i]); });
    if (e.flags & BLUBLAS_EPILOGUE_GELU_TANH) each([](T x, int) { return gelu_tanh(x); });
    if (e.flags & BLUBLAS_EPILOGUE_GELU_ERF) each([](T x, int) { return gelu_erf(x); });
    if (e.flags & (BLUBLAS_EPILOGUE_GELU_TANH_GRADIENT | BLUBLAS_EPILOGUE_GELU_ERF_GRADIENT)) {
      load(at.aux);
      const bool is_tanh = e.flags & BLUBLAS_EPILOGUE_GELU_TANH_GRADIENT;
      for_rows([&](int i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) v[i][j] *= is_tanh ? gelu_tanh_gradient(w[i][j]) : gelu_erf_gradient(w[i][j]);
      });
    }
    if (e.flags & BLUBLAS_EPILOGUE_RESIDUAL) load(at.residual), add(T(1));
    if (e.flags & BLUBLAS_EPILOGUE_ACCUMULATE) load(at.c), add(T(1));
  }
  for_rows([&](int i) { at.c.store(first + i, v[i]); });
  if (e.partials != nullptr)
    for_rows([&](int i) {
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
