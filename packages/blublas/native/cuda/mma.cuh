// GEMM on tensor cores by mma.sync (compute capability 8.0 and newer), bfloat16 or tf32, any of the four layouts.
//
// A block does a tile of kBlockM x kBlockN, its warps tiles of kWarpM x kWarpN in registers. A and B come through a ring
// of kStages buffers, filled by cp.async and read in steps of 32 bytes of k (16 bfloat16, 8 tf32), the next step's
// fragments while this one's products run. Layouts in shared memory, in chunks of 16 bytes:
//   K-major      lines of 128 (64) bytes of k, chunk ^= line % 8 (line / 2 % 4): ldmatrix
//   else, bf16   lines of kBlockM elements,    chunk ^= k % 8:                   ldmatrix.trans
//   else, tf32   likewise,                     chunk ^= k % 4 * 2:               single words
// so that every read of a warp hits all banks once. tf32 operands are rounded to nearest on their way to the tensor
// core, which would cut them off.
// Cost: 2 M N K FLOP; for every k, kBlockM + kBlockN elements from the cache.
// Benchmark: benchmarks/gemm_cuda.py --work 'gemm.bf16.*' or 'gemm.tf32.*'
#pragma once

#include <type_traits>

#include "cuda/ptx/mma.cuh"
#include "cuda/tile_copy.cuh"
#include "cuda/warp_finish.cuh"

namespace blublas {

template <int kLineBytes>
struct MmaKMajor {
  static_assert(kLineBytes == 128 || kLineBytes == 64);
  static __device__ __forceinline__ constexpr uint32_t swizzle(int line) {
    return static_cast<uint32_t>(kLineBytes == 128 ? line & 7 : (line / 2) & 3);
  }
  static __device__ __forceinline__ constexpr uint32_t offset(int line, int chunk) {
    return static_cast<uint32_t>(line * kLineBytes) + ((static_cast<uint32_t>(chunk) ^ swizzle(line)) * 16);
  }
};
template <typename T, int kInner>
struct MmaOther {
  static __device__ __forceinline__ constexpr uint32_t swizzle(int k) {
    return static_cast<uint32_t>(sizeof(T) == 2 ? k & 7 : (k & 3) * 2);
  }
  static __device__ __forceinline__ constexpr uint32_t offset(int k, int chunk) {
    return static_cast<uint32_t>(k * kInner * static_cast<int>(sizeof(T))) +
           ((static_cast<uint32_t>(chunk) ^ swizzle(k)) * 16);
  }
};

// T: uint16_t for bfloat16, float for tf32
template <typename T_, int kBlockM_, int kBlockN_, int kBlockK_, int kWarpM_, int kWarpN_, int kStages_, int kBlocks_>
struct MmaShape {
  using T = T_;
  static constexpr int kBlockM = kBlockM_, kBlockN = kBlockN_, kBlockK = kBlockK_, kWarpM = kWarpM_, kWarpN = kWarpN_;
  static constexpr int kStages = kStages_, kBlocks = kBlocks_;
  static constexpr int kWarpsM = kBlockM / kWarpM, kWarpsN = kBlockN / kWarpN, kThreads = 32 * kWarpsM * kWarpsN;
  static constexpr int kLineBytes = kBlockK * static_cast<int>(sizeof(T)), kSteps = kLineBytes / 32;
  static constexpr int kBytesA = kBlockM * kLineBytes, kBytesB = kBlockN * kLineBytes;
  static constexpr int kRing = kStages * (kBytesA + kBytesB);
  using Stage = WarpStage<kWarpM, kWarpN, kRing / (kWarpsM * kWarpsN)>;  // the ring is free when it is needed
  static constexpr int kSharedBytes = kRing;
  static_assert(kWarpM % 16 == 0 && kWarpN % 16 == 0 && kSteps % 2 == 0 && kSharedBytes <= 227 * 1024);
};

// A warp's fragments of one operand. kRows: of the warp's tile; kIsA: order of the 8x8 matrices in a fragment.
template <typename T, bool kIsKMajor, bool kIsA, int kRows, int kBlock, int kLineBytes, int kBytes>
class MmaOperand {
 public:
  static constexpr int kTiles = kRows / 16;  // of 16 rows (A) or columns (B), four registers each

  __device__ MmaOperand(uint32_t shared, int first, int lane) {
    // Matrix i of a fragment: which half of the 16 rows and which half of k.
    const int matrix = lane / 8, row_half = kIsA ? matrix % 2 : matrix / 2, k_half = kIsA ? matrix / 2 : matrix % 2;
    if constexpr (kIsKMajor) {
      base_ = shared + MmaKMajor<kLineBytes>::offset(first + lane % 8 + row_half * 8, k_half);
    } else if constexpr (sizeof(T) == 2) {
      base_ = shared + MmaOther<T, kBlock>::offset(lane % 8 + k_half * 8, first / 8 + row_half);
    } else {
      const int g = lane / 4, c = lane % 4;
      base_ = shared + MmaOther<T, kBlock>::offset(c, first / 4 + g / 4) + static_cast<uint32_t>(g % 4 * 4);
    }
  }

