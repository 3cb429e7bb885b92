// What every CUDA launcher of this package needs: the stream, checked launches, grid sizes.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

#include "ops/operator.h"
#include "tensor/device.h"

namespace blutensor::cuda {

inline cudaStream_t stream_of(const Launch& launch) { return static_cast<cudaStream_t>(launch.stream); }

// Throws with CUDA's text: Status::device_lost where nothing works any more, else Status::runtime.
inline void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) cuda_failed(error, what);
}

// After every <<<>>>: a launch that was refused is reported where it was made.
inline void check_launch(const char* op) { check(cudaGetLastError(), op); }

// Multiprocessors of the current device; asked once per device.
int num_multiprocessors();

// Blocks for n items of `per_block`, at most `waves` resident blocks per multiprocessor: for grid-stride loops.
inline unsigned grid_for(int64_t n, int64_t per_block, int waves = 8) {
  const int64_t blocks = (n + per_block - 1) / per_block;
  return static_cast<unsigned>(std::clamp<int64_t>(blocks, 1, static_cast<int64_t>(num_multiprocessors()) * waves));
}

}  // namespace blutensor::cuda
