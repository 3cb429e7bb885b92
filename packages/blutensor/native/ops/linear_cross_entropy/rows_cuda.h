// The passes of linear_cross_entropy over rows of logits on CUDA (rows_cuda.cu), and its scaling (scale_cuda.cu).
#pragma once

#include "ops/matmul/operand.h"

namespace blutensor {

struct RowTargets {
  const void* data;  // [N], contiguous int32 or int64
  DType dtype;
  int64_t ignore_index, num_classes;
};

// *count = number of targets that are not ignored.
void count_targets(const RowTargets& targets, int64_t rows, int64_t* count, void* stream);

// Rows of logits whose targets begin at `first`: losses[first + row], and, where `gradient`, logits become
// (softmax - onehot) / *count (count null: 1), and 0 in columns from num_classes on. Rows start at multiples of 16
// bytes, and what lies between the last column and the next 16 bytes may be written.
void loss_rows(const Matrix& logits, const RowTargets& targets, int64_t first, double* losses, const int64_t* count,
               bool gradient, void* stream);

// *loss (float32, or float64 where `dtype` is that) = sum of losses, divided by *count where count is given.
void add_row_losses(const double* losses, int64_t rows, const int64_t* count, void* loss, DType dtype, void* stream);

void scale_cuda(const Launch& launch, Execution& run);
void scale_in_place_cuda(const Launch& launch, Execution& run);

}  // namespace blutensor
