// softmax and log_softmax over any axis on CUDA, and their gradients.
//
// A contiguous tensor is [outer, n, inner], the axis in the middle. With inner = 1 a row belongs to a warp, or to a block
// where it is long: one pass for maximum and sum (the gradients: for their sum), one for the result, which finds the row
// in L1 or L2. softmax of rows that are too long for that to be true, and fit shared memory, keeps them there. Otherwise a thread takes one (outer, inner) and walks along n; its neighbours read next to it.
// Bytes: 2 outer n inner elements (gradients 3), and once more from the caches.
#include <cuda_pipeline_primitives.h>

#include "ops/cuda/table.h"
#include "ops/matmul/operand.h"
#include "ops/softmax/online.cuh"

namespace blutensor {

using namespace cuda;

namespace {

constexpr int kThreads = 256;
constexpr int64_t kWarpRow = 1024;  // a longer row takes a block

struct Extent {
  int64_t outer = 1, n = 1, inner = 1;
};

Extent extent_of(const View& view, int64_t axis) {
  Extent e;
  if (view.rank() == 0) return e;  // one row of one element
  const int at = static_cast<int>(axis < 0 ? axis + view.rank() : axis);
  e.n = view.shape[at];
  for (int i = 0; i < at; ++i) e.outer *= view.shape[i];
  for (int i = at + 1; i < view.rank(); ++i) e.inner *= view.shape[i];
  return e;
}

__device__ inline float logarithm(float x) { return logf(x); }
__device__ inline double logarithm(double x) { return log(x); }

// ---------------------------------------------------------------- rows

template <int kRow>
__device__ inline double row_sum(double value, double* shared) {
  if constexpr (kRow == kWarpSize)
    return warp_sum(value);
  else
    return block_sum<kRow>(value, shared);
}

template <class T, int kRow, int kWidth>
__global__ void __launch_bounds__(kThreads) softmax_rows(const T* x, T* y, int64_t rows, int64_t n, bool log) {
  using C = device_compute_t<T>;
  __shared__ MaxSum<C> shared[kThreads / kWarpSize];
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (kThreads / kRow) + threadIdx.x / kRow;
  if (row >= rows) return;
  x += row * n;
  y += row * n;
  const MaxSum<C> all = row_max_sum<kRow, kWidth>(x, n, shared);
  const C log_sum = log ? logarithm(all.sum) : C{0}, scale = C{1} / all.sum;
  for (int64_t j = static_cast<int64_t>(threadIdx.x % kRow) * kWidth; j < n; j += kRow * kWidth) {
    Pack<C, kWidth> v = convert_pack<C>(load_pack<kWidth>(x + j));
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const C shifted = v[i] - all.maximum;
      v[i] = log ? shifted - log_sum : exponential(shifted) * scale;
    }
    store_pack(y + j, convert_pack<T>(v));
  }
}

// A block goes through rows. Every thread copies its own packs of the next row to where those of this row were, as soon
// as it is done with them: rows are read while others are written, and only the sums need a barrier. kParts parts of the
// row are waited for one by one.
template <class T, int kBlock>
__global__ void __launch_bounds__(kBlock) softmax_kept_rows(const T* x, T* y, int64_t rows, int n, bool log) {
  using C = device_compute_t<T>;
  constexpr int kWidth = kPackOf<T>, kParts = 4;
  constexpr bool kFast = is_16_bit<T>;
  extern __shared__ uint4 dynamic[];
  __shared__ MaxSum<C> shared[2][kBlock / kWarpSize];
  T* const kept = reinterpret_cast<T*>(dynamic);
  const int packs = n / kWidth, part_packs = (packs + kParts * kBlock - 1) / (kParts * kBlock) * kBlock;
  const auto for_packs = [&](int part, const auto& body) {
    const int end = min(packs, (part + 1) * part_packs);
    for (int k = part * part_packs + static_cast<int>(threadIdx.x); k < end; k += kBlock) body(k * kWidth);
  };
  const auto copy_ahead = [&](int part, int64_t row) {
    if (row < rows) for_packs(part, [&](int j) { __pipeline_memcpy_async(kept + j, x + row * n + j, 16); });
    __pipeline_commit();
  };
  for (int part = 0; part < kParts; ++part) copy_ahead(part, blockIdx.x);
  int turn = 0;
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x, turn ^= 1) {
    MaxSum<C> sum{lowest<C>(), C{0}};
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      __pipeline_wait_prior(kParts - 1 - part);
      for_packs(part, [&](int j) { sum.template add<kFast>(convert_pack<C>(load_pack<kWidth>(kept + j))); });
    }
    const MaxSum<C> all = finished(block_reduce<kBlock>(sum, MergeOp{}, shared[turn]), n);
    const C log_sum = log ? logarithm(all.sum) : C{0}, scale = C{1} / all.sum;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      for_packs(part, [&](int j) {
        Pack<C, kWidth> v = convert_pack<C>(load_pack<kWidth>(kept + j));
#pragma unroll
        for (int i = 0; i < kWidth; ++i) {
          const C shifted = v[i] - all.maximum;
          v[i] = log ? shifted - log_sum : exponential_of<kFast>(shifted) * scale;
        }
        // One instruction by name: the compiler would store a pack element by element here.
        uint4 word;
        const Pack<T, kWidth> result = convert_pack<T>(v);
        memcpy(&word, &result, sizeof(word));
        __stwb(reinterpret_cast<uint4*>(y + row * n + j), word);
      });
      copy_ahead(part, row + gridDim.x);
    }
  }
}

