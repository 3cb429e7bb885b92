// The bfloat16 kernels of sm_90a: head dimensions of up to 64.
#include "ops/attention/cuda_backward.cuh"
#include "ops/attention/cuda_forward.cuh"
#include "ops/attention/cuda_sm90.cuh"
#include "ops/attention/cuda_tiled.h"

namespace blutensor::cuda {

bool supports_attention_bf16_sm90(const AttentionArguments& args) {
#ifdef BLUTENSOR_HAVE_SM90A
  if (args.head_dim <= 32 || args.head_dim > 64) return false;  // 32: mma.sync has less padding
  int device = 0, major = 0, minor = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
         cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess && major == 9 &&
         minor == 0;
#else
  static_cast<void>(args);
  return false;
#endif
}

void attention_forward_bf16_sm90(const AttentionArguments& args, cudaStream_t stream) {
  launch_attention_forward<Bf16Sm90<8>, 1, 64>(args, stream);
}

void attention_backward_bf16_sm90(const AttentionArguments& args, cudaStream_t stream) {
  launch_attention_delta<__nv_bfloat16>(args, stream);
  launch_attention_backward_keys<Bf16Sm90<4>, 1, 64, 64>(args, stream);
  launch_attention_backward_queries<Bf16Sm90<4>, 1, 64, 64>(args, stream);
}

}  // namespace blutensor::cuda
