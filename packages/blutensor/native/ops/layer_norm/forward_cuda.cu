// y = (x - mean) rstd weight + bias of every row [C] of x [M, C]; mean and rstd [M] are kept for backward. Without a
// mean (null) it is 0: rms_norm.
//
// Algorithm: the row is read once, into registers; mean, then the mean square of the deviations from it (two sums, so
// that a large mean costs no digits), then y. layer_norm_forward_any reads the row three times, from L2 mostly.
// Bytes: 2 M C elements, weight and bias from L1. FLOPs: about 8 M C.
// Benchmark: benchmarks/bench_layers_cuda.py --only layer_norm
#include "ops/layer_norm/norm.h"
#include "ops/layer_norm/row_cuda.cuh"

namespace blutensor {

using namespace cuda;

namespace {

constexpr int kAnyThreads = 256;

template <class T>
struct Forward {
  using C = device_compute_t<T>;
  const T* x;
  int64_t row_stride;
  const T *weight, *bias;  // may be null
  T* y;
  C *mean, *rstd;  // mean may be null
  int64_t rows;
  int cols;
  double eps;
};

// ---------------------------------------------------------------- rows in registers

template <class T, class RowShape>
__global__ void __launch_bounds__(RowShape::kThreads) layer_norm_forward(const Forward<T> p) {
  constexpr int kWidth = kPackOf<T>, kPacks = RowShape::template kPacks<T>, kThreads = RowShape::kRowThreads;
  __shared__ float2 shared[2 * RowShape::kThreads / kWarpSize];
  const int thread = static_cast<int>(threadIdx.x) % kThreads;
  const int64_t row =
      static_cast<int64_t>(blockIdx.x) * RowShape::kRowsPerBlock + static_cast<int>(threadIdx.x) / kThreads;
  if (row >= p.rows) return;  // whole warps; a block's row is there for all of it
  const T* x = p.x + row * p.row_stride;

  Pack<T, kWidth> raw[kPacks];
  float2 sum = {0, 0};
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    const int col = (k * kThreads + thread) * kWidth;
    if (col < p.cols) raw[k] = load_pack<kWidth>(x + col);
  }
  const float count = static_cast<float>(p.cols);
  float mean = 0;
  if (p.mean) {
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      if ((k * kThreads + thread) * kWidth >= p.cols) continue;
      const Pack<float, kWidth> v = convert_pack<float>(raw[k]);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) sum.x += v[i];
    }
    mean = row_sums<RowShape>(sum, shared, 0).x / count;
    sum = {0, 0};
  }
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    if ((k * kThreads + thread) * kWidth >= p.cols) continue;
    const Pack<float, kWidth> v = convert_pack<float>(raw[k]);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) sum.x += (v[i] - mean) * (v[i] - mean);
  }
  const float variance = row_sums<RowShape>(sum, shared, 1).x / count;
  const float rstd = 1.0f / sqrtf(variance + static_cast<float>(p.eps));
  if (thread == 0) {
    if (p.mean) p.mean[row] = mean;
    p.rstd[row] = rstd;
  }

  T* y = p.y + row * p.cols;
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    const int col = (k * kThreads + thread) * kWidth;
    if (col >= p.cols) continue;
    Pack<float, kWidth> v = convert_pack<float>(raw[k]);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) v[i] = (v[i] - mean) * rstd;
    if (p.weight) {
      const Pack<float, kWidth> w = convert_pack<float>(load_pack<kWidth>(p.weight + col));
#pragma unroll
      for (int i = 0; i < kWidth; ++i) v[i] *= w[i];
    }
    if (p.bias) {
      const Pack<float, kWidth> b = convert_pack<float>(load_pack<kWidth>(p.bias + col));
#pragma unroll
      for (int i = 0; i < kWidth; ++i) v[i] += b[i];
    }
    store_pack(y + col, convert_pack<T>(v));
  }
}

// ---------------------------------------------------------------- any row

template <class T>
__global__ void __launch_bounds__(kAnyThreads) layer_norm_forward_any(const Forward<T> p) {
  using C = device_compute_t<T>;
  __shared__ C shared[2][kAnyThreads / kWarpSize];
  const int thread = static_cast<int>(threadIdx.x);
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    const T* x = p.x + row * p.row_stride;
    C sum = 0, squares = 0;
    for (int col = thread; p.mean && col < p.cols; col += kAnyThreads) sum += convert<C>(x[col]);
    const C mean = block_sum<kAnyThreads>(sum, shared[0]) / static_cast<C>(p.cols);
    for (int col = thread; col < p.cols; col += kAnyThreads) {
      const C deviation = convert<C>(x[col]) - mean;
      squares += deviation * deviation;
    }
    const C variance = block_sum<kAnyThreads>(squares, shared[1]) / static_cast<C>(p.cols);
    const C rstd = C{1} / sqrt(variance + static_cast<C>(p.eps));
    if (thread == 0) {
      if (p.mean) p.mean[row] = mean;
      p.rstd[row] = rstd;
    }
    for (int col = thread; col < p.cols; col += kAnyThreads) {
      C v = (convert<C>(x[col]) - mean) * rstd;
      if (p.weight) v *= convert<C>(p.weight[col]);
      if (p.bias) v += convert<C>(p.bias[col]);
      p.y[row * p.cols + col] = convert<T>(v);
    }
  }
}

template <class T>
void launch_forward(const Forward<T>& p, bool packs, cudaStream_t stream) {
  if constexpr (!std::is_same_v<T, double>) {
    if (packs && p.cols <= kMaxRegisterColumns)
      return visit_row_shape<128>(p.cols, [&](auto shape) {
        using Shape = decltype(shape);
        const auto blocks = static_cast<unsigned>((p.rows + Shape::kRowsPerBlock - 1) / Shape::kRowsPerBlock);
        layer_norm_forward<T, Shape><<<blocks, Shape::kThreads, 0, stream>>>(p);
        check_launch("layer_norm");
      });
  }
  layer_norm_forward_any<<<grid_for(p.rows, 1), kAnyThreads, 0, stream>>>(p);
  check_launch("layer_norm");
}

}  // namespace

void norm_forward_cuda(const NormForward& a, const Launch& launch, Execution& run) {
  const DType dtype = a.x.dtype;
  const Matrix rows = run.rows(a.x, a.x.rank() - a.num_axes, dtype);
  const void *weight = run.contiguous(a.weight, dtype), *bias = run.contiguous(a.bias, dtype);
  if (run.dry() || rows.rows == 0) return;
  require(rows.cols < (int64_t{1} << 31) - kAnyThreads && rows.rows < (int64_t{1} << 31),
          "[layer_norm] expected fewer than 2^31 rows and columns, got ", rows.rows, " x ", rows.cols);
  // An absent weight or bias is a null pointer, aligned to anything.
  const bool packs = has_packs(rows) && is_aligned(weight, 16) && is_aligned(bias, 16) && is_aligned(a.y.data, 16);
  visit_device_floating(dtype, "layer_norm", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = device_compute_t<T>;
    launch_forward<T>(
        {static_cast<const T*>(rows.data), rows.row_stride, static_cast<const T*>(weight), static_cast<const T*>(bias),
         a.y.ptr<T>(), a.mean.ptr<C>(), a.rstd.ptr<C>(), rows.rows, static_cast<int>(rows.cols), a.eps},
        packs, stream_of(launch));
  });
}

}  // namespace blutensor
