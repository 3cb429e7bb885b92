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
  // Of float32, the kernels that add their sums to totals (CudaPlan), and the shared memory that they need more.
  std::array<std::array<const void*, 2>, 2> kernels_with_totals = kernels;
  int totals_bytes = 0;
};

template <typename Shape>
CudaConfig config_of(const char* name, CudaMath math, const std::array<std::array<const void*, 2>, 2>& kernels) {
  return {name,           math,          Shape::kBlockM,  Shape::kBlockN,
          Shape::kBlockK, Shape::kWarpM, Shape::kThreads, Shape::kSharedBytes,
          Shape::kBlocks, kernels};
}

std::span<const CudaConfig> float32_configs();
std::span<const CudaConfig> tf32_configs();
std::span<const CudaConfig> bfloat16_configs();

}  // namespace blublas
