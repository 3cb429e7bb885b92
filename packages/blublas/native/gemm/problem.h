// A checked GEMM: what blublas_gemm_args says, in the form that the driver works on.
// Legend: A [M, K], B [K, N], C [M, N]; strides in elements.
#pragma once

#include <cstddef>
#include <cstdint>

#include "blublas/blublas.h"

namespace blublas {

inline int64_t dtype_bytes(int32_t dtype) noexcept {
  return dtype == BLUBLAS_FLOAT64 ? 8 : dtype == BLUBLAS_FLOAT32 ? 4 : 2;
}

// One operand over the whole batch.
struct Operand {
  char* data = nullptr;
  void* const* array = nullptr;  // replaces data and batch_stride
  int32_t dtype = BLUBLAS_FLOAT32;
  int64_t row_stride = 0, col_stride = 0, batch_stride = 0;

  // First element of batch `t`.
  char* of_batch(int64_t t) const noexcept {
    return array != nullptr ? static_cast<char*>(array[t]) : data + t * batch_stride * dtype_bytes(dtype);
  }
};

struct Vector {
  char* data = nullptr;
  int32_t dtype = BLUBLAS_FLOAT32;
  int64_t batch_stride = 0;

  char* of_batch(int64_t t) const noexcept { return data + t * batch_stride * dtype_bytes(dtype); }
};

struct Problem {
  int64_t m = 0, n = 0, k = 0, batch = 0;
  double alpha = 1, beta = 0;
  int32_t compute = BLUBLAS_FLOAT32;  // accumulation type: float32 or float64
  int32_t epilogue = 0;
  int32_t num_threads = 0;  // as asked; 0: the pool's
  Operand a, b, c, aux, residual;
  Vector bias, column_sum, row_sum_a;
  bool residual_is_c = false, aux_is_c = false;  // the same elements as C
};

enum class Pointers { checked, ignored };

// Checks everything and throws Error. With Pointers::ignored (for workspace questions) pointers and overlap are not
// looked at.
Problem check(const blublas_gemm_args& args, Pointers pointers);

}  // namespace blublas
