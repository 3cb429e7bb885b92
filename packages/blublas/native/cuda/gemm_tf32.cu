// The tf32 tile kernels of this build.
#include "cuda/mma_config.cuh"

namespace blublas {

std::span<const CudaConfig> tf32_configs() {
  static const std::array table = {
      mma_config<MmaShape<float, 128, 128, 32, 64, 64, 3, 2>>("tf32_128x128x32_3"),
      mma_config<MmaShape<float, 128, 256, 32, 64, 64, 4, 1>>("tf32_128x256x32_4"),
      mma_config<MmaShape<float, 64, 64, 32, 32, 32, 3, 2>>("tf32_64x64x32_3"),
  };
  return table;
}

}  // namespace blublas
