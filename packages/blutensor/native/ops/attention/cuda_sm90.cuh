// bfloat16 on the tensor cores of sm_90a: the arithmetic of cuda_arithmetic.cuh with warpgroup products.
//
// Four warps own 64 rows together; within a warp accumulators lie as those of one mma.sync tile (kTiles = 1), so that
// everything around the products stays as it is. Tiles have 64 columns: their swizzle is the one of the descriptors.
// Products are issued and waited for apart: other work may come between.
#pragma once

#include "ops/attention/cuda_arithmetic.cuh"
#include "ops/attention/ptx/wgmma.cuh"

namespace blutensor::cuda {

template <int kWarps_>
struct Bf16Sm90 : Bf16<64, kWarps_> {
  using Base = Bf16<64, kWarps_>;
  using Rows = typename Base::Rows;
  static constexpr bool kIsAsync = true;
  static constexpr int kBackwardBlocks = 3;
  template <int kTiles>
  using FastLeft = typename Base::template Left<kTiles>;

  template <int kTiles, int kColumns, class Left>
  __device__ static void scores(float (&s)[kTiles][kColumns / 8][4], const Left& a, uint32_t b) {
    static_assert(kTiles == 1 && kColumns == 64);
    const uint32_t first_row = a.rows - (threadIdx.x / 32 & 3) * 16 * Rows::kRowBytes;  // of the warpgroup
    // Descriptors live in uniform registers.
    const uint64_t left = ptx::wgmma_descriptor(__shfl_sync(~0u, first_row, 0)), right = ptx::wgmma_descriptor(b);
    ptx::wgmma_pin(s[0]);
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step) ptx::wgmma_64x64x16(s[0], left + 2 * step, right + 2 * step, step);
    ptx::wgmma_commit();
  }

  template <int kTiles, int kColumns>
  __device__ static void accumulate(float (&o)[kTiles][8][4], const float (&s)[kTiles][kColumns / 8][4], uint32_t v) {
    static_assert(kTiles == 1 && kColumns == 64);
    uint32_t left[4][4];
#pragma unroll
    for (int k = 0; k < 4; ++k) Base::template pack<kColumns>(left[k], s[0], k);
    const uint64_t right = ptx::wgmma_descriptor(v);
    ptx::wgmma_pin(o[0]);
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k) ptx::wgmma_64xNx16<true>(o[0], left[k], right + 128 * k, 1);
    ptx::wgmma_commit();
  }

  // Until all but the latest kPending products are there.
  template <int kPending, int kTiles, int kBlocks>
  __device__ static void wait(float (&d)[kTiles][kBlocks][4]) {
    ptx::wgmma_wait<kPending>();
#pragma unroll
    for (int m = 0; m < kTiles; ++m) ptx::wgmma_pin(d[m]);
  }
  __device__ static void publish_loaded() { ptx::fence_shared_for_wgmma(); }
};

}  // namespace blutensor::cuda
