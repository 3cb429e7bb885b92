// Tensor copies from global to shared memory by the copy engine of sm_90.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace blublas::sm90 {

__device__ __forceinline__ void prefetch_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// The box at (x, y), x along the contiguous dimension, to `to`; its bytes are counted by `barrier`.
__device__ __forceinline__ void load_box(uint32_t to, const CUtensorMap* map, uint32_t barrier, int32_t x, int32_t y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::
          "r"(to),
      "l"(map), "r"(barrier), "r"(x), "r"(y)
      : "memory");
}

// The same into every block of the cluster whose bit is set in `blocks`, at the same place, counted by each one's own barrier.
__device__ __forceinline__ void load_box_shared(uint32_t to, const CUtensorMap* map, uint32_t barrier, int32_t x,
                                                int32_t y, uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
      "l"(map), "r"(barrier), "r"(x), "r"(y), "h"(blocks)
      : "memory");
}

}  // namespace blublas::sm90
