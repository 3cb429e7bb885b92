// A checked GEMM on a CUDA device: what the dispatcher (gemm.cpp) gives to a family of kernels.
//
// The dispatcher has already seen to it that
//   - M, N, K and batch are at least 1, and the current device is `device->index`;
//   - no operand has a pointer array (those products come one by one, as batches of 1);
//   - ROW_SUM_A is not in `epilogue` (a kernel of its own does it), unless the family says that it does it itself;
//   - `workspace` has at least as many bytes as the family asked for, aligned to 256.
// To ask for the workspace, the same problem comes with null pointers everywhere; a null pointer counts as aligned.
// Everything is launched on `stream`; no allocation, no synchronization, no order that depends on timing.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "gemm/problem.h"

namespace blublas {

struct CudaDevice {
  int index = 0;
  int arch = 0;  // 10 * major + minor of the compute capability, e.g. 90
  int num_multiprocessors = 0;
  int shared_bytes = 0;  // most dynamic shared memory of a block
};

struct CudaProblem : Problem {
  int32_t math = BLUBLAS_MATH_IEEE;  // of float32 operands
  const CudaDevice* device = nullptr;
  cudaStream_t stream = nullptr;
  char* workspace = nullptr;
  size_t workspace_bytes = 0;
};

// Throws BLUBLAS_RUNTIME_ERROR with CUDA's text.
void check_cuda(cudaError_t error, const char* what);
// After every <<<>>>.
inline void check_launch(const char* kernel) { check_cuda(cudaGetLastError(), kernel); }

// Whether every matrix of an operand's batch starts at, and every row (column) that is not the contiguous one is apart
// by, a multiple of `bytes`: what vector loads, cp.async and TMA need.
inline bool is_aligned(const Operand& x, int64_t bytes) noexcept {
  const int64_t item = dtype_bytes(x.dtype), stride = x.col_stride == 1 ? x.row_stride : x.col_stride;
  return reinterpret_cast<uintptr_t>(x.data) % static_cast<uint64_t>(bytes) == 0 && stride * item % bytes == 0 &&
         x.batch_stride * item % bytes == 0;
}

}  // namespace blublas
