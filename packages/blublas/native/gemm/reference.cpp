// Portable kernels: what every machine can run, and what the others are tested against. Plain loops, GELU from libm.
#include <cmath>

#include "gemm/kernels.h"
#include "simd/bfloat16.h"

namespace blublas {
namespace {

constexpr int64_t kMr = 4, kNr = 8;

template <typename T>
void micro_strided(const MicroTile<T>& t, int64_t a_row_stride, int64_t a_step) {
  T sum[kMr][kNr] = {};
  for (int64_t p = 0; p < t.k; ++p)
    for (int64_t i = 0; i < t.rows; ++i)
      for (int64_t j = 0; j < kNr; ++j) sum[i][j] += t.a[i * a_row_stride + p * a_step] * t.b[p * kNr + j];
  for (int64_t i = 0; i < t.rows; ++i)
    for (int64_t j = 0; j < t.cols; ++j) {
      T value = t.alpha * sum[i][j];
      if (t.bias != nullptr) value += t.bias[j];
      if (t.beta != T{0}) value += t.beta * t.addend[i * t.addend_stride + j];
      t.c[i * t.c_stride + j] = value;
    }
}
template <typename T>
void micro(const MicroTile<T>& t) {
  micro_strided(t, 1, kMr);
}
template <typename T>
void micro_in_place(const MicroTile<T>& t) {
  micro_strided(t, t.a_stride, 1);
}

template <typename T>
void pack(const char* source, int32_t dtype, int64_t stride_i, int64_t stride_k, int64_t size, int64_t k, T* panels,
          int64_t width) {
  for (int64_t first = 0; first < size; first += width)
    for (int64_t p = 0; p < k; ++p)
      for (int64_t i = first; i < first + width; ++i)
        *panels++ = i < size ? load_element<T>(source, dtype, i * stride_i + p * stride_k) : T{0};
}

template <typename T>
T gelu_tanh(T x) {
  const T inner = static_cast<T>(0.79788456080286535588) * (x + static_cast<T>(0.044715) * x * x * x);
  return static_cast<T>(0.5) * x * (1 + std::tanh(inner));
}
template <typename T>
T gelu_tanh_gradient(T x) {
  const T root = static_cast<T>(0.79788456080286535588), cubic = static_cast<T>(0.044715);
  const T t = std::tanh(root * (x + cubic * x * x * x));
  const T bell = std::abs(x) > 100 ? T{0} : x * (1 - t * t) * root * (1 + 3 * cubic * x * x);
  return static_cast<T>(0.5) * (1 + t + bell);
}
template <typename T>
T gelu_erf(T x) {
  return static_cast<T>(0.5) * x * std::erfc(-x * static_cast<T>(0.70710678118654752440));
}
template <typename T>
T gelu_erf_gradient(T x) {
  const T bell =
      std::abs(x) > 100 ? T{0} : x * std::exp(static_cast<T>(-0.5) * x * x) * static_cast<T>(0.39894228040143267794);
  return static_cast<T>(0.5) * std::erfc(-x * static_cast<T>(0.70710678118654752440)) + bell;
}

template <typename T>
void finish(const FinishTile<T>& tile) {
  for (int64_t i = 0; i < tile.rows; ++i)
    for (int64_t j = 0; j < tile.cols; ++j) {
      const int64_t at = i * tile.c_row_stride + j * tile.c_col_stride;
      const int64_t aux_at = i * tile.aux_row_stride + j * tile.aux_col_stride;
      T v = tile.sum[i * tile.sum_stride + j];
      if (tile.c_scale != T{0}) v += tile.c_scale * load_element<T>(tile.c, tile.c_dtype, at);
      if (tile.bias) v += load_element<T>(tile.bias, tile.bias_dtype, j);
      if (tile.epilogue & BLUBLAS_EPILOGUE_STORE_PREACTIVATION) store_element(tile.aux, tile.aux_dtype, aux_at, v);
      if (tile.epilogue & BLUBLAS_EPILOGUE_GELU_TANH) v = gelu_tanh(v);
      if (tile.epilogue & BLUBLAS_EPILOGUE_GELU_ERF) v = gelu_erf(v);
      if (tile.epilogue & BLUBLAS_EPILOGUE_GELU_TANH_GRADIENT)
        v *= gelu_tanh_gradient(load_element<T>(tile.aux, tile.aux_dtype, aux_at));
      if (tile.epilogue & BLUBLAS_EPILOGUE_GELU_ERF_GRADIENT)
        v *= gelu_erf_gradient(load_element<T>(tile.aux, tile.aux_dtype, aux_at));
      if (tile.residual)
        v += load_element<T>(tile.residual, tile.residual_dtype,
                             i * tile.residual_row_stride + j * tile.residual_col_stride);
      if (tile.epilogue & BLUBLAS_EPILOGUE_ACCUMULATE) v += load_element<T>(tile.c, tile.c_dtype, at);
      store_element(tile.c, tile.c_dtype, at, v);
      if (tile.column_sum) tile.column_sum[j] += v;
    }
}

template <typename T>
void row_sum(const char* source, int32_t dtype, int64_t stride_i, int64_t stride_k, int64_t rows, int64_t k, T* sums,
             bool accumulate) {
  for (int64_t i = 0; i < rows; ++i) {
    T sum = 0;
    for (int64_t p = 0; p < k; ++p) sum += load_element<T>(source, dtype, i * stride_i + p * stride_k);
    sums[i] = accumulate ? sums[i] + sum : sum;
  }
}

template <typename T>
void small(const SmallProduct<T>& x, int64_t b_row_stride, int64_t b_col_stride) {
  for (int64_t i = 0; i < x.rows; ++i)
    for (int64_t j = 0; j < x.cols; ++j) {
      T sum = 0;
      for (int64_t p = 0; p < x.k; ++p)
        sum += load_element<T>(x.a, x.dtype, i * x.a_row_stride + p) *
               load_element<T>(x.b, x.dtype, p * b_row_stride + j * b_col_stride);
      x.sum[i * x.sum_stride + j] = x.alpha * sum;
    }
}
template <typename T>
void small_dot(const SmallProduct<T>& x) {
  small(x, 1, x.b_stride);
}
template <typename T>
void small_axpy(const SmallProduct<T>& x) {
  small(x, x.b_stride, 1);
}

template <typename T>
constexpr GemmKernels<T> table(const char* name) {
  return {name,    kMr,       kNr,        256,          64,           1, micro<T>, micro_in_place<T>,
          pack<T>, finish<T>, row_sum<T>, small_dot<T>, small_axpy<T>};
}

}  // namespace

const KernelSet reference_kernels{"reference", 0, table<float>("gemm_f32_reference_4x8"),
                                  table<double>("gemm_f64_reference_4x8")};

}  // namespace blublas
