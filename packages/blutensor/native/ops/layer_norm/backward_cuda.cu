// Gradients of layer_norm, with xhat = (x - mean) rstd and g = dy weight, all [M, C]:
//   dx = rstd (g - mean(g) - xhat mean(g xhat)),  dweight [C] = sum over rows of dy xhat,  dbias [C] = sum of dy.
// Without a mean (null) it is 0 and mean(g) is left out: rms_norm.
//
// Algorithm: a fixed number of blocks goes through the rows; x and dy (and the gradient that dx is added to) are read
// once, to shared memory, kMaxDepth rows ahead where that has room (a thread copies and reads its own columns, so that
// no barrier is needed), and every thread adds to the sums of its own columns, in registers. At the end of a block its warps' sums are added in order and go to
// partial [blocks, 2 C]; add_blocks sums those in double, in an order that the sizes decide. Rows that do not fit
// registers take layer_norm_backward_any, and partial_any for the columns.
// Bytes: 3 M C elements (4 where dx is added to a gradient that is there), and 16 C blocks for the partial sums. FLOPs: about 16 M C.
// Benchmark: benchmarks/bench_layers_cuda.py --only layer_norm
#include <cuda_pipeline_primitives.h>

#include "ops/layer_norm/norm.h"
#include "ops/layer_norm/row_cuda.cuh"

namespace blutensor {

using namespace cuda;

namespace {

constexpr int kAnyThreads = 256;
constexpr int kColumnsPerBlock = 32, kColumnGroups = 32;  // of add_blocks
constexpr int kMaxDepth = 3, kWarpBlock = 256;

template <class T>
struct Backward {
  using C = device_compute_t<T>;
  const T* dy;
  int64_t dy_stride;
  const T* x;
  int64_t x_stride;
  const T* weight;       // may be null
  const C *mean, *rstd;  // mean may be null
  T* dx;
  bool add;    // to what is in dx
  C* partial;  // [blocks, 2 C]
  int64_t rows;
  int cols;
  int depth;  // rows that are copied ahead, and of which shared memory has room
  int packs;  // of an operand of a stage
};

__device__ inline float product(float a, float b) { return __fmul_rn(a, b); }  // never part of a multiply-add
__device__ inline double product(double a, double b) { return __dmul_rn(a, b); }

// ---------------------------------------------------------------- rows in registers

// Adds the sums that the warps of a block hold for the same columns, in the order of the warps; then to `out`.
template <class RowShape, int kWidth, int kCount>
__device__ inline void add_warps(const float (&sums)[kCount][kWidth], float* shared, float* out, int cols) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize, warp = static_cast<int>(threadIdx.x) / kWarpSize;
  for (int turn = 0; turn < RowShape::kThreads / kWarpSize; ++turn) {
    if (turn == warp) {
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        const int col = (k * kWarpSize + lane) * kWidth;
        if (col >= cols) continue;
#pragma unroll
        for (int i = 0; i < kWidth; ++i) shared[col + i] = (turn ? shared[col + i] : 0.0f) + sums[k][i];
      }
    }
    __syncthreads();
  }
  for (int col = static_cast<int>(threadIdx.x); col < cols; col += RowShape::kThreads) out[col] = shared[col];
  __syncthreads();
}

// Blocks that a multiprocessor is to hold at once: the sums take 2 kElements registers of every thread.
template <class RowShape>
constexpr int resident_blocks() {
  return (RowShape::kElements > 16 ? 512 : 640) / RowShape::kThreads;
}

__device__ inline void wait_for_oldest(int depth) {
  if (depth >= 3)
    __pipeline_wait_prior(2);
  else if (depth == 2)
    __pipeline_wait_prior(1);
  else
    __pipeline_wait_prior(0);
}

