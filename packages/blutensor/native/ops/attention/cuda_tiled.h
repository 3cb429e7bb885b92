// The tiled kernels by arithmetic; each choice of tiles is one file.
//
// For operands of 1 <= D <= 128 whose rows start at multiples of 16 bytes and have last strides of 1, and scale > 0; bf16 takes
// bfloat16, tf32 and ieee take float32.
#pragma once

#include "ops/attention/cuda_arguments.h"

namespace blutensor::cuda {

void attention_forward_bf16(const AttentionArguments& args, cudaStream_t stream);
void attention_forward_tf32(const AttentionArguments& args, cudaStream_t stream);
void attention_forward_ieee(const AttentionArguments& args, cudaStream_t stream);
void attention_backward_bf16(const AttentionArguments& args, cudaStream_t stream);
void attention_backward_tf32(const AttentionArguments& args, cudaStream_t stream);
void attention_backward_ieee(const AttentionArguments& args, cudaStream_t stream);

// bf16 with D > 32, backward with D <= 64, on a device of compute capability 9.0, in builds for 90a.
bool supports_attention_forward_bf16_sm90(const AttentionArguments& args);
bool supports_attention_backward_bf16_sm90(const AttentionArguments& args);
void attention_forward_bf16_sm90(const AttentionArguments& args, cudaStream_t stream);
void attention_backward_bf16_sm90(const AttentionArguments& args, cudaStream_t stream);

}  // namespace blutensor::cuda
