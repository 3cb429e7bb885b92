// What a tile kernel gets: operands whose rows or columns are contiguous, how the product is cut, the epilogue.
#pragma once

#include <cstdint>

#include "cuda/epilogue.h"

namespace blublas {

struct GemmParams {
  const void* a = nullptr;
  const void* b = nullptr;
  int64_t a_stride = 0, b_stride = 0;              // of the axis that is not contiguous, in elements
  int64_t a_batch_stride = 0, b_batch_stride = 0;  // in elements
  int32_t m = 0, n = 0, k = 0;
  int32_t tiles_m = 0, tiles_n = 0;
  int32_t splits = 1, k_per_split = 0;  // K is cut into `splits` parts; k_per_split is a multiple of the tile's K
  EpilogueParams epilogue;
};

// Which tile a block does. Tiles are numbered down the rows in groups of `kGroup` rows of tiles, so that the blocks that
// run at one time share rows of A and columns of B in the cache.
struct TilePlace {
  int tile_m, tile_n, batch, split;
};

#ifdef __CUDACC__
__device__ __forceinline__ TilePlace tile_place(const GemmParams& p) {
  constexpr int kGroup = 8;
  const int index = static_cast<int>(blockIdx.x), per_group = kGroup * p.tiles_n, group = index / per_group;
  const int rows = min(kGroup, p.tiles_m - group * kGroup), inside = index - group * per_group;
  const int z = static_cast<int>(blockIdx.z);
  return {group * kGroup + inside % rows, inside / rows, z / p.splits, z % p.splits};
}
#endif

}  // namespace blublas
