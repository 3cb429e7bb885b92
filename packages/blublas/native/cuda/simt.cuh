// float32 GEMM in float32 (FFMA), any of the four layouts.
//
// A block does a tile of kBlockM x kBlockN, its warps tiles of kWarpM x kWarpN, a thread kWarpM/4 rows by kWarpN/8
// columns in registers. A and B come through a ring of kStages buffers of kBlockK = 16, filled by cp.async. Threads go
// through a buffer in groups of four k: for four rows of A and all columns of B they read 4 x 4 and 4 x kWarpN/8 numbers
// in vectors of four - along k for a K-major operand, along the rows otherwise, so that no layout is transposed - and
// do 16 * kWarpN/8 multiply-adds. The reads for the next four rows are under way meanwhile.
//
// Which rows a lane has depends on the layout, for the reads of a warp to hit different banks:
//   K-major:  row i of a lane is i * 4 + (lane's row of 4); lines of 64 bytes, chunk ^= (line / 2) % 4
//   else:     rows come in fours, i / 4 * 16 + (lane's row of 4) * 4 + i % 4; lines of k are as they are
// and the same for columns with 8 lanes instead of 4.
//
// A multiply-add reads three registers a cycle from two banks, even and odd: one operand has to be that of the
// instruction before, and the other two must lie in different banks. A vector along k has its four numbers in both banks
// and meets the same sum, so two K-major operands are slower than one by a tenth.
// Cost of a tile: 2 M N K FLOP; shared memory gives 24 bytes for 16 multiply-adds of a thread (64 x 64 warp tiles).
// Benchmark: benchmarks/gemm_cuda.py --work 'gemm.fp32.*'
#pragma once

#include "cuda/ptx/mma.cuh"
#include "cuda/tile_copy.cuh"
#include "cuda/warp_finish.cuh"

namespace blublas {

// Shared memory of K-major tiles with lines of 64 bytes.
struct SimtKMajor {
  static __device__ __forceinline__ constexpr uint32_t offset(int line, int chunk) {
    return static_cast<uint32_t>(line * 64 + ((chunk ^ ((line / 2) & 3)) * 16));
  }
};
template <int kInner>
struct SimtPlain {
  static __device__ __forceinline__ constexpr uint32_t offset(int line, int chunk) {
    return static_cast<uint32_t>(line * kInner * 4 + chunk * 16);
  }
};

template <int kBlockM_, int kBlockN_, int kWarpM_, int kWarpN_, int kStages_, int kBlocks_, int kUnroll_ = 4>
struct SimtShape {
  static constexpr int kUnroll = kUnroll_;  // groups of four k in the loop's body
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

// Rows (of A, 4 lanes) or columns (of B, 8 lanes) of a lane, in groups of four.
template <bool kIsKMajor, int kLanes, int kBlock, int kBytes>
struct SimtOperand {
  uint32_t base;  // of the lane, in buffer 0

  __device__ SimtOperand(uint32_t shared, int warp_first, int lane)
      : base(shared + (kIsKMajor ? SimtKMajor::offset(warp_first + lane, 0)
                                 : static_cast<uint32_t>((warp_first + lane * 4) * 4))) {}

  static __device__ __forceinline__ constexpr int row(int i, int lane) {
    return kIsKMajor ? i * kLanes + lane : i / 4 * (4 * kLanes) + lane * 4 + i % 4;
  }

  // values[r][k] of rows 4 * group + r at four k from 4 * k_group on
  __device__ __forceinline__ void load(float (&values)[4][4], int stage, int k_group, int group) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (kIsKMajor) {
        const int line = (4 * group + i) * kLanes;
        // The lane's bits of the swizzle are in `base`; with 4 lanes one more bit comes from i.
        const uint32_t flip = static_cast<uint32_t>((k_group ^ ((line / 2) & 3)) * 16);
        const float4 v = ptx::load_shared_4(((base + static_cast<uint32_t>(stage * kBytes)) ^ flip) +
                                            static_cast<uint32_t>(line * 64));
        values[i][0] = v.x, values[i][1] = v.y, values[i][2] = v.z, values[i][3] = v.w;
      } else {
        const float4 v = ptx::load_shared_4(
            base + static_cast<uint32_t>(stage * kBytes + ((4 * k_group + i) * kBlock + group * 4 * kLanes) * 4));
        values[0][i] = v.x, values[1][i] = v.y, values[2][i] = v.z, values[3][i] = v.w;
      }
    }
  }
};

