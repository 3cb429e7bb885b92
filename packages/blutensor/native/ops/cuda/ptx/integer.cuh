// Integer instructions that the compiler does not find by itself.
#pragma once

#include <cstdint>

namespace blutensor::cuda::ptx {

// All 64 bits of a product of 32 by 32 in one instruction, for constants beyond 2^31 too.
__device__ inline uint64_t multiply_wide(uint32_t a, uint32_t b) {
  uint64_t product;
  asm("mul.wide.u32 %0, %1, %2;" : "=l"(product) : "r"(a), "r"(b));
  return product;
}

}  // namespace blutensor::cuda::ptx
