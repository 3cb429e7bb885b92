// The two products of a block of attention's scores, in three arithmetics.
//
// A warp owns kTiles * 16 rows of a block of scores. Its accumulators lie as mma.sync defines them, for every
// arithmetic: lane = 4 g + c holds s[m][n][r] = row 16 m + g + 8 (r >> 1), column 8 n + 2 c + (r & 1).
//
//   scores      s[rows, columns] = A[rows, D] B[columns, D]^T       A (a Left) in registers or shared memory, B in
//                                                                   shared memory
//   accumulate  o[rows, D] += s[rows, columns] V[columns, D]        s in registers, V in shared memory
//
// Columns of o: Bf16 and Tf32 as above. Ieee holds, of every 32 columns, 8 c .. 8 c + 7: o[m][4 q + j][2 h + e] is
// column 32 q + 8 c + 4 e + j; so V is read and o is written 16 bytes at a time.
#pragma once

#include <type_traits>

#include "ops/attention/cuda_tile.cuh"

namespace blutensor::cuda {

inline constexpr float kLog2e = 1.44269504088896340736f;
inline constexpr float kLn2 = 0.69314718055994530942f;

__device__ __forceinline__ int lane_group() { return (threadIdx.x & 31) >> 2; }  // g
__device__ __forceinline__ int lane_column() { return threadIdx.x & 3; }         // c

// ---------------------------------------------------------------- sums

// Most rows that are added up one by one (Math::kChain, where an arithmetic says so); such sums are then added to others,
// because the error of a chain grows with its length. 0: no end.
template <class Math>
inline constexpr int kChainOf = 0;
template <class Math>
  requires requires { Math::kChain; }
inline constexpr int kChainOf<Math> = Math::kChain;

template <int kTiles, int kColumns>
__device__ __forceinline__ void clear(float (&sums)[kTiles][kColumns][4]) {
#pragma unroll
  for (int m = 0; m < kTiles; ++m)
#pragma unroll
    for (int n = 0; n < kColumns; ++n) sums[m][n][0] = sums[m][n][1] = sums[m][n][2] = sums[m][n][3] = 0;
}

// ---------------------------------------------------------------- storing accumulators

// Ieee: 32 contiguous bytes per lane. adds: to what is there.
template <int kHeadDim, int kTiles>
__device__ __forceinline__ void store_wide_columns(const float (&o)[kTiles][kHeadDim / 8][4],
                                                   const float (&factor)[kTiles][2], float* target, int row_stride,
                                                   int first, int limit, int head_dim, bool adds) {
#pragma unroll
  for (int m = 0; m < kTiles; ++m)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = first + 16 * m + 8 * h + lane_group();
      if (row >= limit) continue;
      float* out = target + static_cast<int64_t>(row) * row_stride + 8 * lane_column();
#pragma unroll
      for (int q = 0; q < kHeadDim / 32; ++q)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          if (32 * q + 8 * lane_column() + 4 * e >= head_dim) continue;
          float4 v;
          v.x = o[m][4 * q][2 * h + e] * factor[m][h], v.y = o[m][4 * q + 1][2 * h + e] * factor[m][h];
          v.z = o[m][4 * q + 2][2 * h + e] * factor[m][h], v.w = o[m][4 * q + 3][2 * h + e] * factor[m][h];
          float4* at = reinterpret_cast<float4*>(out + 32 * q + 4 * e);
          if (adds) {
            const float4 before = *at;
            v.x += before.x, v.y += before.y, v.z += before.z, v.w += before.w;
          }
          *at = v;
        }
    }
}

// ---------------------------------------------------------------- bfloat16 on the tensor cores

template <int kHeadDim_, int kWarps_ = 4>
struct Bf16 {
  using Element = __nv_bfloat16;
  static constexpr int kHeadDim = kHeadDim_, kWarps = kWarps_;
  using Rows = Tile<Element, kHeadDim, 32 * kWarps>;
  static constexpr bool kIsAsync = false;
  static constexpr int kBackwardBlocks = 2;  // per multiprocessor
  static constexpr int kSteps = kHeadDim / 16;
  static constexpr bool kRounds = false;
  template <int kTiles>
  using Left = SharedLeft<Rows, kTiles>;
  template <int kTiles>  // for kernels with registers to spare
  using FastLeft = std::conditional_t<kHeadDim <= 64, KeptLeft<Rows, kTiles>, Left<kTiles>>;