template <class T, int kRow, int kWidth>
__global__ void __launch_bounds__(kThreads)
    softmax_backward_rows(const T* grad, const T* y, T* dx, int64_t rows, int64_t n, bool log) {
  using C = device_compute_t<T>;
  __shared__ double shared[kThreads / kWarpSize];
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (kThreads / kRow) + threadIdx.x / kRow;
  if (row >= rows) return;
  grad += row * n;
  y += row * n;
  dx += row * n;
  const int64_t start = static_cast<int64_t>(threadIdx.x % kRow) * kWidth;
  double wide_sum = 0;  // terms of both signs: their sum may be much smaller than they are
  for (int64_t j = start; j < n; j += kRow * kWidth) {
    const Pack<C, kWidth> g = convert_pack<C>(load_pack<kWidth>(grad + j));
    const Pack<C, kWidth> v = convert_pack<C>(load_pack<kWidth>(y + j));
#pragma unroll
    for (int i = 0; i < kWidth; ++i) wide_sum += static_cast<double>(log ? g[i] : g[i] * v[i]);
  }
  const C sum = static_cast<C>(row_sum<kRow>(wide_sum, shared));
  for (int64_t j = start; j < n; j += kRow * kWidth) {
    Pack<C, kWidth> g = convert_pack<C>(load_pack<kWidth>(grad + j));
    const Pack<C, kWidth> v = convert_pack<C>(load_pack<kWidth>(y + j));
#pragma unroll
    for (int i = 0; i < kWidth; ++i) g[i] = log ? g[i] - exponential(v[i]) * sum : v[i] * (g[i] - sum);
    store_pack(dx + j, convert_pack<T>(g));
  }
}

// ---------------------------------------------------------------- columns

