// Gradient of embedding: row v of weight_grad [V, C] is the sum of grad_output's rows [N, C] whose id is v.
//
// Positions are sorted by id (sort_cuda.cu). Then a warp takes up to kRun positions of one id, in order, and sums their
// rows; where that was all of them it writes the row of weight_grad, else a partial sum in workspace, and add_runs adds
// the runs of an id in a fixed order. So every sum has an order that the ids alone decide, and an id that fills the batch
// still keeps the device busy. Where the gradient is overwritten, rows of ids that do not occur are zeroed.
// Bytes: N C of grad_output and V C written, or with accumulation twice the rows that occur.
// Benchmark: benchmarks/bench_layers_cuda.py --only embedding
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/vector.cuh"
#include "ops/embedding/embedding_cuda.h"

namespace blutensor {

using namespace cuda;

namespace {

constexpr int kRun = 16;  // positions that one warp adds
// Few warps a block: one with many positions to add holds up few others.
constexpr int kThreads = 64, kWarps = kThreads / kWarpSize;
constexpr int kAddThreads = 256, kAddColumns = 64;  // of add_runs

template <class T, class Out>
struct Sums {
  using C = device_compute_t<T>;
  const SortedPosition* sorted;
  int64_t count;
  const T* grad;
  int64_t grad_stride;
  Out* out;
  int64_t out_row, out_col;  // strides
  C* partial;                // two arrays [N / kRun + 1, C]: of first runs and of others
  int cols;
  bool accumulate;
};

// Two runs at sorted positions a < b of ids that have several runs never share a / kRun within one of the two arrays:
// first runs are more than kRun apart, and so are the others.
template <class T, class Out>
__device__ inline int64_t partial_row(const Sums<T, Out>& p, int64_t at, bool first) {
  return (at / kRun + (first ? 0 : p.count / kRun + 1)) * p.cols;
}

template <int kWidth, class T, class Out>
__device__ inline void write(const Sums<T, Out>& p, int id, int col,
                             const Pack<typename Sums<T, Out>::C, kWidth>& sum) {
  using C = typename Sums<T, Out>::C;
  Out* out = p.out + id * p.out_row + col * p.out_col;
  if constexpr (kWidth > 1) {
    Pack<C, kWidth> total = sum;
    if (p.accumulate) {
      const Pack<C, kWidth> old = convert_pack<C>(load_pack<kWidth>(out));
#pragma unroll
      for (int i = 0; i < kWidth; ++i) total[i] = old[i] + sum[i];
    }
    store_pack(out, convert_pack<Out>(total));
  } else {
    *out = convert<Out>(p.accumulate ? convert<C>(*out) + sum[0] : sum[0]);
  }
}

// kWidth columns a thread, kCount of these at a time.
template <class T, class Out, int kWidth, int kCount>
__global__ void __launch_bounds__(kThreads) sum_runs(const Sums<T, Out> p) {
  using C = device_compute_t<T>;
  constexpr int kUnroll = sizeof(T) == 2 ? 8 : 4;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / kWarpSize;
  if (at >= p.count) return;
  const SortedPosition first = p.sorted[at];
  if (first.index % kRun != 0 || first.count == 0) return;
  const int rows = min(kRun, first.count - first.index);
  const int position = lane < rows ? p.sorted[at + lane].position : 0;
  const bool alone = first.count <= kRun;
  for (int tile = 0; tile < p.cols; tile += kWarpSize * kWidth * kCount) {
    Pack<C, kWidth> sum[kCount] = {};
#pragma unroll kUnroll
    for (int row = 0; row < rows; ++row) {
      const T* grad = p.grad + __shfl_sync(kAllLanes, position, row) * p.grad_stride;
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        const int col = tile + (k * kWarpSize + lane) * kWidth;
        if (col >= p.cols) continue;
        const Pack<C, kWidth> v = convert_pack<C>(load_pack<kWidth>(grad + col));
#pragma unroll
        for (int i = 0; i < kWidth; ++i) sum[k][i] += v[i];
      }
    }
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const int col = tile + (k * kWarpSize + lane) * kWidth;
      if (col >= p.cols) continue;
      if (alone)
        write(p, first.id, col, sum[k]);
      else
        store_pack(p.partial + partial_row(p, at, first.index == 0) + col, sum[k]);
    }
  }
}