  template <int kTiles, int kColumns, class Left>
  __device__ static void scores(float (&s)[kTiles][kColumns / 8][4], const Left& a, uint32_t b) {
    const int lane = Rows::lane_offset(), right_lane = Rows::right_lane_offset();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      uint32_t left[kTiles][4];
      a.get(left, lane, step);
#pragma unroll
      for (int n = 0; n < kColumns / 16; ++n) {
        uint32_t right[4];
        ptx::load_matrix_x4(right, b + 16 * n * Rows::kRowBytes + Rows::at(right_lane, step));
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
          if (step == 0) {
            ptx::mma_bf16<false>(s[m][2 * n], left[m], right[0], right[1]);
            ptx::mma_bf16<false>(s[m][2 * n + 1], left[m], right[2], right[3]);
          } else {
            ptx::mma_bf16<true>(s[m][2 * n], left[m], right[0], right[1]);
            ptx::mma_bf16<true>(s[m][2 * n + 1], left[m], right[2], right[3]);
          }
        }
      }
    }
  }

  // Columns 16 k .. 16 k + 15 of accumulators as a left operand.
  template <int kColumns>
  __device__ static void pack(uint32_t (&left)[4], const float (&s)[kColumns / 8][4], int k) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      left[i] = ptx::pack_bf16(s[2 * k + (i >> 1)][2 * (i & 1)], s[2 * k + (i >> 1)][2 * (i & 1) + 1]);
  }

  template <int kTiles, int kColumns>
  __device__ static void accumulate(float (&o)[kTiles][kHeadDim / 8][4], const float (&s)[kTiles][kColumns / 8][4],
                                    uint32_t v) {
    const int lane = Rows::lane_offset();
#pragma unroll
    for (int k = 0; k < kColumns / 16; ++k) {
      uint32_t left[kTiles][4];
#pragma unroll
      for (int m = 0; m < kTiles; ++m) pack<kColumns>(left[m], s[m], k);
#pragma unroll
      for (int n = 0; n < kHeadDim / 16; ++n) {
        uint32_t right[4];
        ptx::load_matrix_x4_transposed(right, v + 16 * k * Rows::kRowBytes + Rows::at(lane, n));
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
          ptx::mma_bf16<true>(o[m][2 * n], left[m], right[0], right[1]);
          ptx::mma_bf16<true>(o[m][2 * n + 1], left[m], right[2], right[3]);
        }
      }
    }
  }

  // o * factor to rows first .. of target, through the warp's own rows of a tile that nobody needs any more.
  template <int kTiles>
  __device__ static void store(const float (&o)[kTiles][kHeadDim / 8][4], const float (&factor)[kTiles][2],
                               uint32_t tile, Element* target, int row_stride, int first, int limit, int head_dim) {
    __syncwarp();
#pragma unroll
    for (int m = 0; m < kTiles; ++m)
#pragma unroll
      for (int n = 0; n < kHeadDim / 8; ++n)
#pragma unroll
        for (int h = 0; h < 2; ++h)
          ptx::store_shared_1(tile + Rows::offset(16 * m + 8 * h + lane_group(), n) + 4 * lane_column(),
                              ptx::pack_bf16(o[m][n][2 * h] * factor[m][h], o[m][n][2 * h + 1] * factor[m][h]));
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 16 * kTiles * Rows::kChunks; i += 32) {
      const int index = i + static_cast<int>(threadIdx.x & 31);
      const int row = index / Rows::kChunks, chunk = index % Rows::kChunks;
      if (first + row >= limit || chunk * Rows::kPerChunk >= head_dim) continue;
      const float4 v = ptx::load_shared_4(tile + Rows::offset(row, chunk));
      *reinterpret_cast<float4*>(target + static_cast<int64_t>(first + row) * row_stride + chunk * Rows::kPerChunk) = v;
    }
  }
};

// ---------------------------------------------------------------- tf32 on the tensor cores

