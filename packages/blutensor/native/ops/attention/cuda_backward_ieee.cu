// Tile sizes of the IEEE float32 backward kernels.
#include "ops/attention/cuda_backward.cuh"
#include "ops/attention/cuda_tiled.h"

namespace blutensor::cuda {

void attention_backward_ieee(const AttentionArguments& args, cudaStream_t stream) {
  launch_attention_delta<float>(args, stream);
  if (args.head_dim <= 32) {
    launch_attention_backward_keys<Ieee<32>, 2, 32, 32>(args, stream);
    launch_attention_backward_queries<Ieee<32>, 2, 32, 32>(args, stream);
  } else if (args.head_dim <= 64) {
    launch_attention_backward_keys<Ieee<64>, 2, 32, 32>(args, stream);
    launch_attention_backward_queries<Ieee<64>, 2, 32, 32>(args, stream);
  } else if (args.head_dim <= 96) {
    launch_attention_backward_keys<Ieee<96>, 1, 32, 32>(args, stream);
    launch_attention_backward_queries<Ieee<96>, 1, 32, 32>(args, stream);
  } else {
    launch_attention_backward_keys<Ieee<128>, 1, 16, 16>(args, stream);
    launch_attention_backward_queries<Ieee<128>, 1, 16, 16>(args, stream);
  }
}

}  // namespace blutensor::cuda
