// Tile sizes of the bfloat16 forward kernels.
#include "ops/attention/cuda_forward.cuh"
#include "ops/attention/cuda_tiled.h"

namespace blutensor::cuda {

void attention_forward_bf16(const AttentionArguments& args, cudaStream_t stream) {
  if (supports_attention_forward_bf16_sm90(args)) return attention_forward_bf16_sm90(args, stream);
  if (args.head_dim <= 32) return launch_attention_forward<Bf16<32>, 2, 64>(args, stream);
  if (args.head_dim <= 64) return launch_attention_forward<Bf16<64>, 2, 64>(args, stream);
  if (args.head_dim <= 96) return launch_attention_forward<Bf16<96>, 2, 64>(args, stream);
  launch_attention_forward<Bf16<128>, 2, 32>(args, stream);
}

}  // namespace blutensor::cuda
