// float32 GEMM in float32 (FFMA), any of the four layouts.
//
// A block does a tile of kBlockM x kBlockN, its warps tiles of kWarpM x kWarpN, a thread kWarpM/4 rows by kWarpN/8
// columns in registers, in fours: row i of a lane is i / 4 * 16 + (lane's row of 4) * 4 + i % 4, columns likewise with 8
// lanes. A and B come through a ring of kStages buffers of kBlockK = 16, [k][row], filled by cp.async; K-major operands
// are transposed on the way, by copies of four bytes, so that all layouts have one loop: for every k a thread reads its
// rows and columns in vectors of four while the multiply-adds of the k before run.
//
// A multiply-add reads three registers from two banks, even and odd: it goes at full speed where one operand is that of
// the instruction before and the other two lie in different banks. Hence the order to and fro below; and vectors along
// the rows, because a vector along k would have its numbers in both banks and meet the same sum.
// Cost of a tile: 2 M N K FLOP; shared memory gives 24 bytes for 16 multiply-adds of a thread (64 x 64 warp tiles).
// Benchmark: benchmarks/gemm_cuda.py --work 'gemm.fp32.*'
#pragma once

#include "cuda/ptx/mma.cuh"
#include "cuda/tile_copy.cuh"
#include "cuda/warp_finish.cuh"

namespace blublas {

template <int kInner>
struct SimtPlain {
  static __device__ __forceinline__ constexpr uint32_t offset(int line, int chunk) {
    return static_cast<uint32_t>(line * kInner * 4 + chunk * 16);
  }
};

// k by lines of kInner rows, made from K-major memory: chunks move by k / 4 so that a warp's copies hit different banks.
template <int kInner>
struct SimtTransposed {
  static __device__ __forceinline__ constexpr uint32_t element(int k, int row) {
    return static_cast<uint32_t>((k * kInner + (row ^ (8 * (k / 4)))) * 4);
  }
};

template <int kBlockM_, int kBlockN_, int kWarpM_, int kWarpN_, int kStages_, int kBlocks_, int kUnroll_ = 8>
struct SimtShape {
  static constexpr int kUnroll = kUnroll_;  // k in the loop's body
  static constexpr int kBlockM = kBlockM_, kBlockN = kBlockN_, kWarpM = kWarpM_, kWarpN = kWarpN_, kStages = kStages_;
  static constexpr int kBlockK = 16, kBlocks = kBlocks_;  // blocks of a multiprocessor, for the registers
  static constexpr int kWarpsM = kBlockM / kWarpM, kWarpsN = kBlockN / kWarpN, kThreads = 32 * kWarpsM * kWarpsN;
  static constexpr int kBytesA = kBlockM * kBlockK * 4, kBytesB = kBlockN * kBlockK * 4;
  static constexpr int kRing = kStages * (kBytesA + kBytesB);
  using Stage = WarpStage<kWarpM, kWarpN, kRing / (kWarpsM * kWarpsN)>;  // the ring is free when it is needed
  static constexpr int kSharedBytes = kRing;
  static_assert(kStages >= 3);
  static_assert(kSharedBytes <= 99 * 1024, "compute capability 8.6 and 8.9 have 99 KiB");
};

// Rows (of A, 4 lanes) or columns (of B, 8 lanes) of a lane.
template <bool kTransposed, int kLanes, int kSize, int kBlock, int kBytes>
struct SimtOperand {
  uint32_t base;  // of the lane, in buffer 0

  __device__ SimtOperand(uint32_t shared, int warp_first, int lane)
      : base(shared + static_cast<uint32_t>((warp_first + lane * 4) * 4)) {}

  static __device__ __forceinline__ constexpr int row(int i, int lane) {
    return i / 4 * (4 * kLanes) + lane * 4 + i % 4;
  }

