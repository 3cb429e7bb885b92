// The bfloat16 kernels of sm_90a: forward for head dimensions of 33 to 128, backward for up to 64.
#include "ops/attention/cuda_backward.cuh"
#include "ops/attention/cuda_forward_sm90.cuh"
#include "ops/attention/cuda_sm90.cuh"
#include "ops/attention/cuda_tiled.h"

namespace blutensor::cuda {

namespace {

bool has_sm90() {
#ifdef BLUTENSOR_HAVE_SM90A
  int device = 0, major = 0, minor = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
         cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess && major == 9 &&
         minor == 0;
#else
  return false;
#endif
}

}  // namespace

// Up to 32 columns mma.sync has less padding.
bool supports_attention_forward_bf16_sm90(const AttentionArguments& args) { return args.head_dim > 32 && has_sm90(); }
bool supports_attention_backward_bf16_sm90(const AttentionArguments& args) {
  return args.head_dim > 32 && args.head_dim <= 64 && has_sm90();
}

void attention_forward_bf16_sm90(const AttentionArguments& args, cudaStream_t stream) {
  if (args.head_dim <= 64) return launch_attention_forward_overlapped<64, 8, 64, 2>(args, stream);
  if (args.head_dim <= 96) return launch_attention_forward_overlapped<96, 12, 64, 1>(args, stream);
  launch_attention_forward_overlapped<128, 4, 64, 2>(args, stream);
}

void attention_backward_bf16_sm90(const AttentionArguments& args, cudaStream_t stream) {
  launch_attention_delta<__nv_bfloat16>(args, stream);
  launch_attention_backward_keys<Bf16Sm90<4>, 1, 64, 64>(args, stream);
  launch_attention_backward_queries<Bf16Sm90<4>, 1, 64, 64>(args, stream);
}

}  // namespace blutensor::cuda