// A block takes the ids of several runs that begin among kThreads sorted positions, and kAddColumns threads' worth of
// columns. Groups of threads add equal parts of an id's runs; the parts are added in order.
template <class T, class Out, int kWidth>
__global__ void __launch_bounds__(kAddThreads) add_runs(const Sums<T, Out> p) {
  using C = device_compute_t<T>;
  constexpr int kGroups = kAddThreads / kAddColumns;
  __shared__ SortedPosition firsts[kAddThreads / kRun + 1];
  __shared__ int64_t begins[kAddThreads / kRun + 1];
  __shared__ int num_ids;
  __shared__ Pack<C, kWidth> parts[kGroups][kAddColumns];
  const int thread = static_cast<int>(threadIdx.x), group = thread / kAddColumns;
  const int col = (static_cast<int>(blockIdx.y) * kAddColumns + thread % kAddColumns) * kWidth;
  if (thread == 0) num_ids = 0;
  __syncthreads();
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kAddThreads + thread;
  if (at < p.count) {
    const SortedPosition here = p.sorted[at];
    if (here.index == 0 && here.count > kRun) {
      const int k = atomicAdd(&num_ids, 1);  // their order does not matter
      firsts[k] = here;
      begins[k] = at;
    }
  }
  __syncthreads();
  for (int k = 0; k < num_ids; ++k) {
    const SortedPosition first = firsts[k];
    const int64_t begin = begins[k];
    const int runs = (first.count + kRun - 1) / kRun;
    Pack<C, kWidth> sum = {};
    if (col < p.cols) {
#pragma unroll 8
      for (int run = runs * group / kGroups; run < runs * (group + 1) / kGroups; ++run) {
        const Pack<C, kWidth> v =
            load_pack<kWidth>(p.partial + partial_row(p, begin + static_cast<int64_t>(run) * kRun, run == 0) + col);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) sum[i] += v[i];
      }
    }
    parts[group][thread % kAddColumns] = sum;
    __syncthreads();
    if (group == 0 && col < p.cols) {
      for (int other = 1; other < kGroups; ++other) {
        const Pack<C, kWidth> v = parts[other][thread];
#pragma unroll
        for (int i = 0; i < kWidth; ++i) sum[i] += v[i];
      }
      write(p, first.id, col, sum);
    }
    __syncthreads();
  }
}

// ---------------------------------------------------------------- host

template <class T, class Out>
void launch_sums(const Sums<T, Out>& p, bool packs, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>((p.count + kWarps - 1) / kWarps);
  const auto add_grid = [&](int width) {
    const int per_block = kAddColumns * width;
    return dim3(static_cast<unsigned>((p.count + kAddThreads - 1) / kAddThreads),
                static_cast<unsigned>((p.cols + per_block - 1) / per_block));
  };
  if (packs) {
    sum_runs<T, Out, kPackOf<T>, 24 / kPackOf<T>><<<blocks, kThreads, 0, stream>>>(p);
    check_launch("embedding_backward");
    constexpr int kWidth = kPackOf<device_compute_t<T>>;
    add_runs<T, Out, kWidth><<<add_grid(kWidth), kAddThreads, 0, stream>>>(p);
  } else {
    sum_runs<T, Out, 1, 4><<<blocks, kThreads, 0, stream>>>(p);
    check_launch("embedding_backward");
    add_runs<T, Out, 1><<<add_grid(1), kAddThreads, 0, stream>>>(p);
  }
  check_launch("embedding_backward");
}

template <class Out>
__global__ void zero(Out* out, int64_t rows, int64_t cols, int64_t out_row, int64_t out_col) {
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < rows * cols;
       i += static_cast<int64_t>(gridDim.x) * kThreads)
    out[i / cols * out_row + i % cols * out_col] = convert<Out>(0.0f);
}

