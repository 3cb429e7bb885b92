// Kernels that draw from a RandomStream.
#pragma once

#include <cstdint>

#include "ops/random/philox.h"

namespace blutensor {

struct RandomKernels {
  // out[4 i ... 4 i + 3] = numbers of group first_group + i, for 0 <= i < num_groups.
  void (*bits)(int64_t num_groups, uint32_t* out, const RandomStream& stream, int64_t first_group) = nullptr;
};

void use_reference(RandomKernels& kernels);
void use_avx2(RandomKernels& kernels);
void use_avx512(RandomKernels& kernels);

}  // namespace blutensor
