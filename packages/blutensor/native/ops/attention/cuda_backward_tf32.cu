// Tile sizes of the tf32 backward kernels.
#include "ops/attention/cuda_backward.cuh"
#include "ops/attention/cuda_tiled.h"

namespace blutensor::cuda {

void attention_backward_tf32(const AttentionArguments& args, cudaStream_t stream) {
  launch_attention_delta<float>(args, stream);
  if (args.head_dim <= 32) {
    launch_attention_backward_keys<Tf32<32>, 2, 32, 32>(args, stream);
    launch_attention_backward_queries<Tf32<32>, 2, 32, 32>(args, stream);
  } else if (args.head_dim <= 64) {
    launch_attention_backward_keys<Tf32<64>, 2, 32, 32>(args, stream);
    launch_attention_backward_queries<Tf32<64>, 2, 32, 32>(args, stream);
  } else if (args.head_dim <= 96) {
    launch_attention_backward_keys<Tf32<96>, 1, 32, 32>(args, stream);
    launch_attention_backward_queries<Tf32<96>, 1, 32, 32>(args, stream);
  } else {
    launch_attention_backward_keys<Tf32<128>, 1, 16, 16>(args, stream);
    launch_attention_backward_queries<Tf32<128>, 1, 16, 16>(args, stream);
  }
}

}  // namespace blutensor::cuda
