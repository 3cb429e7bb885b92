// Tiles of attention's operands in shared memory: how they lie, loading them, reading them as left operands.
//
// Tiles [rows][kHeadDim] are swizzled: 16-byte chunk i of row r lies at chunk i ^ (r & 7) (rows of a multiple of 128 bytes)
// or i ^ (r >> 1 & 3), which keeps ldmatrix and the strided reads of cuda_arithmetic.cuh free of bank conflicts.
#pragma once

#include "ops/attention/cuda_arguments.h"
#include "ops/attention/ptx/mma.cuh"

namespace blutensor::cuda {

// ---------------------------------------------------------------- tiles

// Of a block of kThreads threads.
template <class Element, int kHeadDim, int kThreads>
struct Tile {
  static constexpr int kRowBytes = kHeadDim * static_cast<int>(sizeof(Element));
  static constexpr int kChunks = kRowBytes / 16;
  static constexpr int kPerChunk = 16 / static_cast<int>(sizeof(Element));
  static constexpr bool kWide = kChunks % 8 == 0;
  static_assert(kChunks % 4 == 0);

  __device__ static int swizzle(int row) { return kWide ? row & 7 : (row >> 1) & 3; }
  __device__ static int offset(int row, int chunk) { return row * kRowBytes + ((chunk ^ swizzle(row)) << 4); }

  // ldmatrix.x4 of 16 rows and chunks 2 step, 2 step + 1: this lane's address is base + at(lane_offset(), step). In the
  // order of a left operand (or, transposed, of two right ones): rows before chunks; of two right ones: chunks first.
  __device__ static int lane_offset() {
    const int lane = threadIdx.x & 31;
    return offset(lane & 15, lane >> 4);
  }
  __device__ static int right_lane_offset() {
    const int lane = threadIdx.x & 31;
    return offset((lane & 7) + (lane >> 4) * 8, (lane >> 3) & 1);
  }
  __device__ static int at(int lane_offset, int step) {
    return kWide ? (lane_offset ^ ((step & 3) << 5)) + ((step >> 2) << 7)
                 : (lane_offset ^ ((step & 1) << 5)) + ((step >> 1) << 6);
  }

  // Rows first .. first + kRows - 1 of a global matrix; rows from `limit` on and columns from head_dim on are zeros.
  template <int kRows>
  __device__ static void load_async(uint32_t tile, const Element* source, int row_stride, int first, int limit,
                                    int head_dim) {
    constexpr bool kEven = kThreads % kChunks == 0 && kRows * kChunks % kThreads == 0;
    if (kEven && first + kRows <= limit && head_dim == kHeadDim) {  // the same for all threads; nearly always
      constexpr int kRowsAtOnce = kThreads / kChunks;
      const int chunk = static_cast<int>(threadIdx.x) % kChunks;
      int row = static_cast<int>(threadIdx.x) / kChunks;
      const Element* from = source + static_cast<int64_t>(first + row) * row_stride + chunk * kPerChunk;
#pragma unroll
      for (int i = 0; i < kRows / kRowsAtOnce; ++i, row += kRowsAtOnce, from += kRowsAtOnce * row_stride)
        ptx::copy_async_16(tile + offset(row, chunk), from);
      return;
    }
#pragma unroll
    for (int i = 0; i < kRows * kChunks; i += kThreads) {
      const int index = i + static_cast<int>(threadIdx.x);
      if (kRows * kChunks % kThreads != 0 && index >= kRows * kChunks) break;
      const int row = index / kChunks, chunk = index % kChunks;
      const bool valid = first + row < limit && chunk * kPerChunk < head_dim;
      const int64_t from = static_cast<int64_t>(first + row) * row_stride + chunk * kPerChunk;
      ptx::copy_async_16(tile + offset(row, chunk), source + (valid ? from : 0), valid ? 16 : 0);
    }
  }

  // Rounds what this thread has loaded with load_async<kRows> to tf32.
  template <int kRows>
  __device__ static void round_loaded(uint32_t tile) {
#pragma unroll
    for (int i = 0; i < kRows * kChunks; i += kThreads) {
      const int index = i + static_cast<int>(threadIdx.x);
      if (kRows * kChunks % kThreads != 0 && index >= kRows * kChunks) break;
      const uint32_t at = tile + offset(index / kChunks, index % kChunks);
      float4 v = ptx::load_shared_4(at);
      v.x = __uint_as_float(ptx::round_tf32(v.x)), v.y = __uint_as_float(ptx::round_tf32(v.y));
      v.z = __uint_as_float(ptx::round_tf32(v.z)), v.w = __uint_as_float(ptx::round_tf32(v.w));
      ptx::store_shared_4(at, v);
    }
  }
};

// The matrix of a pair.
template <class Element>
__device__ __forceinline__ Element* matrix_of(const AttentionArguments& args, const AttentionOperand& operand,
                                              uint32_t pair) {
  return static_cast<Element*>(operand.data) + pair_offset(args.leading, operand, pair);
}

// Two matrices of a pair with as many rows, whose tiles lie one behind the other.
template <class Rows, class Element>
struct TwoMatrices {
  const Element *first, *second;
  int first_stride, second_stride, num_rows, head_dim;

  __device__ TwoMatrices(const AttentionArguments& args, const AttentionOperand& a, const AttentionOperand& b,
                         uint32_t pair, int rows)
      : first(matrix_of<Element>(args, a, pair)),
        second(matrix_of<Element>(args, b, pair)),
        first_stride(static_cast<int>(a.row_stride)),
        second_stride(static_cast<int>(b.row_stride)),
        num_rows(rows),
        head_dim(args.head_dim) {}

  template <int kRows>
  __device__ __forceinline__ void load_async(uint32_t tiles, int first_row) const {
    Rows::template load_async<kRows>(tiles, first, first_stride, first_row, num_rows, head_dim);
    Rows::template load_async<kRows>(tiles + kRows * Rows::kRowBytes, second, second_stride, first_row, num_rows,
                                     head_dim);
  }
};

// The left operand of scores: the warp's rows, read from shared memory again in every step, or kept in registers.
template <class Rows, int kTiles>
struct SharedLeft {
  uint32_t rows;

  __device__ explicit SharedLeft(uint32_t shared_rows) : rows(shared_rows) {}
  __device__ void get(uint32_t (&left)[kTiles][4], int lane_offset, int step) const {
#pragma unroll
    for (int m = 0; m < kTiles; ++m)
      ptx::load_matrix_x4(left[m], rows + 16 * m * Rows::kRowBytes + Rows::at(lane_offset, step));
  }
};
template <class Rows, int kTiles>
struct KeptLeft {
  uint32_t kept[Rows::kChunks / 2][kTiles][4];

  __device__ explicit KeptLeft(uint32_t shared_rows) {
#pragma unroll
    for (int step = 0; step < Rows::kChunks / 2; ++step)
      SharedLeft<Rows, kTiles>(shared_rows).get(kept[step], Rows::lane_offset(), step);
  }
  __device__ void get(uint32_t (&left)[kTiles][4], int, int step) const {
#pragma unroll
    for (int m = 0; m < kTiles; ++m)
#pragma unroll
      for (int i = 0; i < 4; ++i) left[m][i] = kept[step][m][i];
  }
};

}  // namespace blutensor::cuda