// The left operand of scores must be rounded already (Tile::round_loaded); the others are rounded here, to nearest.
template <int kHeadDim_, int kWarps_ = 4>
struct Tf32 {
  using Element = float;
  static constexpr int kHeadDim = kHeadDim_, kWarps = kWarps_;
  using Rows = Tile<Element, kHeadDim, 32 * kWarps>;
  static constexpr bool kIsAsync = false;
  static constexpr int kBackwardBlocks = 2;  // per multiprocessor
  static constexpr int kSteps = kHeadDim / 8;
  static constexpr bool kRounds = true;
  template <int kTiles>
  using Left = SharedLeft<Rows, kTiles>;
  template <int kTiles>
  using FastLeft = Left<kTiles>;

  template <int kTiles, int kColumns, class Left>
  __device__ static void scores(float (&s)[kTiles][kColumns / 8][4], const Left& a, uint32_t b) {
    const int lane = Rows::lane_offset(), right_lane = Rows::right_lane_offset();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      uint32_t left[kTiles][4];
      a.get(left, lane, step);
#pragma unroll
      for (int n = 0; n < kColumns / 16; ++n) {
        uint32_t right[4];
        ptx::load_matrix_x4(right, b + 16 * n * Rows::kRowBytes + Rows::at(right_lane, step));
#pragma unroll
        for (int i = 0; i < 4; ++i) right[i] = ptx::round_tf32(__uint_as_float(right[i]));
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
          if (step == 0) {
            ptx::mma_tf32<false>(s[m][2 * n], left[m], right[0], right[1]);
            ptx::mma_tf32<false>(s[m][2 * n + 1], left[m], right[2], right[3]);
          } else {
            ptx::mma_tf32<true>(s[m][2 * n], left[m], right[0], right[1]);
            ptx::mma_tf32<true>(s[m][2 * n + 1], left[m], right[2], right[3]);
          }
        }
      }
    }
  }

  // The sum over columns may take them in any order, the same on both sides: slots c and c + 4 of a step of 8 hold
  // columns 2 c and 2 c + 1, as the accumulators do.
  template <int kTiles, int kColumns>
  __device__ static void accumulate(float (&o)[kTiles][kHeadDim / 8][4], const float (&s)[kTiles][kColumns / 8][4],
                                    uint32_t v) {
    const int g = lane_group(), c = lane_column();
    const int even = Rows::offset(2 * c, g >> 2), odd = Rows::offset(2 * c + 1, g >> 2);
    const uint32_t word = v + 4 * (g & 3);
#pragma unroll
    for (int k = 0; k < kColumns / 8; ++k) {
      uint32_t left[kTiles][4];
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        left[m][0] = ptx::round_tf32(s[m][k][0]), left[m][1] = ptx::round_tf32(s[m][k][2]);
        left[m][2] = ptx::round_tf32(s[m][k][1]), left[m][3] = ptx::round_tf32(s[m][k][3]);
      }
#pragma unroll
      for (int n = 0; n < kHeadDim / 8; ++n) {
        // Single words: of 16 bytes the halves of a register pair would have to be moved together.
        const uint32_t b0 = ptx::round_tf32(ptx::load_shared_1(word + 8 * k * Rows::kRowBytes + Rows::at(even, n)));
        const uint32_t b1 = ptx::round_tf32(ptx::load_shared_1(word + 8 * k * Rows::kRowBytes + Rows::at(odd, n)));
#pragma unroll
        for (int m = 0; m < kTiles; ++m) ptx::mma_tf32<true>(o[m][n], left[m], b0, b1);
      }
    }
  }

  template <int kTiles>
  __device__ static void store(const float (&o)[kTiles][kHeadDim / 8][4], const float (&factor)[kTiles][2], uint32_t,
                               Element* target, int row_stride, int first, int limit, int head_dim) {
#pragma unroll
    for (int m = 0; m < kTiles; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = first + 16 * m + 8 * h + lane_group();
        if (row >= limit) continue;
        float* out = target + static_cast<int64_t>(row) * row_stride + 2 * lane_column();
#pragma unroll
        for (int n = 0; n < kHeadDim / 8; ++n)
          if (8 * n + 2 * lane_column() < head_dim)
            *reinterpret_cast<float2*>(out + 8 * n) =
                make_float2(o[m][n][2 * h] * factor[m][h], o[m][n][2 * h + 1] * factor[m][h]);
      }
  }
};

