// The second passes. finish_splits: bytes read 4 M N splits; add_partials: 4 N partials.
#include <algorithm>

#include "cuda/epilogue.cuh"
#include "cuda/reduce.h"

namespace blublas {
namespace {

// ---- products whose K was split ---------------------------------------------------------------------------------
constexpr int kFinishRows = 32, kFinishColumns = 64, kFinishThreads = 128;

// A block does 32 rows by 64 columns, 16 threads a row; a thread 4 rows of one quad, 8 apart.
template <typename T>
__global__ void __launch_bounds__(kFinishThreads)
    finish_splits(const __grid_constant__ EpilogueParams e, const T* __restrict__ parts, int64_t splits,
                  int64_t row_stride, int64_t tiles_n) {
  __shared__ T shared[8][kFinishColumns];
  const int64_t tile_m = blockIdx.x / tiles_n, tile_n = blockIdx.x % tiles_n, batch = blockIdx.z;
  const int own_row = static_cast<int>(threadIdx.x) / 16, own_column = static_cast<int>(threadIdx.x) % 16 * 4;
  const int64_t row = tile_m * kFinishRows + own_row, column = tile_n * kFinishColumns + own_column;
  const int count = static_cast<int>(max(min(static_cast<int64_t>(4), e.n - column), static_cast<int64_t>(0)));
  T v[4][4] = {}, bias[4], column_sum[4] = {};
  const T* source = parts + batch * splits * e.m * row_stride;
  if (count > 0)
    for (int64_t split = 0; split < splits; ++split)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (row + 8 * i < e.m) {
          // Lines are padded to whole quads.
          const T* at = source + (split * e.m + row + 8 * i) * row_stride + column;
          if constexpr (sizeof(T) == 4) {
            const float4 x = *reinterpret_cast<const float4*>(at);
            v[i][0] += x.x, v[i][1] += x.y, v[i][2] += x.z, v[i][3] += x.w;
          } else {
#pragma unroll
            for (int j = 0; j < 4; ++j)
              if (j < count) v[i][j] += at[j];
          }
        }
  load_bias(e, batch, column, count, bias);
  const int num_rows = count == 0 ? 0 : static_cast<int>(min((e.m - row + 7) / 8, static_cast<int64_t>(4)));
  const auto finish = [&](auto&& places) { finish_quads<4>(e, places, 0, num_rows, bias, v, column_sum); };
  if constexpr (sizeof(T) == 4) {
    if (e.vectors && num_rows == 4 && count == 4)
      finish(QuadPlaces<VectorQuads>(e, batch, row, 8, column, count));
    else
      finish(QuadPlaces<AnyQuads>(e, batch, row, 8, column, count));
  } else {
    finish(QuadPlaces<AnyQuads>(e, batch, row, 8, column, count));
  }
  if (e.partials == nullptr) return;
#pragma unroll
  for (int j = 0; j < 4; ++j) shared[own_row][own_column + j] = column_sum[j];
  __syncthreads();
  if (own_row != 0 || count <= 0) return;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    column_sum[j] = 0;
    for (int i = 0; i < 8; ++i) column_sum[j] += shared[i][own_column + j];
  }
  store_partial(e, batch, tile_m, column, count, column_sum);
}

// ---- partial sums -----------------------------------------------------------------------------------------------
constexpr int kAddGroups = 8;

// A block does 32 columns; eight groups of threads add an eighth of the partial sums each, and then those are added.
template <typename T>
__global__ void __launch_bounds__(32 * kAddGroups)
    add_partials(const T* __restrict__ partials, int64_t num_partials, int64_t n, T* target, int64_t target_stride,
                 bool accumulate) {
  __shared__ T shared[kAddGroups][32];
  const int lane = static_cast<int>(threadIdx.x) % 32, group = static_cast<int>(threadIdx.x) / 32;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * 32 + lane, batch = blockIdx.z;
  const int64_t per_group = (num_partials + kAddGroups - 1) / kAddGroups;
  const int64_t begin = group * per_group, end = min(num_partials, begin + per_group);
  T sum = 0;
  if (column < n) {
    const T* source = partials + batch * num_partials * n + column;
#pragma unroll 8
    for (int64_t i = begin; i < end; ++i) sum += source[i * n];
  }
  shared[group][lane] = sum;
  __syncthreads();
  if (group != 0 || column >= n) return;
  sum = shared[0][lane];
#pragma unroll
  for (int i = 1; i < kAddGroups; ++i) sum += shared[i][lane];
  T* at = target + batch * target_stride + column;
  *at = accumulate ? *at + sum : sum;
}

template <typename T>
void add_partials_as(const CudaProblem& problem, const char* partials, int64_t num_partials, int64_t n,
                     const Vector& target, bool accumulate) {
  const dim3 grid(static_cast<unsigned>((n + 31) / 32), 1, static_cast<unsigned>(problem.batch));
  add_partials<T><<<grid, 32 * kAddGroups, 0, problem.stream>>>(reinterpret_cast<const T*>(partials), num_partials, n,
                                                                reinterpret_cast<T*>(target.data), target.batch_stride,
                                                                accumulate);
  check_launch("add_partials");
}

}  // namespace

int64_t finish_rows_per_partial() { return kFinishRows; }

void finish_splits_launch(const CudaProblem& problem, const EpilogueParams& epilogue, const char* parts, int64_t splits,
                          int64_t row_stride) {
  const int64_t tiles_n = (problem.n + kFinishColumns - 1) / kFinishColumns;
  const dim3 grid(static_cast<unsigned>((problem.m + kFinishRows - 1) / kFinishRows * tiles_n), 1,
                  static_cast<unsigned>(problem.batch));
  if (problem.compute == BLUBLAS_FLOAT64)
    finish_splits<double><<<grid, kFinishThreads, 0, problem.stream>>>(epilogue, reinterpret_cast<const double*>(parts),
                                                                       splits, row_stride, tiles_n);
  else
    finish_splits<float><<<grid, kFinishThreads, 0, problem.stream>>>(epilogue, reinterpret_cast<const float*>(parts),
                                                                      splits, row_stride, tiles_n);
  check_launch("finish_splits");
}

void add_partials_launch(const CudaProblem& problem, const char* partials, int64_t num_partials, int64_t n,
                         const Vector& target, bool accumulate) {
  if (problem.compute == BLUBLAS_FLOAT64)
    add_partials_as<double>(problem, partials, num_partials, n, target, accumulate);
  else
    add_partials_as<float>(problem, partials, num_partials, n, target, accumulate);
}

}  // namespace blublas
