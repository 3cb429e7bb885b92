#include "ops/reduce/sum_cuda.h"

#include "ops/cuda/reduce.cuh"
#include "ops/cuda/vector.cuh"

namespace blutensor::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kUnroll = 4;

struct SumTarget {
  void* out;
  DType dtype;
  double factor;
  __device__ void store(int64_t at, float sum) const {
    store_element<float>(out, at, dtype, static_cast<float>(sum * factor));
  }
};

unsigned num_blocks(int64_t n) { return static_cast<unsigned>(std::min<int64_t>(n, 1 << 30)); }

// ---------------------------------------------------------------- rows

// Groups of kWidth threads: one row each, its split blockIdx.y. Results at [row * splits + split].
template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    sum_rows(const T* x, StridedIndex<1> kept, int64_t num_rows, int64_t length, SumPlan plan, SumTarget target) {
  constexpr int N = kPackOf<T>, kGroups = kThreads / kWidth;
  __shared__ float shared[2][kThreads / kWarpSize];
  const int lane = static_cast<int>(threadIdx.x) % kWidth;
  const int64_t packs = length / N, split = blockIdx.y;
  const int64_t begin = split * plan.split_length;
  const int64_t end = begin + plan.split_length < packs ? begin + plan.split_length : packs;
  int turn = 0;
  for (int64_t first = int64_t{blockIdx.x} * kGroups; first < num_rows; first += int64_t{gridDim.x} * kGroups) {
    const int64_t row = first + threadIdx.x / kWidth;
    if (kWidth < kThreads && row >= num_rows) break;  // whole warps: nothing below waits for the block
    int64_t offset[1] = {};
    kept.add_offsets(row, offset);
    const T* p = x + offset[0];
    float sums[N] = {};
    for (int64_t i = begin + lane; i < end; i += kWidth * kUnroll) {
      Pack<T, N> in[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u)
        if (i + u * kWidth < end) in[u] = load_pack<N>(p + (i + u * kWidth) * N);
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (i + u * kWidth >= end) break;
        const Pack<float, N> values = convert_pack<float>(in[u]);
#pragma unroll
        for (int j = 0; j < N; ++j) sums[j] += values[j];
      }
    }
    if (split == plan.splits - 1 && packs * N + lane < length) sums[0] += convert<float>(p[packs * N + lane]);
#pragma unroll
    for (int half = N / 2; half > 0; half /= 2)
#pragma unroll
      for (int j = 0; j < half; ++j) sums[j] += sums[j + half];
    const float total = kWidth == kThreads ? block_sum<kThreads>(sums[0], shared[turn]) : warp_sum<kWidth>(sums[0]);
    turn ^= 1;
    if (lane == 0) target.store(row * plan.splits + split, total);
  }
}

// Second pass: a warp per row adds its splits.
__global__ void __launch_bounds__(kThreads)
    sum_splits(const float* partial, int64_t num_rows, int64_t splits, SumTarget target) {
  constexpr int kGroups = kThreads / kWarpSize;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  for (int64_t row = int64_t{blockIdx.x} * kGroups + threadIdx.x / kWarpSize; row < num_rows;
       row += int64_t{gridDim.x} * kGroups) {
    float sum = 0;
    for (int64_t i = lane; i < splits; i += kWarpSize) sum += partial[row * splits + i];
    sum = warp_sum(sum);
    if (lane == 0) target.store(row, sum);
  }
}

template <class T>
void launch_rows(const SumPlan& plan, const ReduceGeometry& g, const T* x, const SumTarget& target,
                 cudaStream_t stream) {
  const StridedIndex<1> kept(g.kept);
  const auto splits = static_cast<unsigned>(plan.splits);
  // A warp does where it has enough to do, a block where there are too few rows for warps.
  const bool many = g.num_outputs * plan.splits >= int64_t{num_multiprocessors()} * 32;
  if (plan.split_length <= (many ? 2048 : 256))
    sum_rows<T, kWarpSize><<<dim3(num_blocks((g.num_outputs + 7) / 8), splits), kThreads, 0, stream>>>(
        x, kept, g.num_outputs, g.length, plan, target);
  else
    sum_rows<T, kThreads><<<dim3(num_blocks(g.num_outputs), splits), kThreads, 0, stream>>>(x, kept, g.num_outputs,
                                                                                            g.length, plan, target);
}

// ---------------------------------------------------------------- columns

// Lanes of a block: 2^log_packs packs of outputs side by side, the rest along rows; its split is blockIdx.y. Results
// at [split * num_outputs + output].
template <class T>
__global__ void __launch_bounds__(kThreads)
    sum_columns(const T* x, StridedIndex<1> kept, StridedIndex<1> reduced, int64_t num_packs, int64_t length,
                int log_packs, SumPlan plan, SumTarget target) {
  constexpr int N = kPackOf<T>;
  __shared__ Pack<float, N> shared[kThreads];
  const int lanes = 1 << log_packs, rows = kThreads >> log_packs;
  const int lane = static_cast<int>(threadIdx.x) & (lanes - 1), row = static_cast<int>(threadIdx.x) >> log_packs;
  const int64_t groups = (num_packs + lanes - 1) >> log_packs;
  const int64_t split = blockIdx.y, begin = split * plan.split_length;
  const int64_t end = begin + plan.split_length < length ? begin + plan.split_length : length;
  for (int64_t group = blockIdx.x; group < groups; group += gridDim.x) {
    const int64_t pack = (group << log_packs) + lane;
    Pack<float, N> sums{};
    if (pack < num_packs) {
      int64_t base[1] = {};
      kept.add_offsets(pack, base);
      for (int64_t i = begin + row; i < end; i += rows * kUnroll) {
        Pack<T, N> in[kUnroll];
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
          if (i + u * rows >= end) break;
          int64_t offset[1] = {base[0]};
          reduced.add_offsets(i + u * rows, offset);
          in[u] = load_pack<N>(x + offset[0]);
        }
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
          if (i + u * rows >= end) break;
          const Pack<float, N> values = convert_pack<float>(in[u]);
#pragma unroll
          for (int j = 0; j < N; ++j) sums[j] += values[j];
        }
      }
    }
    for (int half = rows / 2; half > 0; half /= 2) {
      shared[threadIdx.x] = sums;
      __syncthreads();
      if (row < half) {
        const Pack<float, N> other = shared[threadIdx.x + static_cast<unsigned>(half << log_packs)];
#pragma unroll
        for (int j = 0; j < N; ++j) sums[j] += other[j];
      }
      __syncthreads();
    }
    if (row == 0 && pack < num_packs)
