// float32 GEMM in float32 (FFMA), any of the four layouts.
//
// A block does a tile of kBlockM x kBlockN, its warps tiles of kWarpM x kWarpN, a thread kWarpM/4 rows by kWarpN/8
// columns in registers. A and B lie in shared memory as lines of k, in a ring of three buffers of kBlockK: while one is
// multiplied the next is complete and the one after it is filled. Where rows (columns) are contiguous in memory, cp.async
// brings the lines; a K-major operand is loaded into registers one buffer ahead and stored transposed, in lines that are
// 4 longer so that the stores of a warp hit different banks. A thread reads its rows and columns of the next k in vectors
// of four while it multiplies those of this one.
//   rows of a lane: i / 4 * 16 + (lane's row of 4) * 4 + i % 4; columns alike with 8 lanes
// Where K is long, a thread adds its sums to totals after kChain products and begins anew (kTotals), so that errors grow with
// the square root of kChain + K / kChain, not of K. Totals do not fit in registers: they lie in shared memory behind the
// ring, each thread's vectors a block apart.
//
// What bounds it, on compute capability 8.6 and newer:
//   - A scheduler starts one instruction a cycle, so everything beside the multiply-adds costs: 6 loads to 128 of them,
//     and a copy of a whole buffer computes no sizes.
//   - Each of the two banks of registers, even and odd, gives one operand a cycle, and a multiply-add has three: one has
//     to be that of the instruction before, and of the other two one should be even and one odd. So the loop goes to and
//     fro along the columns of a row, and sums lie in registers one off the column's: the epilogue stores them as
//     vectors whose pairs are swapped, which is what makes the compiler place them so.
//   - Shared memory gives a multiprocessor 128 bytes a cycle, whether lanes read the same or not: at 16 x 8 sums, three
//     quarters of its time. What K-major operands store there comes on top, so they want large tiles (128 x 256).
// Cost of a tile: 2 M N K FLOP; 96 bytes from shared memory for 128 multiply-adds of a thread; with totals, a load and a
// store of all every kChain of K.
// Benchmark: benchmarks/gemm_cuda.py --work 'gemm.fp32.*'
#pragma once

#include "cuda/ptx/mma.cuh"
#include "cuda/tile_copy.cuh"
#include "cuda/warp_finish.cuh"

namespace blublas {

template <int kBlockM_, int kBlockN_, int kBlockK_, int kWarpM_, int kWarpN_, int kBlocks_>
struct SimtShape {
  static constexpr int kBlockM = kBlockM_, kBlockN = kBlockN_, kWarpM = kWarpM_, kWarpN = kWarpN_;
  static constexpr int kBlockK = kBlockK_, kStages = 3, kBlocks = kBlocks_;  // blocks of a multiprocessor
  static constexpr int kWarpsM = kBlockM / kWarpM, kWarpsN = kBlockN / kWarpN, kThreads = 32 * kWarpsM * kWarpsN;
  static constexpr int kPadding = 4;  // of a line that came transposed, in elements
  // Of blocks of 16 only A comes transposed: two rings and totals of 128 x 128 just fit on compute capability 9.0.
  static constexpr int kRing = kStages * kBlockK * (kBlockM + kBlockN + (kBlockK == 8 ? 2 : 1) * kPadding) * 4;
  // The epilogue, in which the ring is free, goes faster with half a warp tile at a time.
  static constexpr int kFinish = kThreads / 32 * (kWarpM / 2) * (kWarpN + 8) * 4;
  static constexpr int kSharedBytes = kRing > kFinish ? kRing : kFinish;
  static constexpr int kChain = kBlockM * kBlockN < 128 * 128 ? 512 : 1024, kTotalsBytes = kBlockM * kBlockN * 4;
  using Stage = WarpStage<kWarpM, kWarpN, kSharedBytes / (kWarpsM * kWarpsN), true>;
  static_assert(kChain % kBlockK == 0);
  static_assert(kSharedBytes <= 99 * 1024, "compute capability 8.6 and 8.9 have 99 KiB");
};

template <int kRows>
struct SimtLines {
  static __device__ __forceinline__ constexpr uint32_t offset(int line, int chunk) {
    return static_cast<uint32_t>(line * kRows * 4 + chunk * 16);
  }
};

// The copies of one operand of kRows rows (of A, columns of B), block of K by block of K: start() begins the next one,
// of which the kBlockK values of k all exist where is_whole; of a K-major operand finish() stores what start() loaded.
template <bool kIsKMajor, int kRows, int kBlockK, int kThreads, int kPadding>
class SimtCopy {
 public:
  static constexpr int kStride = kRows;  // of lines in shared memory, in elements

