// Sums over the rows of a loss by one block, in an order that their number decides.
#pragma once

#include "ops/cuda/reduce.cuh"
#include "ops/cuda/vector.cuh"

namespace blutensor::cuda {

// Of each thread of kThreads.
template <int kThreads>
__device__ inline double losses_of_thread(const double* losses, int64_t rows) {
  double sum = 0;
#pragma unroll 8
  for (int64_t row = threadIdx.x; row < rows; row += kThreads) sum += losses[row];
  return sum;
}

template <int kThreads, class Id>
__device__ inline int64_t count_of_thread(const Id* targets, int64_t ignore_index, int64_t rows) {
  int64_t count = 0;
#pragma unroll 8
  for (int64_t row = threadIdx.x; row < rows; row += kThreads) count += targets[row] != ignore_index;
  return count;
}

// How many of the targets (int32 or int64) of a thread count.
template <int kThreads>
__device__ inline int64_t count_of_thread(const void* targets, DType dtype, int64_t ignore_index, int64_t rows) {
  return dtype == DType::int32 ? count_of_thread<kThreads>(static_cast<const int32_t*>(targets), ignore_index, rows)
                               : count_of_thread<kThreads>(static_cast<const int64_t*>(targets), ignore_index, rows);
}

}  // namespace blutensor::cuda