template <class T, class RowShape>
__global__ void __launch_bounds__(RowShape::kThreads, resident_blocks<RowShape>())
    layer_norm_backward(const Backward<T> p) {
  constexpr int kWidth = kPackOf<T>, kCount = RowShape::template kPacks<T>, kThreads = RowShape::kRowThreads;
  constexpr bool kWarps = kThreads == kWarpSize;
  // Values are computed once where registers have room for them between a row's sums and its gradient. Of 16-bit
  // floats there are twice as many for the same bytes.
  constexpr bool kKeeps = RowShape::kElements <= 16 && sizeof(T) == 2;
  using Packed = Pack<T, kWidth>;
  extern __shared__ uint4
      dynamic[];  // [depth][x, dy, dx][packs]: [kCount][threads] and, of one row, no more than it has
  __shared__ float2 pairs[2 * RowShape::kThreads / kWarpSize];
  const int thread = static_cast<int>(threadIdx.x) % kThreads, operands = p.add ? 3 : 2;
  const float count = static_cast<float>(p.cols);
  float dweight[kCount][kWidth] = {}, dbias[kCount][kWidth] = {};

  const int64_t first = static_cast<int64_t>(blockIdx.x) * RowShape::kRowsPerBlock +
                        static_cast<int>(threadIdx.x) / kThreads,
                step = static_cast<int64_t>(gridDim.x) * RowShape::kRowsPerBlock;
  const int packs = RowShape::kRowsPerBlock == 1 ? p.packs : kCount * RowShape::kThreads;
  // Pack k of an operand of the row that `stage` holds.
  const auto place = [&](int stage, int operand, int k) -> Packed* {
    return reinterpret_cast<Packed*>(dynamic) + (stage * operands + operand) * packs + k * RowShape::kThreads +
           threadIdx.x;
  };
  const auto copy_ahead = [&](int stage, int64_t row) {
    if (row < p.rows) {
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        const int col = (k * kThreads + thread) * kWidth;
        if (col >= p.cols) continue;
        __pipeline_memcpy_async(place(stage, 0, k), p.x + row * p.x_stride + col, 16);
        __pipeline_memcpy_async(place(stage, 1, k), p.dy + row * p.dy_stride + col, 16);
        if (p.add) __pipeline_memcpy_async(place(stage, 2, k), p.dx + row * p.cols + col, 16);
      }
    }
    __pipeline_commit();
  };
  for (int stage = 0; stage < p.depth; ++stage) copy_ahead(stage, first + stage * step);

  // Where a row belongs to a block, its statistics are loaded a row ahead, too: all of its warps would wait for them.
  const auto mean_of = [&](int64_t row) { return p.mean && row < p.rows ? p.mean[row] : 0.0f; };
  const auto rstd_of = [&](int64_t row) { return row < p.rows ? p.rstd[row] : 0.0f; };
  float next_mean = 0, next_rstd = 0;
  if constexpr (!kWarps) {
    next_mean = mean_of(first);
    next_rstd = rstd_of(first);
  }

  int turn = 0, stage = 0;
  for (int64_t row = first; row < p.rows; row += step, ++turn) {
    const float mean = kWarps ? mean_of(row) : next_mean, rstd = kWarps ? p.rstd[row] : next_rstd;
    if constexpr (!kWarps) {
      next_mean = mean_of(row + step);
      next_rstd = rstd_of(row + step);
    }
    wait_for_oldest(p.depth);
    // Deviations from the mean, dy, and g = dy weight, of pack k.
    struct Values {
      Pack<float, kWidth> deviation, dy, g;
    };
    const auto values = [&](int k, int col) {
      Values v;
      v.deviation = convert_pack<float>(*place(stage, 0, k));
      v.dy = convert_pack<float>(*place(stage, 1, k));
      v.g = v.dy;
      if (p.weight) {
        const Pack<float, kWidth> w = convert_pack<float>(load_pack<kWidth>(p.weight + col));
#pragma unroll
        for (int i = 0; i < kWidth; ++i) v.g[i] = product(v.dy[i], w[i]);
      }
#pragma unroll
      for (int i = 0; i < kWidth; ++i) v.deviation[i] -= mean;
      return v;
    };

    Values kept[kKeeps ? kCount : 1];
    float2 sums = {0, 0};  // of g, and of g times deviation
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const int col = (k * kThreads + thread) * kWidth;
      if (col >= p.cols) continue;
      const Values v = values(k, col);
      if constexpr (kKeeps) kept[k] = v;
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        sums.x += v.g[i];
        sums.y += v.g[i] * v.deviation[i];
        dweight[k][i] += product(v.dy[i], rstd) * v.deviation[i];
        dbias[k][i] += v.dy[i];
      }
    }
    sums = row_sums<RowShape>(sums, pairs, turn);
    // dx = rstd g - rstd mean(g) - deviation rstd^2 mean(g xhat)
    const float constant = p.mean ? rstd * (sums.x / count) : 0.0f, slope = rstd * rstd * (rstd * sums.y / count);