  // data: first element of the matrix; rows beyond num_rows and k beyond k_end are zeros.
  __device__ SimtCopy(const float* data, int64_t stride, int num_rows, int k_end, int first_row, int k_begin)
      : copy_(data, stride, k_end, num_rows, k_begin, first_row), has_all_rows_(first_row + kRows <= num_rows) {}

  __device__ __forceinline__ void start(uint32_t target, bool is_whole) {
    if (is_whole && has_all_rows_)
      copy_.copy_whole(target);
    else
      copy_.copy(target);
    copy_.advance_lines();
  }

 private:
  TileCopy<float, kBlockK, kRows, kThreads, SimtLines<kRows>> copy_;
  bool has_all_rows_;
};

// Rows beyond num_rows repeat the last one: what is computed of them is not stored.
template <int kRows, int kBlockK, int kThreads, int kPadding>
class SimtCopy<true, kRows, kBlockK, kThreads, kPadding> {
 public:
  static constexpr int kStride = kRows + kPadding;

  __device__ SimtCopy(const float* data, int64_t stride, int num_rows, int k_end, int first_row, int k_begin)
      : k_left_(k_end - k_begin - own_k()), target_(static_cast<uint32_t>((own_k() * kStride + own_row()) * 4)) {
    const int row = min(first_row + own_row(), num_rows - 1);
    source_ = data + row * stride + k_begin + own_k();
#pragma unroll
    for (int i = 0; i < kNum; ++i) steps_[i] = (min(first_row + own_row() + i * kStep, num_rows - 1) - row) * stride;
  }

  __device__ __forceinline__ void start(bool is_whole) {
#pragma unroll
    for (int i = 0; i < kNum; ++i) {
      const float* from = source_ + (i == 0 ? 0 : steps_[i]);
      if (is_whole) {
        values_[i] = *reinterpret_cast<const float4*>(from);
      } else {
        values_[i].x = k_left_ > 0 ? from[0] : 0;
        values_[i].y = k_left_ > 1 ? from[1] : 0;
        values_[i].z = k_left_ > 2 ? from[2] : 0;
        values_[i].w = k_left_ > 3 ? from[3] : 0;
      }
    }
    source_ += kBlockK;
    k_left_ -= kBlockK;
  }
  __device__ __forceinline__ void finish(uint32_t target) const {
    const uint32_t at = target + target_;
#pragma unroll
    for (int i = 0; i < kNum; ++i) {
      const float v[4] = {values_[i].x, values_[i].y, values_[i].z, values_[i].w};
#pragma unroll
      for (int k = 0; k < 4; ++k) ptx::store_shared(at + static_cast<uint32_t>((k * kStride + i * kStep) * 4), v[k]);
    }
  }

 private:
  static constexpr int kChunks = kBlockK / 4, kStep = kThreads / kChunks, kNum = kRows / kStep;
  static_assert(kRows % kStep == 0 && kNum >= 1);
  static __device__ __forceinline__ int own_row() { return static_cast<int>(threadIdx.x) / kChunks; }
  static __device__ __forceinline__ int own_k() { return static_cast<int>(threadIdx.x) % kChunks * 4; }

  const float* source_;
  int64_t steps_[kNum];  // from this thread's first row to its others, in elements
  int k_left_;
  uint32_t target_;  // of this thread's first value, in a buffer
  float4 values_[kNum];
};

// kSize rows or columns of a lane, at one k.
template <int kLanes, int kSize>
__device__ __forceinline__ void load_lane(float (&values)[kSize], uint32_t address) {
#pragma unroll
  for (int i = 0; i < kSize; i += 4) {
    const float4 v = ptx::load_shared_4(address + static_cast<uint32_t>(i * kLanes * 4));
    values[i] = v.x, values[i + 1] = v.y, values[i + 2] = v.z, values[i + 3] = v.w;
  }
}

// The totals of a thread, vectors of four whose pairs are swapped as for the epilogue; nobody else reads them.
template <int kThreads>
struct SimtTotals {
  uint32_t own;

