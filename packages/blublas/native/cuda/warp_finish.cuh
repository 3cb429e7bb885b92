// The end of a tile kernel: a warp's sums go through shared memory, as many rows at a time as there is room for, so
// that global memory is read and written in whole lines whatever the layout of the sums in registers.
#pragma once

#include "cuda/epilogue.cuh"
#include "cuda/params.h"

namespace blublas {

// kRows x kCols: a warp's tile; kBytes: shared memory that each warp may use; kPairsSwapped: columns 2i and 2i + 1 have
// each other's place in it.
template <int kRows, int kCols, int kBytes, bool kPairsSwapped_ = false>
struct WarpStage {
  static constexpr bool kPairsSwapped = kPairsSwapped_;
  static constexpr int kStride = kCols + 8;  // 8: rows start 8 banks apart
  static constexpr int kStageRows = kRows * kStride * 4 <= kBytes       ? kRows
                                    : kRows / 2 * kStride * 4 <= kBytes ? kRows / 2
                                                                        : 16;
  static constexpr int kFloats = kStageRows * kStride;
  static_assert(kRows % 32 == 0 && kFloats * 4 <= kBytes);
};

// (row, column): the warp's first element. put(slice, at) stores sixteen rows of sums to at[row * kStride + column].
template <typename Stage, int kRows, int kCols, typename Put>
__device__ __forceinline__ void warp_finish(const EpilogueParams& e, const TilePlace& place, int z, int64_t row,
                                            int64_t column, float* stage, Put&& put) {
  constexpr int kStageRows = Stage::kStageRows, kStages = kRows / kStageRows, kSlices = kStageRows / 16;
  constexpr int kLanes = kCols / 4, kPerPass = 32 / kLanes, kUnroll = 4, kSteps = kStageRows / (kPerPass * kUnroll);
  const int lane = static_cast<int>(threadIdx.x) % 32, own_row = lane / kLanes, own_column = lane % kLanes * 4;
  const int64_t at = column + own_column;
  const int count = static_cast<int>(max(min(static_cast<int64_t>(4), e.n - at), static_cast<int64_t>(0)));
  // Rows of this lane that exist.
  const int num_rows =
      count == 0 ? 0 : static_cast<int>(min((e.m - row - own_row + kPerPass - 1) / kPerPass, int64_t{1} << 20));
  const bool inside = e.vectors && row + kRows <= e.m && column + kCols <= e.n;
  float bias[4], column_sum[4] = {};
  load_bias(e, z, at, count, bias);
#pragma unroll
  for (int part = 0; part < kStages; ++part) {
#pragma unroll
    for (int slice = 0; slice < kSlices; ++slice) put(part * kSlices + slice, stage + slice * 16 * Stage::kStride);
    __syncwarp();
    const auto finish = [&](auto&& places) {
#pragma unroll 1
      for (int step = 0; step < kSteps; ++step) {
        float v[kUnroll][4];
        const float* from = stage + (step * kUnroll * kPerPass + own_row) * Stage::kStride + own_column;
#pragma unroll
        for (int i = 0; i < kUnroll; ++i) {
          const float4 x = *reinterpret_cast<const float4*>(from + i * kPerPass * Stage::kStride);
          constexpr bool kSwapped = Stage::kPairsSwapped;
          v[i][kSwapped] = x.x, v[i][!kSwapped] = x.y, v[i][2 + kSwapped] = x.z, v[i][3 - kSwapped] = x.w;
        }
        finish_quads<kUnroll>(e, places, (part * kSteps + step) * kUnroll, num_rows, bias, v, column_sum);
      }
    };
    if (inside)
      finish(QuadPlaces<VectorQuads>(e, z, row + own_row, kPerPass, at, count));
    else
      finish(QuadPlaces<AnyQuads>(e, z, row + own_row, kPerPass, at, count));
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
