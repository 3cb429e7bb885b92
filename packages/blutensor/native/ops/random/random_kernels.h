// Kernels that draw from a RandomStream.
#pragma once

#include <cstdint>

#include "ops/random/philox.h"

namespace blutensor {

// A number on [0, 1) from 24 of 32 bits.
inline constexpr float kUnit24 = 0x1p-24f;

struct RandomKernels {
  // out[4 i ... 4 i + 3] = numbers of group first_group + i, for 0 <= i < num_groups.
  void (*bits)(int64_t num_groups, uint32_t* out, const RandomStream& stream, int64_t first_group) = nullptr;
  // out[i] = x[i] * (bits[i] / 2^8 < threshold ? scale : 0). `out` may be x.
  void (*dropout_f32)(int64_t n, float* out, const float* x, const uint32_t* bits, uint32_t threshold,
                      float scale) = nullptr;
  // out[i] = low + width u, u = bits[i] / 2^8 / 2^24, rounded once and at most `largest`.
  void (*uniform_f32)(int64_t n, float* out, const uint32_t* bits, double low, double width, float largest) = nullptr;
  // Pairs of normal numbers, mean + deviation sqrt(-2 log u) (cos, sin)(2 pi v), from pairs of words (u in the open
  // interval); n is even.
  void (*normal_f32)(int64_t n, float* out, const uint32_t* bits, float mean, float deviation) = nullptr;
};

void use_reference(RandomKernels& kernels);
void use_avx2(RandomKernels& kernels);
void use_avx512(RandomKernels& kernels);

}  // namespace blutensor