#pragma unroll
      for (int j = 0; j < N; ++j) target.store((split * num_packs + pack) * N + j, sums[j]);
  }
}

template <class T>
void launch_columns(const SumPlan& plan, const ReduceGeometry& g, const T* x, const SumTarget& target,
                    cudaStream_t stream) {
  Iteration kept = g.kept;
  kept.extent[0] /= kPackOf<T>;
  kept.stride[0][0] = kPackOf<T>;
  const int64_t num_packs = g.num_outputs / kPackOf<T>;
  int log_packs = 0;
  while (log_packs < 5 && (int64_t{1} << log_packs) < num_packs) ++log_packs;
  const int64_t groups = (num_packs + (int64_t{1} << log_packs) - 1) >> log_packs;
  sum_columns<T><<<dim3(num_blocks(groups), static_cast<unsigned>(plan.splits)), kThreads, 0, stream>>>(
      x, StridedIndex<1>(kept), StridedIndex<1>(g.reduced), num_packs, g.length, log_packs, plan, target);
}

// `extent` of something in pieces of at least `least`, as many as give the device `wanted` tasks.
void split(SumPlan& plan, int64_t extent, int64_t tasks, int64_t least) {
  const int64_t wanted = int64_t{num_multiprocessors()} * 4 / std::max<int64_t>(tasks, 1);
  const int64_t splits = std::clamp<int64_t>(wanted, 1, std::max<int64_t>(1, extent / least));
  plan.split_length = (extent + splits - 1) / splits;
  plan.splits = (extent + plan.split_length - 1) / plan.split_length;
}

// Second pass: the partial sums are columns of `splits` rows.
void sum_column_splits(const SumPlan& plan, const ReduceGeometry& g, const float* partial, const SumTarget& target,
                       cudaStream_t stream) {
  SumPlan last;
  last.kind = SumKind::columns;
  last.split_length = plan.splits;
  launch_columns(last, make_geometry({plan.splits, g.num_outputs}, {g.num_outputs, 1}, 1, ReduceOrder::by_stride),
                 partial, target, stream);
}

}  // namespace

SumPlan plan_sum(const ReduceGeometry& g, const View& x) {
  SumPlan plan;
  if (x.dtype != DType::float32 && x.dtype != DType::bfloat16 && x.dtype != DType::float16) return plan;
  const int64_t pack = 16 / static_cast<int64_t>(dtype_size(x.dtype));
  if (!is_aligned(x.data, 16) || g.length == 0 || g.num_outputs == 0) return plan;
  const auto outer_strides_fit = [&](const Iteration& it, int first) {
    for (auto axis = static_cast<size_t>(first); axis < static_cast<size_t>(it.rank); ++axis)
      if (it.extent[axis] > 1 && it.stride[0][axis] % pack != 0) return false;
    return true;
  };
  if (g.reduced.rank == 1 && g.reduced.stride[0][0] == 1 && g.length >= 16 * pack && outer_strides_fit(g.kept, 0)) {
    plan.kind = SumKind::rows;
    split(plan, g.length / pack, g.num_outputs, 1024);
  } else if (g.kept.stride[0][0] == 1 && g.kept.extent[0] % pack == 0 && outer_strides_fit(g.kept, 1) &&
             outer_strides_fit(g.reduced, 0)) {
    plan.kind = SumKind::columns;
    split(plan, g.length, (g.num_outputs / pack + 31) / 32, 64);
  }
  return plan;
}

size_t sum_workspace(const ReduceGeometry& g, const SumPlan& plan) {
  return plan.splits > 1 ? static_cast<size_t>(g.num_outputs * plan.splits) * sizeof(float) : 0;
}

void run_sum(const SumPlan& plan, const ReduceGeometry& g, const View& x, const View& out, double divisor,
             void* workspace, cudaStream_t stream) {
  const SumTarget result{out.data, out.dtype, 1 / divisor};
  const SumTarget first = plan.splits > 1 ? SumTarget{workspace, DType::float32, 1} : result;
  visit_device_float(x.dtype, "sum", [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (plan.kind == SumKind::rows)
      launch_rows(plan, g, x.ptr<const T>(), first, stream);
    else
      launch_columns(plan, g, x.ptr<const T>(), first, stream);
  });
  if (plan.splits == 1) return;
  const auto* partial = static_cast<const float*>(workspace);
  if (plan.kind == SumKind::columns) return sum_column_splits(plan, g, partial, result, stream);
  sum_splits<<<num_blocks((g.num_outputs + 7) / 8), kThreads, 0, stream>>>(partial, g.num_outputs, plan.splits, result);
}

}  // namespace blutensor::cuda
