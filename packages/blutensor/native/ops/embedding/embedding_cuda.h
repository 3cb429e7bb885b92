// embedding on CUDA, by file.
#pragma once

#include "ops/matmul/operand.h"

namespace blutensor {

void embedding_cuda(const Launch& launch, Execution& run);                    // cuda.cu
void embedding_backward_cuda(const Launch& launch, Execution& run);           // backward_cuda.cu
void embedding_backward_in_place_cuda(const Launch& launch, Execution& run);  // backward_cuda.cu

// Positions [N] in the order of their ids, equal ids in the order of the positions (sort_cuda.cu).
struct alignas(16) SortedPosition {
  int32_t id;
  int32_t position;
  int32_t index;  // among the positions of this id: 0, 1, ..., count - 1
  int32_t count;
};

// Memory [limit, row_bytes] of which the rows without a position are zeroed on the way, aligned to 16 bytes, in rows of a
// multiple of these; null: none.
struct ZeroRows {
  void* data;
  int64_t row_bytes;
};

// Sorts ids [N] (contiguous int32 or int64) into `sorted` [N]. Ids out of [0, limit) come last with count 0, and are
// reported as an embedding's where `reports`. `scratch`: sort_scratch_bytes(N). N and limit are below 2^31.
size_t sort_scratch_bytes(int64_t count);
void sort_positions(const void* ids, DType dtype, int64_t count, int64_t limit, void* scratch, SortedPosition* sorted,
                    const ZeroRows& zeros, bool reports, void* stream);

}  // namespace blutensor
