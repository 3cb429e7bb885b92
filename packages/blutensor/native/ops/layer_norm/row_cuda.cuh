// Rows of a matrix [M, C] held in registers: what the forward and the backward kernel of layer_norm share.
//
// A row belongs to the threads of a warp or of a block, each of which holds kElements of it, in packs of 16 bytes:
// columns (k threads + thread) kPackOf<T>, k = 0, 1, ... visit_row_shape() picks the smallest shape that holds a row.
// Rows beyond 8192 columns, or whose addresses do not allow packs, take the kernels named *_any, which read memory as
// often as they need it.
#pragma once

#include "ops/cuda/reduce.cuh"
#include "ops/cuda/vector.cuh"
#include "ops/matmul/operand.h"

namespace blutensor::cuda {

// How a kernel's threads are shared out: kRowThreads for one row, kElements columns each; kThreads in a block.
template <int kRow, int kBlock, int kCount>
struct RowShape {
  static constexpr int kRowThreads = kRow, kThreads = kBlock, kElements = kCount;
  static constexpr int kRowsPerBlock = kBlock / kRow;
  template <class T>
  static constexpr int kPacks = kCount / kPackOf<T>;
};

inline constexpr int64_t kMaxRegisterColumns = 8192;

// visit(RowShape) with the smallest shape that holds `cols` columns, at most kMaxRegisterColumns. A block of several
// rows has kWarpBlock threads.
template <int kWarpBlock, class F>
void visit_row_shape(int64_t cols, const F& visit) {
  if (cols <= 768) return visit(RowShape<kWarpSize, kWarpBlock, 24>{});
  if (cols <= 1024) return visit(RowShape<kWarpSize, 128, 32>{});
  if (cols <= 2048) return visit(RowShape<128, 128, 16>{});
  if (cols <= 3072) return visit(RowShape<128, 128, 24>{});
  if (cols <= 4096) return visit(RowShape<128, 128, 32>{});
  return visit(RowShape<256, 256, 32>{});
}

// Whether rows of this matrix can be read in packs.
inline bool has_packs(const Matrix& m) {
  const auto pack = static_cast<int64_t>(16 / dtype_size(m.dtype));
  return m.col_stride == 1 && m.cols % pack == 0 && (m.rows <= 1 || m.row_stride % pack == 0) && is_aligned(m.data, 16);
}

// Sums two values over the threads of a row. `shared`: 2 * kThreads / 32 pairs, which alternate with `turn`.
template <class RowShape>
__device__ inline float2 row_sums(float2 value, float2* shared, int turn) {
  const auto add = [](float2 a, float2 b) { return make_float2(a.x + b.x, a.y + b.y); };
  if constexpr (RowShape::kRowThreads == kWarpSize) {
    return warp_reduce(value, add);
  } else {
    static_assert(RowShape::kRowsPerBlock == 1);
    return block_reduce<RowShape::kThreads>(value, add, shared + (turn & 1) * (RowShape::kThreads / kWarpSize));
  }
}

}  // namespace blutensor::cuda