template <typename Shape, bool kKMajorA, bool kKMajorB>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks) gemm_f32_simt(const __grid_constant__ GemmParams p) {
  constexpr int kThreadM = Shape::kWarpM / 4, kThreadN = Shape::kWarpN / 8, kStages = Shape::kStages,
                kBlockK = Shape::kBlockK, kUnroll = Shape::kUnroll, kGroupsM = kThreadM / 4, kGroupsN = kThreadN / 4,
                kGroupsK = kBlockK / 4;
  extern __shared__ __align__(1024) char shared[];
  const uint32_t shared_a = ptx::shared_address(shared), shared_b = shared_a + kStages * Shape::kBytesA;
  const TilePlace place = tile_place(p);
  const int first_m = place.tile_m * Shape::kBlockM, first_n = place.tile_n * Shape::kBlockN;
  const int k_begin = place.split * p.k_per_split, k_end = min(p.k, k_begin + p.k_per_split);
  const int num_blocks = (k_end - k_begin + kBlockK - 1) / kBlockK;

  using CopyA =
      std::conditional_t<kKMajorA, TileCopy<float, Shape::kBlockM, kBlockK, Shape::kThreads, SimtKMajor>,
                         TileCopy<float, kBlockK, Shape::kBlockM, Shape::kThreads, SimtPlain<Shape::kBlockM>>>;
  using CopyB =
      std::conditional_t<kKMajorB, TileCopy<float, Shape::kBlockN, kBlockK, Shape::kThreads, SimtKMajor>,
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
  const SimtOperand<kKMajorA, 4, Shape::kBlockM, Shape::kBytesA> operand_a(shared_a, warp_m, lane_m);
  const SimtOperand<kKMajorB, 8, Shape::kBlockN, Shape::kBytesB> operand_b(shared_b, warp_n, lane_n);

  float sums[kThreadM][kThreadN] = {};
  float a[2][4][4], b[kGroupsN][4][4];

  // Prologue ------------------------------------------------------------------------------------------------------
#pragma unroll
  for (int stage = 0; stage < kStages - 1; ++stage) {
    if (stage < num_blocks) fill(stage);
    ptx::commit_copies();
  }
  ptx::wait_copies<kStages - 2>();
  __syncthreads();
  operand_a.load(a[0], 0, 0, 0);
#pragma unroll
  for (int columns = 0; columns < kGroupsN; ++columns) operand_b.load(b[columns], 0, 0, columns);

  // Main loop -----------------------------------------------------------------------------------------------------
  int stage = 0;
#pragma unroll 1
  for (int block = 0; block < num_blocks; ++block) {
    const int next_stage = stage + 1 == kStages ? 0 : stage + 1;
#pragma unroll kUnroll
    for (int k_group = 0; k_group < kGroupsK; ++k_group) {
      const int next_k_group = (k_group + 1) % kGroupsK;
      if (next_k_group == 0) {
        // The next buffer is there, and the one before this has been left by all threads. Well before it is needed: what
        // follows has a whole group of multiply-adds to wait behind.
        ptx::wait_copies<kStages - 3>();
        __syncthreads();
        if (block + kStages - 1 < num_blocks) fill(stage == 0 ? kStages - 1 : stage - 1);
        ptx::commit_copies();
      }
#pragma unroll
      for (int group = 0; group < kGroupsM; ++group) {
        constexpr int kLast = kGroupsM - 1;
        const int step = k_group * kGroupsM + group;
        const int from = group == kLast && next_k_group == 0 ? next_stage : stage;
        operand_a.load(a[(step + 1) % 2], from, group == kLast ? next_k_group : k_group, (group + 1) % kGroupsM);
#pragma unroll
        for (int columns = 0; columns < kGroupsN; ++columns) {
#pragma unroll
          for (int kk = 0; kk < 4; ++kk)
#pragma unroll
            for (int r = 0; r < 4; ++r)
#pragma unroll
              for (int i = 0; i < 4; ++i) {
                // To and fro, so that one operand is always the one before: registers of a and b share a bank.
                const int j = r % 2 == 0 ? i : 3 - i;
                sums[4 * group + r][4 * columns + j] =
                    fmaf(a[step % 2][r][kk], b[columns][j][kk], sums[4 * group + r][4 * columns + j]);
              }
          if (group == kLast) operand_b.load(b[columns], from, next_k_group, columns);  // into the same registers
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
            to[(kKMajorA ? i * 4 + lane_m : lane_m * 4 + i) * Shape::Stage::kStride +
               decltype(operand_b)::row(j, lane_n)] = sums[4 * slice + i][j];
      });
}

}  // namespace blublas
