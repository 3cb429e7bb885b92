// The bfloat16 tile kernels of this build.
#include "cuda/mma_config.cuh"

namespace blublas {

std::span<const CudaConfig> bfloat16_configs() {
  static const std::array table = {
      mma_config<MmaShape<uint16_t, 128, 128, 64, 64, 64, 3, 2>>("bf16_128x128x64_3"),
      mma_config<MmaShape<uint16_t, 128, 256, 64, 64, 64, 4, 1>>("bf16_128x256x64_4"),
      mma_config<MmaShape<uint16_t, 64, 64, 64, 32, 32, 3, 2>>("bf16_64x64x64_3"),
  };
  return table;
}

}  // namespace blublas