  __device__ __forceinline__ void load(float (&values)[kSize], int stage, int k) const {
    const uint32_t flip = kTransposed ? static_cast<uint32_t>(k / 4 * 32) : 0;
    const uint32_t at = (base ^ flip) + static_cast<uint32_t>(stage * kBytes + k * kBlock * 4);
#pragma unroll
    for (int i = 0; i < kSize; i += 4) {
      const float4 v = ptx::load_shared_4(at + static_cast<uint32_t>(i * kLanes * 4));
      values[i] = v.x, values[i + 1] = v.y, values[i + 2] = v.z, values[i + 3] = v.w;
    }
  }
};

template <typename Shape, bool kKMajorA, bool kKMajorB>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks) gemm_f32_simt(const __grid_constant__ GemmParams p) {
  constexpr int kThreadM = Shape::kWarpM / 4, kThreadN = Shape::kWarpN / 8, kStages = Shape::kStages,
                kBlockK = Shape::kBlockK, kUnroll = Shape::kUnroll;
  extern __shared__ __align__(1024) char shared[];
  const uint32_t shared_a = ptx::shared_address(shared), shared_b = shared_a + kStages * Shape::kBytesA;
  const TilePlace place = tile_place(p);
  const int first_m = place.tile_m * Shape::kBlockM, first_n = place.tile_n * Shape::kBlockN;
  const int k_begin = place.split * p.k_per_split, k_end = min(p.k, k_begin + p.k_per_split);
  const int num_blocks = (k_end - k_begin + kBlockK - 1) / kBlockK;

  using CopyA =
      std::conditional_t<kKMajorA, TransposingCopy<Shape::kBlockM, Shape::kThreads, SimtTransposed<Shape::kBlockM>>,
                         TileCopy<float, kBlockK, Shape::kBlockM, Shape::kThreads, SimtPlain<Shape::kBlockM>>>;
  using CopyB =
      std::conditional_t<kKMajorB, TransposingCopy<Shape::kBlockN, Shape::kThreads, SimtTransposed<Shape::kBlockN>>,
                         TileCopy<float, kBlockK, Shape::kBlockN, Shape::kThreads, SimtPlain<Shape::kBlockN>>>;
  CopyA copy_a(static_cast<const float*>(p.a) + place.batch * p.a_batch_stride, p.a_stride, kKMajorA ? p.m : k_end,
               kKMajorA ? k_end : p.m, kKMajorA ? first_m : k_begin, kKMajorA ? k_begin : first_m);
  CopyB copy_b(static_cast<const float*>(p.b) + place.batch * p.b_batch_stride, p.b_stride, kKMajorB ? p.n : k_end,
               kKMajorB ? k_end : p.n, kKMajorB ? first_n : k_begin, kKMajorB ? k_begin : first_n);
  const auto fill = [&](int stage) {
    copy_a.copy(shared_a + static_cast<uint32_t>(stage * Shape::kBytesA));
    copy_b.copy(shared_b + static_cast<uint32_t>(stage * Shape::kBytesB));
    if constexpr (kKMajorA)
      copy_a.advance_inside();
    else
      copy_a.advance_lines();
    if constexpr (kKMajorB)
      copy_b.advance_inside();
    else
      copy_b.advance_lines();
  };

  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int warp_m = warp / Shape::kWarpsN * Shape::kWarpM, warp_n = warp % Shape::kWarpsN * Shape::kWarpN;
  // Neighbouring lanes share a row of A and a column of B in turn: lanes 0, 1, 8, 9, ... have the same column.
  const int lane_m = lane / 16 * 2 + lane % 2, lane_n = lane / 2 % 8;
  const SimtOperand<kKMajorA, 4, kThreadM, Shape::kBlockM, Shape::kBytesA> operand_a(shared_a, warp_m, lane_m);
  const SimtOperand<kKMajorB, 8, kThreadN, Shape::kBlockN, Shape::kBytesB> operand_b(shared_b, warp_n, lane_n);

  float sums[kThreadM][kThreadN] = {};
  float a[2][kThreadM], b[2][kThreadN];

  // Prologue ------------------------------------------------------------------------------------------------------
#pragma unroll
  for (int stage = 0; stage < kStages - 1; ++stage) {
    if (stage < num_blocks) fill(stage);
    ptx::commit_copies();
  }
  ptx::wait_copies<kStages - 2>();
  __syncthreads();
  operand_a.load(a[0], 0, 0);
  operand_b.load(b[0], 0, 0);

  // Main loop -----------------------------------------------------------------------------------------------------
  int stage = 0;
#pragma unroll 1
  for (int block = 0; block < num_blocks; ++block) {
    const int next_stage = stage + 1 == kStages ? 0 : stage + 1;
#pragma unroll 1
    for (int first_k = 0; first_k < kBlockK; first_k += kUnroll) {
      const bool is_last = first_k + kUnroll == kBlockK;
      if (is_last) {
        // The next buffer is there, and the one before this has been left by all threads.
        ptx::wait_copies<kStages - 3>();
        __syncthreads();
        if (block + kStages - 1 < num_blocks) fill(stage == 0 ? kStages - 1 : stage - 1);
        ptx::commit_copies();
      }
#pragma unroll
      for (int k = 0; k < kUnroll; ++k) {
        const bool is_end = k + 1 == kUnroll && is_last;
        const int from = is_end ? next_stage : stage, next_k = is_end ? 0 : first_k + k + 1;
        operand_a.load(a[(k + 1) % 2], from, next_k);
        operand_b.load(b[(k + 1) % 2], from, next_k);
#pragma unroll
        for (int i = 0; i < kThreadM; ++i)
#pragma unroll
          for (int jj = 0; jj < kThreadN; ++jj) {
            const int j = i % 2 == 0 ? jj : kThreadN - 1 - jj;
            sums[i][j] = fmaf(a[k % 2][i], b[k % 2][j], sums[i][j]);
          }
      }
    }
    stage = next_stage;
  }
  ptx::wait_copies<0>();
  __syncthreads();

  // Epilogue ------------------------------------------------------------------------------------------------------
  float* own = reinterpret_cast<float*>(shared) + warp * Shape::Stage::kFloats;
  warp_finish<typename Shape::Stage, Shape::kWarpM, Shape::kWarpN>(
      p.epilogue, place, static_cast<int>(blockIdx.z), first_m + warp_m, first_n + warp_n, own,
      [&](int slice, float* to) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
          for (int j = 0; j < kThreadN; ++j)
            to[(lane_m * 4 + i) * Shape::Stage::kStride + decltype(operand_b)::row(j, lane_n)] = sums[4 * slice + i][j];
      });
}

}  // namespace blublas
