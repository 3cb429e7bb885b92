// Tile sizes of the IEEE float32 forward kernels.
#include "ops/attention/cuda_forward.cuh"
#include "ops/attention/cuda_tiled.h"

namespace blutensor::cuda {

void attention_forward_ieee(const AttentionArguments& args, cudaStream_t stream) {
  if (args.head_dim <= 32) return launch_attention_forward<Ieee<32>, 2, 32>(args, stream);
  if (args.head_dim <= 64) return launch_attention_forward<Ieee<64>, 2, 32>(args, stream);
  if (args.head_dim <= 96) return launch_attention_forward<Ieee<96>, 1, 32>(args, stream);
  launch_attention_forward<Ieee<128>, 1, 32>(args, stream);
}

}  // namespace blutensor::cuda