// ---------------------------------------------------------------- IEEE float32

template <int kHeadDim_, int kWarps_ = 4>
struct Ieee {
  using Element = float;
  static constexpr int kHeadDim = kHeadDim_, kWarps = kWarps_;
  using Rows = Tile<Element, kHeadDim, 32 * kWarps>;
  static constexpr bool kIsAsync = false;
  static constexpr int kBackwardBlocks = 2;  // per multiprocessor
  static constexpr bool kRounds = false;
  static constexpr int kChain = 512;
  template <int kTiles>
  using Left = SharedLeft<Rows, kTiles>;
  template <int kTiles>
  using FastLeft = Left<kTiles>;

  template <int kTiles, int kColumns>
  __device__ static void scores(float (&s)[kTiles][kColumns / 8][4], const Left<kTiles>& a, uint32_t b) {
    const int g = lane_group(), c = lane_column();
#pragma unroll
    for (int m = 0; m < kTiles; ++m)
#pragma unroll
      for (int n = 0; n < kColumns / 8; ++n) s[m][n][0] = s[m][n][1] = s[m][n][2] = s[m][n][3] = 0;
#pragma unroll 2
    for (int chunk = 0; chunk < Rows::kChunks; ++chunk) {
      const uint32_t rows = a.rows + Rows::offset(g, chunk);
      const uint32_t columns[2] = {b + Rows::offset(2 * c, chunk), b + Rows::offset(2 * c + 1, chunk)};
      float4 left[2 * kTiles];
#pragma unroll
      for (int i = 0; i < 2 * kTiles; ++i) left[i] = ptx::load_shared_4(rows + 8 * i * Rows::kRowBytes);
#pragma unroll
      for (int n = 0; n < kColumns / 8; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const float4 right = ptx::load_shared_4(columns[e] + 8 * n * Rows::kRowBytes);
#pragma unroll
          for (int i = 0; i < 2 * kTiles; ++i) {
            float& sum = s[i >> 1][n][2 * (i & 1) + e];
            sum = fmaf(left[i].x, right.x, sum), sum = fmaf(left[i].y, right.y, sum);
            sum = fmaf(left[i].z, right.z, sum), sum = fmaf(left[i].w, right.w, sum);
          }
        }
    }
  }

  // Every lane needs whole rows of s; the other columns come from the neighbours.
  template <int kTiles, int kColumns>
  __device__ static void accumulate(float (&o)[kTiles][kHeadDim / 8][4], const float (&s)[kTiles][kColumns / 8][4],
                                    uint32_t v) {
    int c = lane_column();
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
      asm volatile("" : "+r"(c));  // addresses are computed anew: kept from block to block they spill
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        float left[2 * kTiles];
#pragma unroll
        for (int i = 0; i < 2 * kTiles; ++i) left[i] = __shfl_sync(~0u, s[i >> 1][n][2 * (i & 1) + (k & 1)], k >> 1, 4);
#pragma unroll
        for (int q = 0; q < kHeadDim / 32; ++q)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const float4 right = ptx::load_shared_4(v + Rows::offset(8 * n + k, 8 * q + 2 * c + e));
#pragma unroll
            for (int i = 0; i < 2 * kTiles; ++i) {
              float (&sum)[kHeadDim / 8][4] = o[i >> 1];
              const int r = 2 * (i & 1) + e;
              sum[4 * q][r] = fmaf(left[i], right.x, sum[4 * q][r]);
              sum[4 * q + 1][r] = fmaf(left[i], right.y, sum[4 * q + 1][r]);
              sum[4 * q + 2][r] = fmaf(left[i], right.z, sum[4 * q + 2][r]);
              sum[4 * q + 3][r] = fmaf(left[i], right.w, sum[4 * q + 3][r]);
            }
          }
      }
    }
  }

  template <int kTiles>
  __device__ static void store(const float (&o)[kTiles][kHeadDim / 8][4], const float (&factor)[kTiles][2], uint32_t,
                               Element* target, int row_stride, int first, int limit, int head_dim, bool adds = false) {
    store_wide_columns<kHeadDim, kTiles>(o, factor, target, row_stride, first, limit, head_dim, adds);
  }
};

}  // namespace blutensor::cuda
