#include "ops/random/distributions_simd.h"

namespace blutensor {

namespace {

// Known answers of Random123 1.14 (kat_vectors, philox4x32 10), checked wherever this file is compiled.
static_assert(philox({0, 0, 0, 0}, {0, 0}) == PhiloxCounter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
static_assert(philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}) ==
              PhiloxCounter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
static_assert(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
              PhiloxCounter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});

void bits(int64_t num_groups, uint32_t* out, const RandomStream& stream, int64_t first_group) {
  for (int64_t i = 0; i < num_groups; ++i)
    for (uint32_t word : stream.draw(first_group + i)) *out++ = word;
}

}  // namespace

void use_reference(RandomKernels& kernels) {
  kernels.bits = bits;
  use_distributions(kernels);
}

}  // namespace blutensor
