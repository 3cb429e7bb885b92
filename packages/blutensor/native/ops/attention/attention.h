// What the operators of attention share: launching over all (batch, head) pairs.
#pragma once

#include "ops/operator.h"

namespace blutensor {

// Inputs query, key, value; outputs output, logsumexp; attributes is_causal and scale, first.
void launch_attention_forward(const Launch& launch);
// Inputs grad_output, query, key, value, output, logsumexp, grad_logsumexp; outputs the gradients of query, key and value.
// The workspace holds as many numbers as logsumexp.
void launch_attention_backward(const Launch& launch);

// qkv_attention and its gradient, through one of the launchers above or its like on another device.
void launch_qkv_attention(const Launch& launch, void (*attention)(const Launch&));
void launch_qkv_attention_backward(const Launch& launch, void (*attention)(const Launch&));

// Statistics are float32, float64 for float64.
DType attention_stat_dtype(DType dtype);

}  // namespace blutensor
