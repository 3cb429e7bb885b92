// The epilogue of a CUDA GEMM as kernels get it: plain values, passed as a kernel parameter.
#pragma once

#include <cstdint>

#include "cuda/problem.h"

namespace blublas {

// One operand; `vectors`: groups of four columns that start at a multiple of four are aligned and contiguous.
struct MatrixRef {
  char* data = nullptr;
  int64_t row_stride = 0, col_stride = 0, batch_stride = 0;  // in elements
  int32_t dtype = 0;
  bool vectors = false;
};

struct EpilogueParams {
  int64_t m = 0, n = 0;
  int32_t flags = 0;
  int32_t bias_dtype = 0;
  double alpha = 1, beta = 0;
  float alpha32 = 1, beta32 = 0;
  bool vectors = false;  // of every matrix that is read or written
  MatrixRef c, aux, residual;
  const char* bias = nullptr;
  int64_t bias_batch_stride = 0;
  // COLUMN_SUM: partial sums [batch][num_partials][n] in the accumulation type, one row for every `partial_rows` of m.
  char* partials = nullptr;
  int64_t num_partials = 0;
};

EpilogueParams make_epilogue(const CudaProblem& problem);

// An epilogue that stores the sums as they are, in the accumulation type: row-major, `batch_stride` elements apart.
EpilogueParams store_only(const CudaProblem& problem, char* target, int64_t row_stride, int64_t batch_stride);

}  // namespace blublas
