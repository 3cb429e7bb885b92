// Memory-bound passes around the product. Bytes: both read and write each element once.
#include "cuda/problem.h"
#include "cuda/sm90/finish.cuh"
#include "cuda/sm90/passes.h"

namespace blublas::sm90 {
namespace {

constexpr int tile = 64, row_threads = 16;

// Tiles of 64 by 64 through shared memory; a row of 65 words keeps both sides free of bank conflicts.
__global__ void __launch_bounds__(tile * 4)
    transpose_f32(const float* __restrict__ from, int64_t ld_from, float* __restrict__ to, int64_t ld_to, int64_t rows,
                  int64_t columns) {
  __shared__ float buffer[tile][tile + 1];
  const int64_t row = int64_t{blockIdx.y} * tile, column = int64_t{blockIdx.x} * tile;
  const int x = threadIdx.x % row_threads * 4, y = threadIdx.x / row_threads;
#pragma unroll
  for (int i = y; i < tile; i += row_threads) {
    if (row + i >= rows) continue;
    const float* source = from + (row + i) * ld_from + column + x;
    if (column + x + 4 <= columns) {
      const float4 v = *reinterpret_cast<const float4*>(source);
      buffer[i][x] = v.x, buffer[i][x + 1] = v.y, buffer[i][x + 2] = v.z, buffer[i][x + 3] = v.w;
    } else {
      for (int j = 0; j < 4; ++j)
        if (column + x + j < columns) buffer[i][x + j] = source[j];
    }
  }
  __syncthreads();
#pragma unroll
  for (int i = y; i < tile; i += row_threads) {
    if (column + i >= columns) continue;
    float* target = to + (column + i) * ld_to + row + x;
    if (row + x + 4 <= rows) {
      *reinterpret_cast<float4*>(target) =
          make_float4(buffer[x][i], buffer[x + 1][i], buffer[x + 2][i], buffer[x + 3][i]);
    } else {
      for (int j = 0; j < 4; ++j)
        if (row + x + j < rows) target[j] = buffer[x + j][i];
    }
  }
}

__device__ __forceinline__ float element(const char* data, bool bf16, int64_t index) {
  return bf16 ? __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(data)[index])
              : reinterpret_cast<const float*>(data)[index];
}
__device__ __forceinline__ void set_element(char* data, bool bf16, int64_t index, float value) {
  if (bf16)
    reinterpret_cast<__nv_bfloat16*>(data)[index] = __float2bfloat16(value);
  else
    reinterpret_cast<float*>(data)[index] = value;
}

__device__ __forceinline__ float activated_at_run_time(Kind kind, float x) {
  switch (kind) {
    case Kind::gelu_tanh:
      return activated<Kind::gelu_tanh>(x);
    case Kind::gelu_erf:
      return activated<Kind::gelu_erf>(x);
    case Kind::gelu_tanh_gradient:
      return activated<Kind::gelu_tanh_gradient>(x);
    case Kind::gelu_erf_gradient:
      return activated<Kind::gelu_erf_gradient>(x);
    default:
      return x;
  }
}

// The epilogue of one element.
__device__ __forceinline__ void finish_element(const Finish& f, Kind kind, int64_t row, int64_t column, float sum) {
  const bool gradient = kind == Kind::gelu_tanh_gradient || kind == Kind::gelu_erf_gradient;
  const bool side_first = f.flags & side_before_bias;
  const float side = f.side != nullptr ? element(f.side, f.flags & side_is_bf16, row * f.ld_side + column) : 0;
  float v = sum * f.alpha;
  if (!gradient && side_first) v = fmaf(f.side_scale, side, v);
  if (f.bias != nullptr) v += element(f.bias, f.flags & bias_is_bf16, column);
  if (gradient) {
    v *= activated_at_run_time(kind, side);
  } else {
    if (f.aux != nullptr) set_element(f.aux, f.flags & aux_is_bf16, row * f.ld_aux + column, v);
    v = activated_at_run_time(kind, v);
    if (!side_first) v = fmaf(f.side_scale, side, v);
  }
  set_element(f.c, f.flags & c_is_bf16, row * f.ld_c + column, v);
}

// One thread: four neighbours of a row. Threads past the last: one sum of a row of A each.
__global__ void __launch_bounds__(256)
    finish_partials_f32(const float* __restrict__ partials, int64_t ld, int splits, int32_t m, int32_t n,
                        const Finish f, Kind kind, const RowSum row_sum) {
  const int64_t columns = (n + 3) / 4, index = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (index >= columns * m) {
    const int64_t row = index - columns * m;
    if (row_sum.partials == nullptr || row >= m) return;
    float sum = row_sum.accumulate ? row_sum.row_sum[row] : 0;
#pragma unroll 8
    for (int part = 0; part < row_sum.parts; ++part) sum += row_sum.partials[part * row_sum.ld + row];
    row_sum.row_sum[row] = sum;
    return;
  }
  const int64_t row = index / columns, column = index % columns * 4;
  const float4* from = reinterpret_cast<const float4*>(partials + row * ld + column);
  float4 sum = *from;
#pragma unroll 4
  for (int split = 1; split < splits; ++split) {
    const float4 v = from[split * m * (ld / 4)];
    sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
  }
  const float sums[4] = {sum.x, sum.y, sum.z, sum.w};
  for (int i = 0; i < 4; ++i)
    if (column + i < n) finish_element(f, kind, row, column + i, sums[i]);
}

// The same for partials of the transpose: tiles of 32 by 32 turned in shared memory.
__global__ void __launch_bounds__(256)
    finish_partials_transposed_f32(const float* __restrict__ partials, int64_t ld, int splits, int32_t m, int32_t n,
                                   const Finish f, Kind kind) {
  __shared__ float buffer[32][33];
  const int x = threadIdx.x % 32, y = threadIdx.x / 32;
  const int64_t row = int64_t{blockIdx.y} * 32, column = int64_t{blockIdx.x} * 32;
#pragma unroll
  for (int i = y; i < 32; i += 8) {
    if (column + i >= n || row + x >= m) continue;
    const float* from = partials + (column + i) * ld + row + x;
    float sum = *from;
#pragma unroll 4
    for (int split = 1; split < splits; ++split) sum += from[split * n * ld];
    buffer[i][x] = sum;
  }
  __syncthreads();
#pragma unroll
  for (int i = y; i < 32; i += 8)
    if (row + i < m && column + x < n) finish_element(f, kind, row + i, column + x, buffer[x][i]);
}

}  // namespace

