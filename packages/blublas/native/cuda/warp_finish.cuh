// The end of a tile kernel: a warp's sums go through shared memory, sixteen rows at a time, so that global memory is
// read and written in whole lines whatever the layout of the sums in registers.
#pragma once

#include "cuda/epilogue.cuh"
#include "cuda/params.h"

namespace blublas {

template <int kCols>
struct WarpStage {
  static constexpr int kRows = 16, kStride = kCols + 8;  // 8: rows start 8 banks apart
  static constexpr int kBytes = kRows * kStride * 4;
};

// (row, column): the warp's first element. put(slice, stage) stores sixteen rows of sums to stage[row * kStride + col].
template <int kRows, int kCols, typename Put>
__device__ __forceinline__ void warp_finish(const EpilogueParams& e, const TilePlace& place, int z, int64_t row,
                                            int64_t column, float* stage, Put&& put) {
  using Stage = WarpStage<kCols>;
  constexpr int kLanes = kCols / 4, kPerPass = 32 / kLanes, kUnroll = 4, kSteps = 16 / (kPerPass * kUnroll);
  static_assert(kRows % 16 == 0 && kSteps >= 1);
  const int lane = static_cast<int>(threadIdx.x) % 32, own_row = lane / kLanes, own_column = lane % kLanes * 4;
  const int64_t at = column + own_column;
  const int count = static_cast<int>(min(static_cast<int64_t>(4), e.n - at));
  float bias[4], column_sum[4] = {};
  load_bias(e, z, at, count, bias);
#pragma unroll
  for (int slice = 0; slice < kRows / 16; ++slice) {
    put(slice, stage);
    __syncwarp();
#pragma unroll 1
    for (int step = 0; step < kSteps; ++step) {
      float v[kUnroll][4];
      const int first = step * kPerPass * kUnroll + own_row;
#pragma unroll
      for (int i = 0; i < kUnroll; ++i) {
        const float4 x = *reinterpret_cast<const float4*>(stage + (first + i * kPerPass) * Stage::kStride + own_column);
        v[i][0] = x.x, v[i][1] = x.y, v[i][2] = x.z, v[i][3] = x.w;
      }
      finish_quads<kUnroll>(e, z, row + slice * 16 + first, kPerPass, at, count, bias, v, column_sum);
    }
    __syncwarp();
  }
  if (e.partials != nullptr) {
    // Lanes with the same columns: always added in the same order.
#pragma unroll
    for (int offset = kLanes; offset < 32; offset *= 2)
#pragma unroll
      for (int j = 0; j < 4; ++j) column_sum[j] += __shfl_xor_sync(0xFFFFFFFFu, column_sum[j], offset);
    if (own_row == 0 && row < e.m) store_partial(e, place.batch, row / kRows, at, count, column_sum);
  }
}

}  // namespace blublas
