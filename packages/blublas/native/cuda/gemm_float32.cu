// The float32 tile kernels of this build.
#include "cuda/configs.h"
#include "cuda/simt.cuh"

namespace blublas {
namespace {

template <typename Shape>
CudaConfig config(const char* name) {
  return {name,
          CudaMath::float32,
          Shape::kBlockM,
          Shape::kBlockN,
          Shape::kBlockK,
          Shape::kWarpM,
          Shape::kThreads,
          Shape::kSharedBytes,
          Shape::kBlocks,
          {{{reinterpret_cast<const void*>(gemm_f32_simt<Shape, false, false>),
             reinterpret_cast<const void*>(gemm_f32_simt<Shape, false, true>)},
            {reinterpret_cast<const void*>(gemm_f32_simt<Shape, true, false>),
             reinterpret_cast<const void*>(gemm_f32_simt<Shape, true, true>)}}}};
}

}  // namespace

std::span<const CudaConfig> float32_configs() {
  static const std::array table = {
      config<SimtShape<128, 128, 64, 64, 3, 2>>("f32_128x128"),
      config<SimtShape<64, 64, 32, 32, 3, 2>>("f32_64x64"),
  };
  return table;
}

}  // namespace blublas
