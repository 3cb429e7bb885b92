// The tile kernels of this build, by name.
#pragma once

#include <array>
#include <span>

#include "cuda/params.h"

namespace blublas {

enum class CudaMath { float32, tf32, bfloat16 };

// One shape of tile, in the four layouts.
struct CudaConfig {
  const char* name;
  CudaMath math;
  int block_m, block_n, block_k, warp_m;
  int threads, shared_bytes;
  int blocks;  // that fit on a multiprocessor of compute capability 9.0
  // [A is K-major][B is K-major]
  std::array<std::array<const void*, 2>, 2> kernels;
  int chain = 0, totals_bytes = 0;  // more shared memory, where the part of K that a block does is longer than `chain`

  int shared_bytes_for(int64_t k) const { return shared_bytes + (k > chain ? totals_bytes : 0); }
};

std::span<const CudaConfig> float32_configs();
std::span<const CudaConfig> tf32_configs();
std::span<const CudaConfig> bfloat16_configs();

}  // namespace blublas
