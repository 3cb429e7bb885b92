// Attention with AVX2: the templates on eight lanes.
#include "ops/attention/backward_simd.h"
#include "ops/attention/decode_simd.h"
#include "ops/attention/forward_simd.h"

namespace blutensor {

void use_avx2(AttentionKernels& kernels) { kernels = {attention_forward, attention_backward, attention_decode}; }

}  // namespace blutensor
