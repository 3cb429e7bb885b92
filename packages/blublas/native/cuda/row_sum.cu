// Sums of A's rows: the bias gradient, when A is a gradient transposed.
//
// K is cut into parts of which a block sums one for a group of rows; add_partials adds the parts in order. Three ways
// to read: rows contiguous (A transposed: the columns of a row-major matrix), 16 bytes of neighbouring rows a thread;
// K contiguous, a warp per row; anything else element by element. Bytes: those of A once.
#include <algorithm>

#include "cuda/epilogue.cuh"
#include "cuda/reduce.h"

namespace blublas {
namespace {

constexpr int kLanes = 32, kGroups = 8;  // threads along the rows, threads along k

struct RowSumParams {
  const char* a;
  int32_t dtype;
  int64_t row_stride, k_stride, batch_stride;  // in elements
  int64_t m, k, parts, k_per_part;
  void* partials;  // [batch][parts][m]
};

template <typename T>
__device__ void store_groups(const RowSumParams& p, int64_t first_row, int per_thread, const T* own, T* shared) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes, group = static_cast<int>(threadIdx.x) / kLanes;
  const int rows = kLanes * per_thread;
  for (int j = 0; j < per_thread; ++j) shared[group * rows + lane * per_thread + j] = own[j];
  __syncthreads();
  T* target = static_cast<T*>(p.partials) + (blockIdx.z * p.parts + blockIdx.y) * p.m;
  for (int row = static_cast<int>(threadIdx.x); row < rows; row += kLanes * kGroups) {
    if (first_row + row >= p.m) continue;
    T sum = shared[row];
    for (int i = 1; i < kGroups; ++i) sum += shared[i * rows + row];
    target[first_row + row] = sum;
  }
}

// Rows contiguous, aligned, whole vectors of them: Element is uint16_t (bfloat16) or float.
template <typename Element>
__global__ void __launch_bounds__(kLanes* kGroups) row_sum_vectors(const __grid_constant__ RowSumParams p) {
  constexpr int kVector = 16 / sizeof(Element), kUnroll = 8;
  __shared__ float shared[kGroups * kLanes * kVector];
  const int lane = static_cast<int>(threadIdx.x) % kLanes, group = static_cast<int>(threadIdx.x) / kLanes;
  const int64_t first_row = static_cast<int64_t>(blockIdx.x) * kLanes * kVector, row = first_row + lane * kVector;
  const int64_t begin = blockIdx.y * p.k_per_part, end = min(p.k, begin + p.k_per_part);
  float sums[kVector] = {};
  if (row < p.m) {
    const Element* source = reinterpret_cast<const Element*>(p.a) + blockIdx.z * p.batch_stride + row;
    for (int64_t k = begin + group; k < end; k += kGroups * kUnroll) {
      uint4 bits[kUnroll];
#pragma unroll
      for (int i = 0; i < kUnroll; ++i)
        bits[i] = k + i * kGroups < end ? __ldg(reinterpret_cast<const uint4*>(source + (k + i * kGroups) * p.k_stride))
                                        : make_uint4(0, 0, 0, 0);
#pragma unroll
      for (int i = 0; i < kUnroll; ++i) {
        const uint32_t words[4] = {bits[i].x, bits[i].y, bits[i].z, bits[i].w};
#pragma unroll
        for (int j = 0; j < 4; ++j)
          if constexpr (sizeof(Element) == 2) {
            sums[2 * j] += __uint_as_float(words[j] << 16);
            sums[2 * j + 1] += __uint_as_float(words[j] & 0xFFFF0000u);
          } else {
            sums[j] += __uint_as_float(words[j]);
          }
      }
    }
  }
  store_groups(p, first_row, kVector, sums, shared);
}

// Any strides; lanes along the rows.
template <typename T>
__global__ void __launch_bounds__(kLanes* kGroups) row_sum_elements(const __grid_constant__ RowSumParams p) {
  __shared__ T shared[kGroups * kLanes];
  const int lane = static_cast<int>(threadIdx.x) % kLanes, group = static_cast<int>(threadIdx.x) / kLanes;
  const int64_t first_row = static_cast<int64_t>(blockIdx.x) * kLanes, row = first_row + lane;
  const int64_t begin = blockIdx.y * p.k_per_part, end = min(p.k, begin + p.k_per_part);
  const char* data = p.a + blockIdx.z * p.batch_stride * element_bytes(p.dtype);
  T sum = 0;
  if (row < p.m)
#pragma unroll 4
    for (int64_t k = begin + group; k < end; k += kGroups)
      sum += load_element<T>(data, p.dtype, row * p.row_stride + k * p.k_stride);
  store_groups(p, first_row, 1, &sum, shared);
}

// K contiguous: a warp per row, lanes along k.
template <typename T>
__global__ void __launch_bounds__(kLanes* kGroups) row_sum_lines(const __grid_constant__ RowSumParams p) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes, group = static_cast<int>(threadIdx.x) / kLanes;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kGroups + group;
  const int64_t begin = blockIdx.y * p.k_per_part, end = min(p.k, begin + p.k_per_part);
  if (row >= p.m) return;
  const char* data = p.a + blockIdx.z * p.batch_stride * element_bytes(p.dtype);
  T sum = 0;
#pragma unroll 8
  for (int64_t k = begin + lane; k < end; k += kLanes)
    sum += load_element<T>(data, p.dtype, row * p.row_stride + k * p.k_stride);
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, offset);
  if (lane == 0) static_cast<T*>(p.partials)[(blockIdx.z * p.parts + blockIdx.y) * p.m + row] = sum;
}