template <class Out>
void set_zero(const View& view, cudaStream_t stream) {
  const int64_t rows = view.shape[0], cols = view.shape[1];
  if (view.contiguous())
    return check(cudaMemsetAsync(view.data, 0, static_cast<size_t>(rows * cols) * sizeof(Out), stream),
                 "embedding_backward");
  zero<<<grid_for(rows * cols, kThreads), kThreads, 0, stream>>>(view.ptr<Out>(), rows, cols, view.strides[0],
                                                                 view.strides[1]);
  check_launch("embedding_backward");
}

// Calls f(tag of grad_output's type, tag of the gradient buffer's): the same, or float for 16-bit floats.
template <class F>
void visit_types(DType grad, DType out, const F& f) {
  visit_device_floating(grad, "embedding_backward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (is_16_bit<T>) {
      if (out == DType::float32) return f(tag, TypeTag<float>{});
    }
    require_type(grad == out, "[embedding_backward] expected a gradient buffer of dtype ", dtype_name(grad), ", got ",
                 dtype_name(out));
    f(tag, tag);
  });
}

void backward(const View& grad_view, const View& ids_view, const View& weight_grad, bool accumulate,
              const Launch& launch, Execution& run) {
  const int64_t count = ids_view.numel(), limit = weight_grad.shape[0], cols = weight_grad.shape[1];
  require(count < (int64_t{1} << 31) && limit < (int64_t{1} << 31) && cols < (int64_t{1} << 30),
          "[embedding_backward] expected fewer than 2^31 ids and rows, got ", count, " and ", limit);
  auto* sorted = run.take<SortedPosition>(count);
  const DType compute = accumulation_dtype(grad_view.dtype);
  const Matrix partial = run.scratch(2 * (count / kRun + 1), cols, compute);
  const size_t before = run.mark();
  const void* ids = run.contiguous(ids_view, ids_view.dtype);
  void* scratch = run.take(sort_scratch_bytes(count));
  // Where the gradient is overwritten, the sort zeroes the rows that no position is added to.
  const int64_t row_bytes = cols * static_cast<int64_t>(dtype_size(weight_grad.dtype));
  const bool zeroes_beside =
      !accumulate && count > 0 && weight_grad.contiguous() && is_aligned(weight_grad.data, 16) && row_bytes % 16 == 0;
  const ZeroRows zeros{zeroes_beside ? weight_grad.data : nullptr, row_bytes};
  if (!run.dry() && count > 0)
    sort_positions(ids, ids_view.dtype, count, limit, scratch, sorted, zeros, true, launch.stream);
  run.release(before);
  const Matrix grad = run.rows(grad_view, grad_view.rank() - 1, grad_view.dtype);
  if (run.dry() || limit == 0 || cols == 0) return;
  visit_types(grad_view.dtype, weight_grad.dtype, [&](auto tag, auto out_tag) {
    using T = typename decltype(tag)::type;
    using Out = typename decltype(out_tag)::type;
    if (!accumulate && !zeroes_beside) set_zero<Out>(weight_grad, stream_of(launch));
    if (count == 0) return;
    constexpr int64_t kWidth = kPackOf<T>, kOutBytes = sizeof(Pack<Out, kPackOf<T>>);
    const bool packs = cols % kWidth == 0 && (count == 1 || grad.row_stride % kWidth == 0) &&
                       is_aligned(grad.data, 16) && weight_grad.strides[1] == 1 &&
                       (limit == 1 || weight_grad.strides[0] % kWidth == 0) &&
                       is_aligned(weight_grad.data, std::min<size_t>(16, kOutBytes));
    launch_sums<T, Out>({sorted, count, static_cast<const T*>(grad.data), grad.row_stride, weight_grad.ptr<Out>(),
                         weight_grad.strides[0], weight_grad.strides[1],
                         static_cast<device_compute_t<T>*>(partial.data), static_cast<int>(cols), accumulate},
                        packs, stream_of(launch));
  });
}

}  // namespace

void embedding_backward_cuda(const Launch& launch, Execution& run) {
  backward(launch.inputs[0], launch.inputs[1], launch.outputs[0], false, launch, run);
}
void embedding_backward_in_place_cuda(const Launch& launch, Execution& run) {
  backward(launch.inputs[1], launch.inputs[2], launch.inputs[0], launch.attrs.b(0), launch, run);
}

}  // namespace blutensor
