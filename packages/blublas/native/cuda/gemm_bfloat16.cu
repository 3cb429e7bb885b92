// The bfloat16 tile kernels of this build.
#include "cuda/configs.h"
#include "cuda/mma.cuh"

namespace blublas {
namespace {

template <typename Shape>
CudaConfig config(const char* name) {
  return {name,
          CudaMath::bfloat16,
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

std::span<const CudaConfig> bfloat16_configs() {
  static const std::array table = {
      config<MmaShape<uint16_t, 128, 128, 64, 64, 64, 3, 2>>("bf16_128x128x64_3"),
      config<MmaShape<uint16_t, 128, 256, 64, 64, 64, 4, 1>>("bf16_128x256x64_4"),
      config<MmaShape<uint16_t, 64, 64, 64, 32, 32, 3, 2>>("bf16_64x64x64_3"),
  };
  return table;
}

}  // namespace blublas