void transpose_copy(const float* from, int64_t ld_from, float* to, int64_t ld_to, int64_t rows, int64_t columns,
                    cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((columns + tile - 1) / tile), static_cast<unsigned>((rows + tile - 1) / tile));
  transpose_f32<<<grid, tile * 4, 0, stream>>>(from, ld_from, to, ld_to, rows, columns);
  check_launch("transpose_f32");
}

void finish_partials(const float* partials, int64_t ld, bool transposed, int splits, int32_t m, int32_t n,
                     const Finish& finish, Kind kind, const RowSum& row_sum, cudaStream_t stream) {
  if (transposed) {
    const dim3 grid(static_cast<unsigned>((n + 31) / 32), static_cast<unsigned>((m + 31) / 32));
    finish_partials_transposed_f32<<<grid, 256, 0, stream>>>(partials, ld, splits, m, n, finish, kind);
  } else {
    const int64_t threads = int64_t{m} * ((n + 3) / 4) + (row_sum.partials != nullptr ? m : 0);
    finish_partials_f32<<<static_cast<unsigned>((threads + 255) / 256), 256, 0, stream>>>(partials, ld, splits, m, n,
                                                                                          finish, kind, row_sum);
  }
  check_launch("finish_partials");
}

}  // namespace blublas::sm90
