// The float32 tile kernels of this build.
#include "cuda/configs.h"
#include "cuda/simt.cuh"

namespace blublas {
namespace {

// Of a K-major B, blocks of 8 k: at 16 its values on their way to shared memory take too many registers.
template <int kBlockM, int kBlockN, int kBlockK, int kWarpM, int kWarpN, int kBlocks>
CudaConfig config(const char* name) {
  using Shape = SimtShape<kBlockM, kBlockN, kBlockK, kWarpM, kWarpN, kBlocks>;
  using Short = SimtShape<kBlockM, kBlockN, 8, kWarpM, kWarpN, kBlocks>;
  static_assert(kBlockK % 8 == 0 && Short::kSharedBytes <= Shape::kSharedBytes);
  const auto kernels = []<bool kTotals>(std::bool_constant<kTotals>) {
    return std::array<std::array<const void*, 2>, 2>{
        {{reinterpret_cast<const void*>(gemm_f32_simt<Shape, false, false, kTotals>),
          reinterpret_cast<const void*>(gemm_f32_simt<Short, false, true, kTotals>)},
         {reinterpret_cast<const void*>(gemm_f32_simt<Shape, true, false, kTotals>),
          reinterpret_cast<const void*>(gemm_f32_simt<Short, true, true, kTotals>)}}};
  };
  CudaConfig result = config_of<Shape>(name, CudaMath::float32, kernels(std::false_type{}));
  result.kernels_with_totals = kernels(std::true_type{}), result.totals_bytes = Shape::kTotalsBytes;
  return result;
}

}  // namespace

std::span<const CudaConfig> float32_configs() {
  static const std::array table = {
      config<128, 128, 16, 64, 64, 2>("f32_128x128"),
      config<128, 256, 8, 64, 64, 1>("f32_128x256"),
      config<64, 64, 8, 32, 32, 3>("f32_64x64"),
  };
  return table;
}

}  // namespace blublas
