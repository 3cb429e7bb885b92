// Attention with AVX-512: the templates on sixteen lanes.
#include "ops/attention/backward_simd.h"
#include "ops/attention/forward_simd.h"

namespace blutensor {

const AttentionKernels kAttentionAvx512 = {attention_forward, attention_backward, nullptr};

}  // namespace blutensor
