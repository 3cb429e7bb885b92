// Attention with AVX-512: the templates on sixteen lanes.
#include "ops/attention/backward_simd.h"
#include "ops/attention/decode_simd.h"
#include "ops/attention/forward_simd.h"

namespace blutensor {

void use_avx512(AttentionKernels& kernels) { kernels = {attention_forward, attention_backward, attention_decode}; }

}  // namespace blutensor
