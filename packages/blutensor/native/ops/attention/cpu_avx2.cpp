// Attention with AVX2: the templates of attention_simd.h on eight lanes.
#include "ops/attention/vector_avx2.h"

#include "ops/attention/attention_simd.h"

namespace blutensor {

const AttentionKernels kAttentionAvx2 = {attention_forward, nullptr, nullptr};

}  // namespace blutensor