#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const int col = (k * kThreads + thread) * kWidth;
      if (col >= p.cols) continue;
      Values v = kKeeps ? kept[kKeeps ? k : 0] : values(k, col);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) v.g[i] = (v.g[i] * rstd - constant) - v.deviation[i] * slope;
      if (p.add) {
        const Pack<float, kWidth> old = convert_pack<float>(*place(stage, 2, k));
#pragma unroll
        for (int i = 0; i < kWidth; ++i) v.g[i] += old[i];
      }
      store_pack(p.dx + row * p.cols + col, convert_pack<T>(v.g));
    }
    copy_ahead(stage, row + p.depth * step);
    stage = stage + 1 == p.depth ? 0 : stage + 1;
  }
  __syncthreads();  // all have read what they copied: the memory is free

  if (!p.partial) return;
  float* out = p.partial + static_cast<int64_t>(blockIdx.x) * 2 * p.cols;
  if constexpr (kWarps) {
    auto* columns = reinterpret_cast<float*>(dynamic);
    add_warps<RowShape>(dweight, columns, out, p.cols);
    add_warps<RowShape>(dbias, columns, out + p.cols, p.cols);
  } else {
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const int col = (k * kThreads + thread) * kWidth;
      if (col >= p.cols) continue;
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        out[col + i] = dweight[k][i];
        out[p.cols + col + i] = dbias[k][i];
      }
    }
  }
}

// ---------------------------------------------------------------- any row

template <class T>
__global__ void __launch_bounds__(kAnyThreads) layer_norm_backward_any(const Backward<T> p) {
  using C = device_compute_t<T>;
  __shared__ C shared[2][kAnyThreads / kWarpSize];
  const int thread = static_cast<int>(threadIdx.x);
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    const T *x = p.x + row * p.x_stride, *dy = p.dy + row * p.dy_stride;
    const C mean = p.mean ? p.mean[row] : C{0}, rstd = p.rstd[row];
    const auto gradient = [&](int col) {
      return p.weight ? product(convert<C>(dy[col]), convert<C>(p.weight[col])) : convert<C>(dy[col]);
    };
    C sum = 0, product = 0;
    for (int col = thread; col < p.cols; col += kAnyThreads) {
      const C g = gradient(col);
      sum += g;
      product += g * ((convert<C>(x[col]) - mean) * rstd);
    }
    const C sum_g = block_sum<kAnyThreads>(sum, shared[0]), mean_g = p.mean ? sum_g / static_cast<C>(p.cols) : C{0};
    const C mean_product = block_sum<kAnyThreads>(product, shared[1]) / static_cast<C>(p.cols);
    for (int col = thread; col < p.cols; col += kAnyThreads) {
      T& dx = p.dx[row * p.cols + col];
      const C g = rstd * (gradient(col) - mean_g - (convert<C>(x[col]) - mean) * rstd * mean_product);
      dx = convert<T>(p.add ? convert<C>(dx) + g : g);
    }
    __syncthreads();  // before the next row's sums
  }
}

// Rows [blockIdx.y of gridDim.y equal parts), one column a thread.
template <class T>
__global__ void __launch_bounds__(kAnyThreads) partial_any(const Backward<T> p) {
  using C = device_compute_t<T>;
  const int64_t col = static_cast<int64_t>(blockIdx.x) * kAnyThreads + threadIdx.x;
  if (col >= p.cols) return;
  const int64_t begin = p.rows * blockIdx.y / gridDim.y, end = p.rows * (blockIdx.y + 1) / gridDim.y;
  C dweight = 0, dbias = 0;
  for (int64_t row = begin; row < end; ++row) {
    const C dy = convert<C>(p.dy[row * p.dy_stride + col]);
    dweight += dy * ((convert<C>(p.x[row * p.x_stride + col]) - (p.mean ? p.mean[row] : C{0})) * p.rstd[row]);
    dbias += dy;
  }
  C* out = p.partial + static_cast<int64_t>(blockIdx.y) * 2 * p.cols;
  out[col] = dweight;
  out[p.cols + col] = dbias;
}

