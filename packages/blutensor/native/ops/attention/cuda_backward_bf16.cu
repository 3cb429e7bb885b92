// Tile sizes of the bfloat16 backward kernels.
#include "ops/attention/cuda_backward.cuh"
#include "ops/attention/cuda_tiled.h"

namespace blutensor::cuda {

void attention_backward_bf16(const AttentionArguments& args, cudaStream_t stream) {
  if (supports_attention_backward_bf16_sm90(args)) return attention_backward_bf16_sm90(args, stream);
  launch_attention_delta<__nv_bfloat16>(args, stream);
  if (args.head_dim <= 32) {
    launch_attention_backward_keys<Bf16<32>, 2, 64, 32>(args, stream);
    launch_attention_backward_queries<Bf16<32>, 2, 64, 32>(args, stream);
  } else if (args.head_dim <= 64) {
    launch_attention_backward_keys<Bf16<64>, 2, 64, 32>(args, stream);
    launch_attention_backward_queries<Bf16<64>, 2, 64, 32>(args, stream);
  } else if (args.head_dim <= 96) {
    launch_attention_backward_keys<Bf16<96>, 1, 64, 64>(args, stream);
    launch_attention_backward_queries<Bf16<96>, 2, 32, 32>(args, stream);
  } else {
    launch_attention_backward_keys<Bf16<128>, 1, 32, 32>(args, stream);
    launch_attention_backward_queries<Bf16<128>, 2, 32, 16>(args, stream);
  }
}

}  // namespace blutensor::cuda
