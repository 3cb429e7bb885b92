// What the CUDA attention kernels are given, and the kernels' launchers. Plain structs: no tensors, no registry.
//
// Legend: T queries, S keys, D head dimension; a pair is one (batch, head). Strides are in elements.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "tensor/dtype.h"

namespace blutensor::cuda {

inline constexpr int kMaxLeadingAxes = 6;

// The leading axes that all operands share, merged where the strides allow it.
struct LeadingAxes {
  int32_t rank = 0;
  uint32_t shape[kMaxLeadingAxes] = {};
};

// A [..., rows, D] operand (or [..., rows] with col_stride unused).
struct AttentionOperand {
  void* data = nullptr;
  int64_t row_stride = 0, col_stride = 0;
  int64_t leading_strides[kMaxLeadingAxes] = {};
};

struct AttentionArguments {
  LeadingAxes leading;
  uint32_t num_pairs = 0;
  int32_t num_queries = 0, num_keys = 0, head_dim = 0;
  bool causal = false;  // query i sees keys 0 .. i
  double scale = 1;
  AttentionOperand query, key, value, output;                      // [.., T, D], [.., S, D], [.., S, D], [.., T, D]
  AttentionOperand grad_output, grad_query, grad_key, grad_value;  // backward
  AttentionOperand grad_logsumexp;                                 // [.., T], data may be null
  void* logsumexp = nullptr;                                       // [num_pairs, T], row-major
  void* delta = nullptr;                                           // [num_pairs, T], scratch of backward
  const void* position = nullptr;                                  // decode: the last visible row of the cache
  bool position_is_int64 = false;
};

// Any dtype, strides and scale, D <= 256: one warp per row.
void attention_forward_generic(const AttentionArguments& args, DType dtype, cudaStream_t stream);
void attention_backward_generic(const AttentionArguments& args, DType dtype, cudaStream_t stream);
void attention_decode(const AttentionArguments& args, DType dtype, cudaStream_t stream);

// ---------------------------------------------------------------- inside the kernels

#ifdef __CUDACC__
// Offset of a pair in an operand, in elements. Seldom more than one axis is left besides the first, which takes no division.
__device__ __forceinline__ int64_t pair_offset(const LeadingAxes& leading, const AttentionOperand& operand,
                                               uint32_t pair) {
  int64_t sum = 0;
#pragma unroll
  for (int i = kMaxLeadingAxes - 1; i > 0; --i) {
    if (i >= leading.rank) continue;
    const uint32_t outer = pair / leading.shape[i];
    sum += static_cast<int64_t>(pair - outer * leading.shape[i]) * operand.leading_strides[i];
    pair = outer;
  }
  return sum + static_cast<int64_t>(pair) * operand.leading_strides[0];
}
#endif

}  // namespace blutensor::cuda
