// Attention with AVX2: the templates on eight lanes.
#include "ops/attention/backward_simd.h"
#include "ops/attention/forward_simd.h"

namespace blutensor {

const AttentionKernels kAttentionAvx2 = {attention_forward, attention_backward, nullptr};

}  // namespace blutensor