template <class T>
__global__ void __launch_bounds__(kThreads) softmax_columns(const T* x, T* y, const Extent e, bool log) {
  using C = device_compute_t<T>;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t c = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; c < e.outer * e.inner; c += step) {
    const int64_t base = c / e.inner * e.n * e.inner + c % e.inner;
    MaxSum<C> all{lowest<C>(), C{0}};
    for (int64_t j = 0; j < e.n; ++j) all.add(Pack<C, 1>{convert<C>(x[base + j * e.inner])});
    all = finished(all, e.n);
    const C log_sum = log ? logarithm(all.sum) : C{0};
    for (int64_t j = 0; j < e.n; ++j) {
      const C shifted = convert<C>(x[base + j * e.inner]) - all.maximum;
      y[base + j * e.inner] = convert<T>(log ? shifted - log_sum : exponential(shifted) / all.sum);
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    softmax_backward_columns(const T* grad, const T* y, T* dx, const Extent e, bool log) {
  using C = device_compute_t<T>;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t c = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; c < e.outer * e.inner; c += step) {
    const int64_t base = c / e.inner * e.n * e.inner + c % e.inner;
    C sum = 0;
    for (int64_t j = 0; j < e.n; ++j) {
      const C g = convert<C>(grad[base + j * e.inner]);
      sum += log ? g : g * convert<C>(y[base + j * e.inner]);
    }
    for (int64_t j = 0; j < e.n; ++j) {
      const C g = convert<C>(grad[base + j * e.inner]), v = convert<C>(y[base + j * e.inner]);
      dx[base + j * e.inner] = convert<T>(log ? g - exponential(v) * sum : v * (g - sum));
    }
  }
}

// ---------------------------------------------------------------- host

// Calls f(threads of a row, width of a pack) as constants, for rows of n elements.
template <class T, class F>
void visit_row(int64_t n, bool aligned, const F& f) {
  constexpr int kWidth = kPackOf<T>;
  const bool packs = aligned && n % kWidth == 0;
  if (n <= kWarpRow)
    packs ? f(std::integral_constant<int, kWarpSize>{}, std::integral_constant<int, kWidth>{})
          : f(std::integral_constant<int, kWarpSize>{}, std::integral_constant<int, 1>{});
  else
    packs ? f(std::integral_constant<int, kThreads>{}, std::integral_constant<int, kWidth>{})
          : f(std::integral_constant<int, kThreads>{}, std::integral_constant<int, 1>{});
}

unsigned row_blocks(int64_t rows, int threads_of_row) {
  const int64_t per_block = kThreads / threads_of_row, blocks = (rows + per_block - 1) / per_block;
  require(blocks < (int64_t{1} << 31), "[softmax] expected fewer rows, got ", rows);
  return static_cast<unsigned>(blocks);
}

struct SharedMemory {
  int64_t per_block, per_multiprocessor;
};
SharedMemory shared_memory() {
  int device = 0, block = 0, multiprocessor = 0;
  check(cudaGetDevice(&device), "softmax");
  check(cudaDeviceGetAttribute(&block, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "softmax");
  check(cudaDeviceGetAttribute(&multiprocessor, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device), "softmax");
  return {block, multiprocessor};
}

// Long rows, kept in shared memory; false where they do not fit, or are short enough for the caches.
template <class T>
bool keep_rows(const T* x, T* y, int64_t rows, int64_t n, bool log, cudaStream_t stream) {
  constexpr int64_t kShortest = 16384, kOther = 2048;  // bytes; the block's own, and what the system reserves
  const int64_t bytes = n * static_cast<int64_t>(sizeof(T));
  if (bytes < kShortest || bytes % 16 != 0) return false;
  const SharedMemory room = shared_memory();
  if (bytes + kOther > room.per_block) return false;
  const auto launch = [&](auto threads) {
    constexpr int kBlock = threads();
    const int64_t resident = std::clamp<int64_t>(room.per_multiprocessor / (bytes + kOther), 1, 2048 / kBlock);
    const auto blocks = static_cast<unsigned>(std::min<int64_t>(rows, num_multiprocessors() * resident));
    check(cudaFuncSetAttribute(softmax_kept_rows<T, kBlock>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(bytes)),
          "softmax");
    softmax_kept_rows<T, kBlock>
        <<<blocks, kBlock, static_cast<size_t>(bytes), stream>>>(x, y, rows, static_cast<int>(n), log);
  };
  if (2 * (bytes + kOther) > room.per_multiprocessor)
    launch(std::integral_constant<int, 1024>{});
  else
    launch(std::integral_constant<int, 512>{});
  return true;
}

// Outputs are contiguous: their shape is inferred without strides.
template <bool kLog>
void forward(const Launch& launch, Execution& run) {
  const View &x = launch.inputs[0], &y = launch.outputs[0];
  const void* from = run.contiguous(x, x.dtype);
  if (run.dry() || y.numel() == 0) return;
  const Extent e = extent_of(x, launch.attrs.i(0));
  visit_device_floating(x.dtype, "softmax", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* in = static_cast<const T*>(from);
    const bool aligned = is_aligned(from, 16) && is_aligned(y.data, 16);
    if constexpr (!std::is_same_v<T, double>) {
      if (e.inner == 1 && aligned && keep_rows(in, y.ptr<T>(), e.outer, e.n, kLog, stream_of(launch)))
        return check_launch("softmax");
    }
    if (e.inner == 1)
      visit_row<T>(e.n, aligned, [&](auto row, auto width) {
        softmax_rows<T, row(), width()>
            <<<row_blocks(e.outer, row()), kThreads, 0, stream_of(launch)>>>(in, y.ptr<T>(), e.outer, e.n, kLog);
      });
    else
      softmax_columns<<<grid_for(e.outer * e.inner, kThreads), kThreads, 0, stream_of(launch)>>>(in, y.ptr<T>(), e,
                                                                                                 kLog);
    check_launch("softmax");
  });
}

template <bool kLog>
void backward(const Launch& launch, Execution& run) {
  const View &grad = launch.inputs[0], &y = launch.inputs[1], &dx = launch.outputs[0];
  const void *g = run.contiguous(grad, grad.dtype), *v = run.contiguous(y, y.dtype);
  if (run.dry() || dx.numel() == 0) return;
  const Extent e = extent_of(y, launch.attrs.i(0));
  visit_device_floating(y.dtype, "softmax_backward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T *grads = static_cast<const T*>(g), *values = static_cast<const T*>(v);
    if (e.inner == 1)
      visit_row<T>(e.n, is_aligned(g, 16) && is_aligned(v, 16) && is_aligned(dx.data, 16), [&](auto row, auto width) {
        softmax_backward_rows<T, row(), width()><<<row_blocks(e.outer, row()), kThreads, 0, stream_of(launch)>>>(
            grads, values, dx.ptr<T>(), e.outer, e.n, kLog);
      });
    else
      softmax_backward_columns<<<grid_for(e.outer * e.inner, kThreads), kThreads, 0, stream_of(launch)>>>(
          grads, values, dx.ptr<T>(), e, kLog);
    check_launch("softmax_backward");
  });
}

}  // namespace

void add_softmax_cuda(CudaTable& table) {
  table.add("softmax", launch_of<forward<false>>, workspace_of<forward<false>>);
  table.add("log_softmax", launch_of<forward<true>>, workspace_of<forward<true>>);
  table.add("softmax_backward", launch_of<backward<false>>, workspace_of<backward<false>>);
  table.add("log_softmax_backward", launch_of<backward<true>>, workspace_of<backward<true>>);
}

}  // namespace blutensor
