// GEMM for operands that the tile kernels do not take: any strides, any alignment, float64, K of 0.
//
// A block of 256 threads does 64 x 64, a thread 4 rows (16 apart) by 4 columns. Elements are read one by one, along
// whichever axis is contiguous, into shared memory [k][row], and converted to the accumulation type there. Sums run over
// k in order; those in float32 are added to totals after every kChain. 2 M N K FLOP; meant to be right, not fast.
#include <cuda_runtime_api.h>

#include <algorithm>

#include "cuda/epilogue.cuh"
#include "cuda/general.h"

namespace blublas {
namespace {

constexpr int kTile = 64, kBlockK = 16, kThreads = 256, kPad = 4, kChain = 64;

struct GeneralParams {
  MatrixRef a, b;
  int64_t m, n, k, tiles_n;
  int64_t splits, k_per_split;
  EpilogueParams epilogue;
};

// A tile of [kBlockK][kTile]: `outer` is the axis of M or N.
template <typename T>
__device__ void load_tile(const MatrixRef& x, int64_t batch, int64_t outer_stride, int64_t k_stride, int64_t outer,
                          int64_t num_outer, int64_t k, int64_t k_end, T (&tile)[kBlockK][kTile + kPad]) {
  const char* data = x.data + batch * x.batch_stride * element_bytes(x.dtype);
  const bool along_k = k_stride == 1;
#pragma unroll
  for (int i = 0; i < kBlockK * kTile / kThreads; ++i) {
    const int index = static_cast<int>(threadIdx.x) + i * kThreads;
    const int at_k = along_k ? index % kBlockK : index / kTile, at = along_k ? index / kBlockK : index % kTile;
    const bool inside = outer + at < num_outer && k + at_k < k_end;
    tile[at_k][at] =
        inside ? load_element<T>(data, x.dtype, (outer + at) * outer_stride + (k + at_k) * k_stride) : T(0);
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads, 2) gemm_general(const __grid_constant__ GeneralParams p) {
  __shared__ T a[kBlockK][kTile + kPad], b[kBlockK][kTile + kPad];
  const int64_t tile_m = blockIdx.x / p.tiles_n, tile_n = blockIdx.x % p.tiles_n;
  const int64_t first_m = tile_m * kTile, first_n = tile_n * kTile;
  const int64_t z = blockIdx.z, batch = z / p.splits, split = z % p.splits;
  const int64_t k_begin = split * p.k_per_split, k_end = min(p.k, k_begin + p.k_per_split);
  const int row = static_cast<int>(threadIdx.x) / 16, column = static_cast<int>(threadIdx.x) % 16 * 4;
  T sums[4][4] = {}, totals[4][4] = {};
  const auto add = [](T(&to)[4][4], const T(&from)[4][4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) to[i][j] += from[i][j];
  };
  for (int64_t k = k_begin; k < k_end; k += kBlockK) {
    load_tile(p.a, batch, p.a.row_stride, p.a.col_stride, first_m, p.m, k, k_end, a);
    load_tile(p.b, batch, p.b.col_stride, p.b.row_stride, first_n, p.n, k, k_end, b);
    __syncthreads();
#pragma unroll
    for (int kk = 0; kk < kBlockK; ++kk)
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) sums[i][j] = fma(a[kk][row + 16 * i], b[kk][column + j], sums[i][j]);
    __syncthreads();
    if (sizeof(T) == 4 && (k - k_begin + kBlockK) % kChain == 0) {
      add(totals, sums);
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[i][0] = sums[i][1] = sums[i][2] = sums[i][3] = 0;
    }
  }
  add(sums, totals);
  const EpilogueParams& e = p.epilogue;
  const int64_t at = first_n + column;
  const int count = static_cast<int>(max(min(static_cast<int64_t>(4), p.n - at), static_cast<int64_t>(0)));
  T bias[4], column_sum[4] = {};
  load_bias(e, z, at, count, bias);
  const int num_rows = count == 0 ? 0 : static_cast<int>(min((p.m - first_m - row + 15) / 16, static_cast<int64_t>(4)));
  finish_quads<4>(e, QuadPlaces<AnyQuads>(e, z, first_m + row, 16, at, count), 0, num_rows, bias, sums, column_sum);
  if (e.partials == nullptr) return;
  // The threads' sums in order of their rows.
#pragma unroll
  for (int j = 0; j < 4; ++j) a[row][column + j] = column_sum[j];
  __syncthreads();
  if (row != 0 || count <= 0) return;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    column_sum[j] = 0;
    for (int i = 0; i < 16; ++i) column_sum[j] += a[i][column + j];
  }
  store_partial(e, batch, tile_m, at, count, column_sum);
}

MatrixRef reference(const Operand& x) { return {x.data, x.row_stride, x.col_stride, x.batch_stride, x.dtype, false}; }

}  // namespace

int64_t general_rows_per_partial() { return kTile; }

void general_launch(const CudaProblem& problem, const EpilogueParams& epilogue, int64_t splits) {
  GeneralParams p;
  p.a = reference(problem.a), p.b = reference(problem.b);
  p.m = problem.m, p.n = problem.n, p.k = problem.k;
  p.tiles_n = (p.n + kTile - 1) / kTile;
  p.splits = splits;
  p.k_per_split = (p.k + splits - 1) / splits;
  p.epilogue = epilogue;
  const dim3 grid(static_cast<unsigned>((p.m + kTile - 1) / kTile * p.tiles_n), 1,
                  static_cast<unsigned>(problem.batch * splits));
  if (problem.compute == BLUBLAS_FLOAT64)
    gemm_general<double><<<grid, kThreads, 0, problem.stream>>>(p);
  else
    gemm_general<float><<<grid, kThreads, 0, problem.stream>>>(p);
  check_launch("gemm_general");
}

}  // namespace blublas
