// The parts of a GEMM that are specialised per instruction set, and the table of them.
// Legend: T float or double, the accumulation type; mr x nr the register tile; panel: [k][width], zero-padded to its
// width.
#pragma once

#include <cstdint>

namespace blublas {

// c[rows, cols] = alpha * sum_k a b + beta * addend + bias; addend is not read when beta is 0. rows <= mr, cols <= nr.
template <typename T>
struct MicroTile {
  int64_t k = 0;
  const T* a = nullptr;
  int64_t a_stride = 0;  // rows in place: element (i, k) at a[i * a_stride + k]
  const T* b = nullptr;  // panel of width nr
  T* c = nullptr;
  int64_t c_stride = 0;
  int64_t rows = 0, cols = 0;
  T alpha = 1, beta = 0;
  const T* addend = nullptr;  // [rows, cols]; perhaps c itself
  int64_t addend_stride = 0;
  const T* bias = nullptr;  // [cols]; NULL: none
};

// One rectangle of the result on its way out. Pointers are at its first element; strides in elements.
template <typename T>
struct FinishTile {
  int64_t rows = 0, cols = 0;
  const T* sum = nullptr;  // alpha * A B (+ earlier blocks of K), [rows, cols] with row stride sum_stride
  int64_t sum_stride = 0;
  T c_scale = 0;  // v += c_scale * C; 0: C is not read
  int32_t epilogue = 0;
  char* c = nullptr;
  int32_t c_dtype = 0, bias_dtype = 0, aux_dtype = 0, residual_dtype = 0;
  int64_t c_row_stride = 0, c_col_stride = 0;
  const char* bias = nullptr;  // NULL: not used, and so for those below
  char* aux = nullptr;
  int64_t aux_row_stride = 0, aux_col_stride = 0;
  const char* residual = nullptr;
  int64_t residual_row_stride = 0, residual_col_stride = 0;
  T* column_sum = nullptr;  // the rows are added to it, from the first to the last
};

// A product with few rows, computed without packing. Pointers are at the first element.
template <typename T>
struct SmallProduct {
  int64_t rows = 0, cols = 0, k = 0;  // rows <= small_rows
  const char* a = nullptr;            // [rows, k], k contiguous
  int64_t a_row_stride = 0;
  const char* b = nullptr;  // [k, cols]
  int64_t b_stride = 0;     // of the dimension that is not contiguous
  int32_t dtype = 0;        // of a and b
  T alpha = 1;
  T* sum = nullptr;  // [rows, cols], row stride sum_stride
  int64_t sum_stride = 0;
};

template <typename T>
struct GemmKernels {
  const char* name;
  int64_t mr, nr;
  int64_t kc;          // longest block of K
  int64_t mc;          // most rows of A that a task keeps packed, about
  int64_t small_rows;  // up to this many rows the unpacked kernels below are used

  void (*micro)(const MicroTile<T>& tile);           // a: a panel of width mr
  void (*micro_in_place)(const MicroTile<T>& tile);  // a: rows where they are
  // Panels one after the other: panel q [k][width] holds source[i * stride_i + k * stride_k] for q width <= i < (q + 1)
  // width, 0 where i >= size.
  void (*pack)(const char* source, int32_t dtype, int64_t stride_i, int64_t stride_k, int64_t size, int64_t k,
               T* panels, int64_t width);
  void (*finish)(const FinishTile<T>& tile);
  // sums[i] (+)= sum_k source[i * stride_i + k * stride_k]
  void (*row_sum)(const char* source, int32_t dtype, int64_t stride_i, int64_t stride_k, int64_t rows, int64_t k,
                  T* sums, bool accumulate);
  void (*small_dot)(const SmallProduct<T>& product);   // b: k contiguous
  void (*small_axpy)(const SmallProduct<T>& product);  // b: columns contiguous
};

// One instruction set's kernels.
struct KernelSet {
  const char* name;
  uint32_t needs;  // BLUBLAS_CPU_* flags
  GemmKernels<float> float32;
  GemmKernels<double> float64;
};

// The set in use.
const KernelSet& kernel_set();
void choose_kernel_set(const char* name);  // throws Error

template <typename T>
const GemmKernels<T>& kernels(const KernelSet& set);
template <>
inline const GemmKernels<float>& kernels<float>(const KernelSet& set) {
  return set.float32;
}
template <>
inline const GemmKernels<double>& kernels<double>(const KernelSet& set) {
  return set.float64;
}

// Defined by reference.cpp, cpu_avx2.cpp and cpu_avx512.cpp.
extern const KernelSet reference_kernels;
extern const KernelSet avx2_kernels;
extern const KernelSet avx512_kernels;

}  // namespace blublas