  __device__ explicit SimtTotals(uint32_t totals) : own(totals + threadIdx.x * 16) {}

  template <int kRows, int kColumns>
  __device__ __forceinline__ void add_to(float (&sums)[kRows][kColumns]) const {
#pragma unroll
    for (int r = 0; r < kRows; ++r)
#pragma unroll
      for (int j = 0; j < kColumns; j += 4) {
        const float4 v = ptx::load_shared_4(own + static_cast<uint32_t>((r * kColumns + j) / 4 * kThreads * 16));
        float* to = &sums[r][j];
        to[1] += v.x, to[0] += v.y, to[3] += v.z, to[2] += v.w;
      }
  }
  // And clears the sums.
  template <int kRows, int kColumns>
  __device__ __forceinline__ void take(float (&sums)[kRows][kColumns]) const {
#pragma unroll
    for (int r = 0; r < kRows; ++r)
#pragma unroll
      for (int j = 0; j < kColumns; j += 4) {
        float* from = &sums[r][j];
        ptx::store_shared_4(own + static_cast<uint32_t>((r * kColumns + j) / 4 * kThreads * 16),
                            make_float4(from[1], from[0], from[3], from[2]));
        from[0] = from[1] = from[2] = from[3] = 0;
      }
  }
};

template <typename Shape, bool kKMajorA, bool kKMajorB, bool kTotals>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks) gemm_f32_simt(const __grid_constant__ GemmParams p) {
  constexpr int kThreadM = Shape::kWarpM / 4, kThreadN = Shape::kWarpN / 8, kBlockK = Shape::kBlockK;
  using CopyA = SimtCopy<kKMajorA, Shape::kBlockM, kBlockK, Shape::kThreads, Shape::kPadding>;
  using CopyB = SimtCopy<kKMajorB, Shape::kBlockN, kBlockK, Shape::kThreads, Shape::kPadding>;
  constexpr uint32_t kLineA = CopyA::kStride * 4, kLineB = CopyB::kStride * 4, kBytesA = kBlockK * kLineA,
                     kBytes = kBytesA + kBlockK * kLineB;
  constexpr int kBlocksOfChain = Shape::kChain / kBlockK;
  static_assert(Shape::kStages * kBytes <= Shape::kRing);
  extern __shared__ __align__(1024) char shared[];
  const uint32_t first_buffer = ptx::shared_address(shared), last_buffer = first_buffer + 2 * kBytes;
  const TilePlace place = tile_place(p);
  const int first_m = place.tile_m * Shape::kBlockM, first_n = place.tile_n * Shape::kBlockN;
  const int k_begin = place.split * p.k_per_split, k_end = min(p.k, k_begin + p.k_per_split);
  const int num_blocks = (k_end - k_begin + kBlockK - 1) / kBlockK, num_whole = (k_end - k_begin) / kBlockK;

  CopyA copy_a(static_cast<const float*>(p.a) + place.batch * p.a_batch_stride, p.a_stride, p.m, k_end, first_m,
               k_begin);
  CopyB copy_b(static_cast<const float*>(p.b) + place.batch * p.b_batch_stride, p.b_stride, p.n, k_end, first_n,
               k_begin);
  // Of the operands that come by cp.async, and of those that come through registers.
  const auto start_async = [&](uint32_t buffer, int block) {
    if constexpr (!kKMajorA) copy_a.start(buffer, block < num_whole);
    if constexpr (!kKMajorB) copy_b.start(buffer + kBytesA, block < num_whole);
  };
  const auto start_loads = [&](int block) {
    if constexpr (kKMajorA) copy_a.start(block < num_whole);
    if constexpr (kKMajorB) copy_b.start(block < num_whole);
  };
  const auto finish_loads = [&](uint32_t buffer) {
    if constexpr (kKMajorA) copy_a.finish(buffer);
    if constexpr (kKMajorB) copy_b.finish(buffer + kBytesA);
  };

  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int warp_m = warp / Shape::kWarpsN * Shape::kWarpM, warp_n = warp % Shape::kWarpsN * Shape::kWarpN;
  // Neighbouring lanes share a row of A and a column of B in turn: lanes 0, 1, 16, 17 have the columns 0 to 3.
  const int lane_m = lane / 16 * 2 + lane % 2, lane_n = lane / 2 % 8;
  const uint32_t own_a = static_cast<uint32_t>((warp_m + lane_m * 4) * 4);
  const uint32_t own_b = kBytesA + static_cast<uint32_t>((warp_n + lane_n * 4) * 4);

  float sums[kThreadM][kThreadN] = {};
  float a[2][kThreadM], b[2][kThreadN];  // of this k and the next

  // Prologue ------------------------------------------------------------------------------------------------------
#pragma unroll
  for (int block = 0; block < 2; ++block) {
    const uint32_t buffer = first_buffer + static_cast<uint32_t>(block) * kBytes;
    if (block < num_blocks) {
      start_async(buffer, block);
      start_loads(block);
      finish_loads(buffer);
    }
    ptx::commit_copies();
  }
  if (num_blocks > 2) start_loads(2);
  ptx::wait_copies<1>();
  __syncthreads();
  load_lane<4>(a[0], first_buffer + own_a);
  load_lane<8>(b[0], first_buffer + own_b);

  // Main loop -----------------------------------------------------------------------------------------------------
  uint32_t buffer = first_buffer;
#pragma unroll 1
  for (int block = 0; block < num_blocks; ++block) {
    const uint32_t next = buffer == last_buffer ? first_buffer : buffer + kBytes;
    const uint32_t after_next = buffer == first_buffer ? last_buffer : buffer - kBytes;
    const bool has_after_next = block + 2 < num_blocks;
#pragma unroll
    for (int k = 0; k < kBlockK; ++k) {
      if (k == 0) {
        if (has_after_next) {
          finish_loads(after_next);
          start_async(after_next, block + 2);
        }
        ptx::commit_copies();
      }
      if (k == 1 && block + 3 < num_blocks) start_loads(block + 3);
      const bool is_last = k == kBlockK - 1;
      load_lane<4>(a[(k + 1) % 2], (is_last ? next : buffer + (k + 1) * kLineA) + own_a);
      load_lane<8>(b[(k + 1) % 2], (is_last ? next : buffer + (k + 1) * kLineB) + own_b);
      if (k == kBlockK - 2) {
        // The next buffer is there before the last k reads from it; this buffer's last values are already in registers.
        ptx::wait_copies<1>();
        __syncthreads();
      }
#pragma unroll
      for (int r = 0; r < kThreadM; ++r)
#pragma unroll
        for (int i = 0; i < kThreadN; ++i) {
          const int j = r % 2 == 0 ? i : kThreadN - 1 - i;
          sums[r][j] = fmaf(a[k % 2][r], b[k % 2][j], sums[r][j]);
        }
    }
    buffer = next;
    if constexpr (kTotals) {
      if ((block + 1) % kBlocksOfChain == 0 && block + 1 < num_blocks) {
        const SimtTotals<Shape::kThreads> totals(first_buffer + Shape::kSharedBytes);
        if (block >= kBlocksOfChain) totals.add_to(sums);
        totals.take(sums);
      }
    }
  }
  if constexpr (kTotals) {
    if (num_blocks > kBlocksOfChain) SimtTotals<Shape::kThreads>(first_buffer + Shape::kSharedBytes).add_to(sums);
  }
  ptx::wait_copies<0>();
  __syncthreads();

  // Epilogue ------------------------------------------------------------------------------------------------------
  using Stage = typename Shape::Stage;
  float* own = reinterpret_cast<float*>(shared) + warp * Stage::kFloats;
  warp_finish<Stage, Shape::kWarpM, Shape::kWarpN>(
      p.epilogue, place, static_cast<int>(blockIdx.z), first_m + warp_m, first_n + warp_n, own,
      [&](int slice, float* to) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
          for (int j = 0; j < kThreadN; j += 4) {
            const float* from = &sums[4 * slice + i][j];
            *reinterpret_cast<float4*>(to + (lane_m * 4 + i) * Stage::kStride + j * 8 + lane_n * 4) =
                make_float4(from[1], from[0], from[3], from[2]);
          }
      });
}

}  // namespace blublas
