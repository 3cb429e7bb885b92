// The tf32 tile kernels of this build.
#include "cuda/configs.h"
#include "cuda/mma.cuh"

namespace blublas {
namespace {

template <typename Shape>
CudaConfig config(const char* name) {
  return {name,
          CudaMath::tf32,
          Shape::kBlockM,
          Shape::kBlockN,
          Shape::kBlockK,
          Shape::kWarpM,
          Shape::kThreads,
          Shape::kSharedBytes,
          Shape::kBlocks,
          {{{reinterpret_cast<const void*>(gemm_mma<Shape, false, false>),
             reinterpret_cast<const void*>(gemm_mma<Shape, false, true>)},
            {reinterpret_cast<const void*>(gemm_mma<Shape, true, false>),
             reinterpret_cast<const void*>(gemm_mma<Shape, true, true>)}}}};
}

}  // namespace

std::span<const CudaConfig> tf32_configs() {
  static const std::array table = {
      config<MmaShape<float, 128, 128, 32, 64, 64, 3, 2>>("tf32_128x128x32_3"),
      config<MmaShape<float, 128, 256, 32, 64, 64, 4, 1>>("tf32_128x256x32_4"),
      config<MmaShape<float, 64, 64, 32, 32, 32, 3, 2>>("tf32_64x64x32_3"),
  };
  return table;
}

}  // namespace blublas
