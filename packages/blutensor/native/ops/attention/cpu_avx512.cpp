// Attention with AVX-512: the templates of attention_simd.h on sixteen lanes.
#include "ops/attention/vector_avx512.h"

#include "ops/attention/attention_simd.h"

namespace blutensor {

const AttentionKernels kAttentionAvx512 = {attention_forward, nullptr, nullptr};

}  // namespace blutensor