  __device__ __forceinline__ void load(uint32_t (&fragments)[kTiles][4], int stage, int step) const {
    const uint32_t base = base_ + static_cast<uint32_t>(stage * kBytes);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      uint32_t (&r)[4] = fragments[tile];
      if constexpr (kIsKMajor) {
        ptx::load_matrices(r,
                           (base ^ static_cast<uint32_t>(step * 32)) + static_cast<uint32_t>(tile * 16 * kLineBytes));
      } else if constexpr (sizeof(T) == 2) {
        ptx::load_matrices_transposed(
            r, (base ^ static_cast<uint32_t>(tile * 32)) + static_cast<uint32_t>(step * 16 * kBlock * 2));
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int row_half = kIsA ? i % 2 : i / 2, k_half = kIsA ? i / 2 : i % 2;
          r[i] = ptx::load_shared((base ^ static_cast<uint32_t>((tile * 2 + row_half) * 32)) +
                                  static_cast<uint32_t>((step * 8 + k_half * 4) * kBlock * 4));
        }
      }
      if constexpr (sizeof(T) == 4) {
#pragma unroll
        for (int i = 0; i < 4; ++i) r[i] = ptx::round_to_tf32(r[i]);
      }
    }
  }

 private:
  uint32_t base_;
};

template <typename Shape, bool kKMajorA, bool kKMajorB>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks) gemm_mma(const __grid_constant__ GemmParams p) {
  using T = typename Shape::T;
  constexpr int kStages = Shape::kStages, kBlockK = Shape::kBlockK, kSteps = Shape::kSteps;
  constexpr int kTilesM = Shape::kWarpM / 16, kTilesN = Shape::kWarpN / 16;
  extern __shared__ __align__(1024) char shared[];
  const uint32_t shared_a = ptx::shared_address(shared), shared_b = shared_a + kStages * Shape::kBytesA;
  const TilePlace place = tile_place(p);
  const int first_m = place.tile_m * Shape::kBlockM, first_n = place.tile_n * Shape::kBlockN;
  const int k_begin = place.split * p.k_per_split, k_end = min(p.k, k_begin + p.k_per_split);
  const int num_blocks = (k_end - k_begin + kBlockK - 1) / kBlockK;

  using CopyA =
      std::conditional_t<kKMajorA, TileCopy<T, Shape::kBlockM, kBlockK, Shape::kThreads, MmaKMajor<Shape::kLineBytes>>,
                         TileCopy<T, kBlockK, Shape::kBlockM, Shape::kThreads, MmaOther<T, Shape::kBlockM>>>;
  using CopyB =
      std::conditional_t<kKMajorB, TileCopy<T, Shape::kBlockN, kBlockK, Shape::kThreads, MmaKMajor<Shape::kLineBytes>>,
                         TileCopy<T, kBlockK, Shape::kBlockN, Shape::kThreads, MmaOther<T, Shape::kBlockN>>>;
  CopyA copy_a(static_cast<const T*>(p.a) + place.batch * p.a_batch_stride, p.a_stride, kKMajorA ? p.m : k_end,
               kKMajorA ? k_end : p.m, kKMajorA ? first_m : k_begin, kKMajorA ? k_begin : first_m);
  CopyB copy_b(static_cast<const T*>(p.b) + place.batch * p.b_batch_stride, p.b_stride, kKMajorB ? p.n : k_end,
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
  const MmaOperand<T, kKMajorA, true, Shape::kWarpM, Shape::kBlockM, Shape::kLineBytes, Shape::kBytesA> operand_a(
      shared_a, warp_m, lane);
  const MmaOperand<T, kKMajorB, false, Shape::kWarpN, Shape::kBlockN, Shape::kLineBytes, Shape::kBytesB> operand_b(
      shared_b, warp_n, lane);

  float sums[kTilesM][2 * kTilesN][4] = {};
  uint32_t a[2][kTilesM][4], b[2][kTilesN][4];

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
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (step + 1 < kSteps) {
        operand_a.load(a[(step + 1) % 2], stage, step + 1);
        operand_b.load(b[(step + 1) % 2], stage, step + 1);
      } else {
        ptx::wait_copies<kStages - 2>();
        __syncthreads();
        operand_a.load(a[(step + 1) % 2], next_stage, 0);
        operand_b.load(b[(step + 1) % 2], next_stage, 0);
      }
      if (step == 0) {
        // The buffer before this one: all threads have left it behind.
        if (block + kStages - 1 < num_blocks) fill(stage == 0 ? kStages - 1 : stage - 1);
        ptx::commit_copies();
      }
#pragma unroll
      for (int i = 0; i < kTilesM; ++i)
#pragma unroll
        for (int j = 0; j < 2 * kTilesN; ++j) {
          const uint32_t (&fragment)[4] = b[step % 2][j / 2];
          if constexpr (sizeof(T) == 2)
            ptx::mma_bf16(sums[i][j], a[step % 2][i], fragment[j % 2 * 2], fragment[j % 2 * 2 + 1]);
          else
            ptx::mma_tf32(sums[i][j], a[step % 2][i], fragment[j % 2 * 2], fragment[j % 2 * 2 + 1]);
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
        float* at = to + lane / 4 * Shape::Stage::kStride + lane % 4 * 2;
#pragma unroll
        for (int j = 0; j < 2 * kTilesN; ++j) {
          *reinterpret_cast<float2*>(at + j * 8) = make_float2(sums[slice][j][0], sums[slice][j][1]);
          *reinterpret_cast<float2*>(at + j * 8 + 8 * Shape::Stage::kStride) =
              make_float2(sums[slice][j][2], sums[slice][j][3]);
        }
      });
}

}  // namespace blublas
