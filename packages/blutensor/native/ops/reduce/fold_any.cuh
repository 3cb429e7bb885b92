// Folds any strided operand: a power of two of threads per output, the positions of an output cut into splits that are
// combined by a second kernel. How the work is cut depends on shape, strides and the device's size alone.
#pragma once

#include "ops/cuda/vector.cuh"
#include "ops/reduce/geometry.h"

namespace blutensor::cuda {

inline constexpr int kFoldThreads = 256;

struct FoldPlan {
  int log_width = 0;  // 2^log_width threads per output
  int64_t splits = 1, split_length = 0;
};

// Elements of a dtype known at run time, or the states of the first pass.
template <class Fold>
struct ElementSource {
  const void* data;
  DType dtype;
  StridedIndex<1> kept, reduced;
  __device__ int64_t base(int64_t output) const {
    int64_t offset[1] = {};
    kept.add_offsets(output, offset);
    return offset[0];
  }
  __device__ typename Fold::Acc load(const Fold& fold, int64_t base, int64_t position) const {
    int64_t offset[1] = {base};
    reduced.add_offsets(position, offset);
    return fold.one(load_element<typename Fold::In>(data, offset[0], dtype), position);
  }
};
template <class Fold>
struct StateSource {
  const typename Fold::Acc* data;
  int64_t splits;
  __device__ int64_t base(int64_t output) const { return output * splits; }
  __device__ typename Fold::Acc load(const Fold&, int64_t base, int64_t position) const {
    return data[base + position];
  }
};

// One output's state to its place, or the state of one split to the workspace.
template <class Fold>
struct FoldTarget {
  void* out;
  DType dtype;
  typename Fold::Acc* partial;  // nullptr: finish
  int64_t splits;
  __device__ void store(const Fold& fold, int64_t output, int64_t split, const typename Fold::Acc& state) const {
    if (partial) {
      partial[output * splits + split] = state;
    } else {
      const auto result = fold.finish(state);
      store_element<std::remove_cvref_t<decltype(result)>>(out, output, dtype, result);
    }
  }
};

template <class Fold, class Source>
__global__ void __launch_bounds__(kFoldThreads)
    fold_any(Fold fold, Source source, FoldTarget<Fold> target, int64_t num_outputs, int64_t length, FoldPlan plan) {
  using Acc = typename Fold::Acc;
  __shared__ Acc states[kFoldThreads];
  const int width = 1 << plan.log_width, lane = static_cast<int>(threadIdx.x) & (width - 1);
  const int64_t per_block = kFoldThreads >> plan.log_width, split = blockIdx.y;
  for (int64_t first = blockIdx.x * per_block; first < num_outputs; first += gridDim.x * per_block) {
    const int64_t output = first + (threadIdx.x >> plan.log_width);
    Acc state = fold.start();
    if (output < num_outputs) {
      const int64_t base = source.base(output);
      const int64_t begin = split * plan.split_length;
      const int64_t end = begin + plan.split_length < length ? begin + plan.split_length : length;
      for (int64_t i = begin + lane; i < end; i += width) state = fold.combine(state, source.load(fold, base, i));
    }
    for (int half = width / 2; half > 0; half /= 2) {
      states[threadIdx.x] = state;
      __syncthreads();
      if (lane < half) state = fold.combine(state, states[threadIdx.x + static_cast<unsigned>(half)]);
      __syncthreads();
    }
    if (lane == 0 && output < num_outputs) target.store(fold, output, split, state);
  }
}

inline FoldPlan plan_fold(const ReduceGeometry& g) {
  FoldPlan plan;
  // Neighbouring threads take neighbouring outputs where these lie closer than the elements of one.
  const bool across = g.kept.extent[0] >= 32 && std::abs(g.kept.stride[0][0]) <= std::abs(g.reduced.stride[0][0]);
  if (!across)
    while ((1 << plan.log_width) < kFoldThreads && int64_t{4} << plan.log_width < g.length) ++plan.log_width;
  const int64_t wanted = int64_t{num_multiprocessors()} * 1024;  // threads that hide the latency of memory
  const int64_t threads = std::max<int64_t>(1, g.num_outputs) << plan.log_width;
  const int64_t most = std::clamp<int64_t>((g.length >> plan.log_width) / 16, 1, 1024);
  const int64_t splits = std::clamp<int64_t>(wanted / threads, 1, most);
  plan.split_length = (g.length + splits - 1) / splits;
  plan.splits = plan.split_length > 0 ? (g.length + plan.split_length - 1) / plan.split_length : 1;
  return plan;
}

template <class Fold>
size_t fold_workspace(const ReduceGeometry& g) {
  const FoldPlan plan = plan_fold(g);
  return plan.splits > 1 ? static_cast<size_t>(g.num_outputs * plan.splits) * sizeof(typename Fold::Acc) : 0;
}

template <class Fold>
void fold(Fold fold, const ReduceGeometry& g, const View& x, const View& out, void* workspace, cudaStream_t stream) {
  using Acc = typename Fold::Acc;
  if (g.num_outputs == 0) return;
  const FoldPlan plan = plan_fold(g);
  auto* partial = plan.splits > 1 ? static_cast<Acc*>(workspace) : nullptr;
  const auto blocks = [&](const FoldPlan& p) {
    const int64_t per_block = kFoldThreads >> p.log_width;
    return dim3(static_cast<unsigned>(std::min<int64_t>((g.num_outputs + per_block - 1) / per_block, 1 << 30)),
                static_cast<unsigned>(p.splits));
  };
  fold_any<Fold, ElementSource<Fold>><<<blocks(plan), kFoldThreads, 0, stream>>>(
      fold, {x.data, x.dtype, StridedIndex<1>(g.kept), StridedIndex<1>(g.reduced)},
      {out.data, out.dtype, partial, plan.splits}, g.num_outputs, g.length, plan);
  if (!partial) return;
  FoldPlan last;
  while ((1 << last.log_width) < kFoldThreads && int64_t{4} << last.log_width < plan.splits) ++last.log_width;
  last.split_length = plan.splits;
  fold_any<Fold, StateSource<Fold>><<<blocks(last), kFoldThreads, 0, stream>>>(
      fold, {partial, plan.splits}, {out.data, out.dtype, nullptr, 1}, g.num_outputs, plan.splits, last);
}

}  // namespace blutensor::cuda