enum class Way { vectors, lines, elements };

Way way_for(const Operand& a, int64_t m) {
  if (a.row_stride == 1 && m * dtype_bytes(a.dtype) % 16 == 0 && a.dtype != BLUBLAS_FLOAT64 &&
      a.batch_stride * dtype_bytes(a.dtype) % 16 == 0 && a.col_stride * dtype_bytes(a.dtype) % 16 == 0 &&
      reinterpret_cast<uintptr_t>(a.data) % 16 == 0)
    return Way::vectors;
  return a.col_stride == 1 ? Way::lines : Way::elements;
}

// Parts of K: enough blocks for any device, at least 64 of k each. The shape alone decides.
int64_t parts_for(const CudaProblem& p) {
  const int64_t row_blocks = std::max<int64_t>(1, (p.m + 255) / 256) * p.batch;
  const int64_t wanted = std::max<int64_t>(1, 1056 / row_blocks);
  return std::clamp<int64_t>(p.k / 64, 1, std::min<int64_t>(wanted, 512));
}

}  // namespace

size_t row_sum_workspace(const CudaProblem& p) {
  return static_cast<size_t>(p.batch * parts_for(p) * p.m * dtype_bytes(p.compute));
}

void row_sum_launch(const CudaProblem& problem, char* workspace) {
  RowSumParams p;
  p.a = problem.a.data;
  p.dtype = problem.a.dtype;
  p.row_stride = problem.a.row_stride, p.k_stride = problem.a.col_stride, p.batch_stride = problem.a.batch_stride;
  p.m = problem.m, p.k = problem.k, p.parts = parts_for(problem);
  p.k_per_part = (p.k + p.parts - 1) / p.parts;
  p.partials = workspace;
  const Way way = way_for(problem.a, problem.m);
  const int64_t rows = way == Way::vectors ? kLanes * 16 / dtype_bytes(p.dtype) : way == Way::lines ? kGroups : kLanes;
  const dim3 grid(static_cast<unsigned>((p.m + rows - 1) / rows), static_cast<unsigned>(p.parts),
                  static_cast<unsigned>(problem.batch));
  const auto launch = [&](auto* kernel) { kernel<<<grid, kLanes * kGroups, 0, problem.stream>>>(p); };
  if (way == Way::vectors)
    p.dtype == BLUBLAS_BFLOAT16 ? launch(row_sum_vectors<uint16_t>) : launch(row_sum_vectors<float>);
  else if (way == Way::lines)
    problem.compute == BLUBLAS_FLOAT64 ? launch(row_sum_lines<double>) : launch(row_sum_lines<float>);
  else
    problem.compute == BLUBLAS_FLOAT64 ? launch(row_sum_elements<double>) : launch(row_sum_elements<float>);
  check_launch("row_sum");
  add_partials_launch(problem, workspace, p.parts, p.m, problem.row_sum_a,
                      problem.epilogue & BLUBLAS_EPILOGUE_ROW_SUM_A_ACCUMULATE);
}

}  // namespace blublas