// ---------------------------------------------------------------- sums of the blocks

struct Target {
  void* data = nullptr;  // contiguous; null: not wanted
  DType dtype = DType::float32;
  bool accumulate = false;
};

template <class C>
__global__ void __launch_bounds__(kColumnsPerBlock* kColumnGroups)
    add_blocks(const C* partial, int blocks, int cols, Target weight, Target bias) {
  __shared__ double sums[kColumnGroups][kColumnsPerBlock];
  const int lane = static_cast<int>(threadIdx.x) % kColumnsPerBlock,
            group = static_cast<int>(threadIdx.x) / kColumnsPerBlock;
  const int64_t width = 2 * static_cast<int64_t>(cols);
  const int64_t col = static_cast<int64_t>(blockIdx.x) * kColumnsPerBlock + lane;
  double sum = 0;
  if (col < width) {
#pragma unroll 8
    for (int block = group; block < blocks; block += kColumnGroups)
      sum += static_cast<double>(partial[block * width + col]);
  }
  sums[group][lane] = sum;
  __syncthreads();
  if (group > 0 || col >= width) return;
  for (int other = 1; other < kColumnGroups; ++other) sum += sums[other][lane];
  const Target& to = col < cols ? weight : bias;
  if (!to.data) return;
  const int64_t at = col < cols ? col : col - cols;
  if (to.accumulate) sum = static_cast<double>(static_cast<C>(sum) + load_element<C>(to.data, at, to.dtype));
  store_element<C>(to.data, at, to.dtype, static_cast<C>(sum));
}

// ---------------------------------------------------------------- host

// Blocks that the rows are shared out to, and so the number of partial sums.
int num_blocks(const Matrix& x, bool registers) {
  int64_t rows_per_block = 1, resident = 2;
  if (registers)
    visit_row_shape<kWarpBlock>(x.cols, [&](auto shape) {
      rows_per_block = decltype(shape)::kRowsPerBlock;
      resident = resident_blocks<decltype(shape)>();
    });
  return static_cast<int>(
      std::clamp<int64_t>((x.rows + rows_per_block - 1) / rows_per_block, 1, num_multiprocessors() * resident));
}

