#include "ops/random/random_kernels.h"

namespace blutensor {

namespace {

void bits(int64_t num_groups, uint32_t* out, const RandomStream& stream, int64_t first_group) {
  for (int64_t i = 0; i < num_groups; ++i)
    for (uint32_t word : stream.draw(first_group + i)) *out++ = word;
}

void dropout_f32(int64_t n, float* out, const float* x, const uint32_t* random, uint32_t threshold, float scale) {
  for (int64_t i = 0; i < n; ++i) out[i] = x[i] * ((random[i] >> 8) < threshold ? scale : 0.0f);
}

}  // namespace

void use_reference(RandomKernels& kernels) {
  kernels.bits = bits;
  kernels.dropout_f32 = dropout_f32;
}

}  // namespace blutensor
