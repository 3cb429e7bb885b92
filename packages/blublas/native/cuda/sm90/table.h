// The kernels of this folder as data: what each one computes and how it is launched.
#pragma once

#include <cstdint>
#include <span>

#include "cuda/sm90/kernel.h"

namespace blublas::sm90 {

struct Kernel {
  const void* function;  // void(CUtensorMap a, CUtensorMap b, Finish, Cut), by value
  int32_t shared_bytes;
  Major a, b;
  Kind kind;
  int32_t tile_n, tile_k;
  bool cooperative;
  int32_t cluster;
};

std::span<const Kernel> bf16_kernels();
std::span<const Kernel> tf32_kernels();

}  // namespace blublas::sm90