// Rows that fit shared memory ahead, with `resident` blocks on a multiprocessor.
int depth_of(int64_t row_bytes, int resident) {
  int device = 0, per_block = 0, per_multiprocessor = 0;
  check(cudaGetDevice(&device), "layer_norm_backward");
  check(cudaDeviceGetAttribute(&per_block, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "layer_norm_backward");
  check(cudaDeviceGetAttribute(&per_multiprocessor, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device),
        "layer_norm_backward");
  constexpr int64_t kOther = 2048;  // the block's static memory, and what the system reserves
  const int64_t room = std::min<int64_t>(per_block, per_multiprocessor / resident) - kOther;
  return static_cast<int>(std::clamp<int64_t>(room / row_bytes, 1, kMaxDepth));
}

template <class T>
void launch_backward(Backward<T> p, bool registers, int blocks, cudaStream_t stream) {
  if constexpr (!std::is_same_v<T, double>) {
    if (registers)
      return visit_row_shape<kWarpBlock>(p.cols, [&](auto shape) {
        using Shape = decltype(shape);
        p.packs = Shape::kRowsPerBlock == 1 ? p.cols / kPackOf<T> : Shape::template kPacks<T> * Shape::kThreads;
        const int64_t row_bytes = p.packs * int64_t{16} * (p.add ? 3 : 2);
        p.depth = depth_of(row_bytes, resident_blocks<Shape>());
        const auto bytes = static_cast<int>(row_bytes * p.depth);
        check(cudaFuncSetAttribute(layer_norm_backward<T, Shape>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
              "layer_norm_backward");
        layer_norm_backward<T, Shape><<<blocks, Shape::kThreads, static_cast<size_t>(bytes), stream>>>(p);
        check_launch("layer_norm_backward");
      });
  }
  layer_norm_backward_any<<<grid_for(p.rows, 1), kAnyThreads, 0, stream>>>(p);
  check_launch("layer_norm_backward");
  if (!p.partial) return;
  const dim3 grid((p.cols + kAnyThreads - 1) / kAnyThreads, blocks);
  partial_any<<<grid, kAnyThreads, 0, stream>>>(p);
  check_launch("layer_norm_backward");
}

// Where the sums of a gradient go: to the tensor itself, or to scratch where its strides do not allow that.
Target target_of(const View& view, const Matrix& scratch, bool accumulate) {
  if (!view.defined()) return {};
  if (view.contiguous()) return {view.data, view.dtype, accumulate};
  return {scratch.data, scratch.dtype, false};
}

}  // namespace

void norm_backward_cuda(const NormBackward& a, const Launch& launch, Execution& run) {
  const DType dtype = a.x.dtype, statistics = accumulation_dtype(dtype);
  const int leading = a.x.rank() - a.num_axes;
  const Matrix dy = run.rows(a.grad, leading, dtype), x = run.rows(a.x, leading, dtype);
  const void *weight = run.contiguous(a.weight, dtype), *mean = run.contiguous(a.mean, statistics),
             *rstd = run.contiguous(a.rstd, statistics);
  // Planned without addresses, whose alignment decides which kernel it will be.
  const bool wants_sums = a.dweight.defined() || a.dbias.defined();
  const bool fits = dtype != DType::float64 && x.cols <= kMaxRegisterColumns;
  const int64_t most = std::max(num_blocks(x, false), fits ? num_blocks(x, true) : 0);
  const Matrix partial = wants_sums ? run.scratch(most, 2 * x.cols, statistics) : Matrix{};
  const auto scattered = [&](const View& view) {
    return view.defined() && !view.contiguous() ? run.scratch(1, x.cols, statistics) : Matrix{};
  };
  const Matrix weight_scratch = scattered(a.dweight), bias_scratch = scattered(a.dbias);
  if (run.dry() || x.cols == 0) return;
  require(x.cols < (int64_t{1} << 30) - kAnyThreads, "[layer_norm_backward] expected fewer than 2^30 columns, got ",
          x.cols);
  const bool registers = fits && has_packs(dy) && has_packs(x) && is_aligned(weight, 16) && is_aligned(a.dx.data, 16);
  const int num_partial = num_blocks(x, registers);
  visit_device_floating(dtype, "layer_norm_backward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = device_compute_t<T>;
    const int cols = static_cast<int>(x.cols);
    launch_backward<T>({static_cast<const T*>(dy.data), dy.row_stride, static_cast<const T*>(x.data), x.row_stride,
                        static_cast<const T*>(weight), static_cast<const C*>(mean), static_cast<const C*>(rstd),
                        a.dx.ptr<T>(), a.accumulate_x, static_cast<C*>(partial.data), x.rows, cols, 1, 0},
                       registers, num_partial, stream_of(launch));
    if (!wants_sums) return;
    const auto blocks = static_cast<unsigned>((2 * x.cols + kColumnsPerBlock - 1) / kColumnsPerBlock);
    add_blocks<C><<<blocks, kColumnsPerBlock * kColumnGroups, 0, stream_of(launch)>>>(
        static_cast<const C*>(partial.data), num_partial, cols,
        target_of(a.dweight, weight_scratch, a.accumulate_weight), target_of(a.dbias, bias_scratch, a.accumulate_bias));
    check_launch("layer_norm_backward");
  });
  if (weight_scratch.data) run.store(weight_scratch, a.dweight, a.accumulate_weight);
  if (bias_scratch.data) run.store(bias_scratch, a.dbias, a.accumulate_bias);
}

}  // namespace blutensor
