// What runs before and after the product: transposed copies of float32 operands, sums of split products.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/sm90/kernel.h"

namespace blublas::sm90 {

// to [columns, ld_to] = transpose of from [rows, ld_from].
void transpose_copy(const float* from, int64_t ld_from, float* to, int64_t ld_to, int64_t rows, int64_t columns,
                    cudaStream_t stream);

// Sums of A's rows: row_sum [m] (+)= the sum, in order, of partials [parts, ld].
struct RowSum {
  const float* partials = nullptr;  // null: not wanted
  int64_t ld = 0;
  int parts = 0;
  float* row_sum = nullptr;
  bool accumulate = false;
};

// C [m, n] = epilogue(sum over the splits, in their order, of partials [splits, m, ld]), or, transposed, of partials
// [splits, n, ld]; ld is a multiple of 4.
void finish_partials(const float* partials, int64_t ld, bool transposed, int splits, int32_t m, int32_t n,
                     const Finish& finish, Kind kind, const RowSum& row_sum, cudaStream_t stream);

}  // namespace blublas::sm90
