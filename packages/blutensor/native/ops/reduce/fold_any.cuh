// Folds any strided operand: a power of two of threads per output, the positions of an output cut into splits that are
// combined by a second kernel. How the work is cut depends on shape, strides and the device's size alone.
#pragma once

#include "ops/cuda/reduce.cuh"
#include "ops/cuda/vector.cuh"
#include "ops/reduce/geometry.h"

namespace blutensor::cuda {

inline constexpr int kFoldThreads = 256;

struct FoldPlan {
  int log_width = 0;  // 2^log_width threads per output
  int64_t splits = 1, split_length = 0;
};

// Calls run(load) with a function that reads element i of memory as In: float, double, int64_t, uint64_t or bool, for
// the dtypes that are folded in that type. The loops of the common dtypes are compiled for each; the others share one
// that asks for the dtype at every element.
template <class In, class F>
__device__ void visit_elements(const void* data, DType dtype, const F& run) {
  [[maybe_unused]] const auto read = [&](auto tag) {
    using T = typename decltype(tag)::type;
    run([data](int64_t i) { return convert<In>(static_cast<const T*>(data)[i]); });
  };
  [[maybe_unused]] const auto read_any = [&] {
    run([data, dtype](int64_t i) { return load_element<In>(data, i, dtype); });
  };
  if constexpr (std::is_same_v<In, float>) {
    if (dtype == DType::float32)
      read(TypeTag<float>{});
    else if (dtype == DType::bfloat16)
      read(TypeTag<__nv_bfloat16>{});
    else
      read(TypeTag<__half>{});
  } else if constexpr (std::is_same_v<In, uint64_t>) {
    read(TypeTag<uint64_t>{});
  } else if constexpr (std::is_same_v<In, int64_t>) {
    if (dtype == DType::int64)
      read(TypeTag<int64_t>{});
    else if (dtype == DType::int32)
      read(TypeTag<int32_t>{});
    else
      read_any();
  } else {
    read_any();
  }
}

// Elements of a dtype known at run time, or the states of the first pass.
template <class Fold>
struct ElementSource {
  const void* data;
  DType dtype;
  StridedIndex<1> kept, reduced;
  // run(load): load(position) is the state of that element of an output.
  template <class F>
  __device__ void visit(const Fold& fold, int64_t output, const F& run) const {
    int64_t base[1] = {};
    kept.add_offsets(output, base);
    visit_elements<typename Fold::In>(data, dtype, [&](const auto& read) {
      run([&](int64_t position) {
        int64_t offset[1] = {base[0]};
        reduced.add_offsets(position, offset);
        return fold.one(read(offset[0]), position);
      });
    });
  }
};
template <class Fold>
struct StateSource {
  const typename Fold::Acc* data;
  int64_t splits;
  template <class F>
  __device__ void visit(const Fold&, int64_t output, const F& run) const {
    const typename Fold::Acc* states = data + output * splits;
    run([states](int64_t position) { return states[position]; });
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
  constexpr int kUnroll = 4;
  __shared__ Acc states[kFoldThreads / kWarpSize];
  const int width = 1 << plan.log_width, lane = static_cast<int>(threadIdx.x) & (width - 1);
  const int64_t per_block = kFoldThreads >> plan.log_width, split = blockIdx.y;
  for (int64_t first = blockIdx.x * per_block; first < num_outputs; first += gridDim.x * per_block) {
    const int64_t output = first + (threadIdx.x >> plan.log_width);
    Acc state = fold.start();
    if (output < num_outputs) {
      const int64_t begin = split * plan.split_length;
      const int64_t end = begin + plan.split_length < length ? begin + plan.split_length : length;
      source.visit(fold, output, [&](const auto& load) {
        int64_t i = begin + lane;
        if (i + (kUnroll - 1) * width < end) {  // several loads under way
          Acc part[kUnroll];
#pragma unroll
          for (int u = 0; u < kUnroll; ++u) part[u] = fold.start();
          for (; i + (kUnroll - 1) * width < end; i += kUnroll * width) {
            Acc next[kUnroll];
#pragma unroll
            for (int u = 0; u < kUnroll; ++u) next[u] = load(i + u * width);
#pragma unroll
            for (int u = 0; u < kUnroll; ++u) part[u] = fold.combine(part[u], next[u]);
          }
          state = fold.combine(fold.combine(part[0], part[1]), fold.combine(part[2], part[3]));
        }
        for (; i < end; i += width) state = fold.combine(state, load(i));
      });
    }
    for (int half = (width < kWarpSize ? width : kWarpSize) / 2; half > 0; half /= 2)
      state = fold.combine(state, shuffle_xor(state, half));
    if (width > kWarpSize) {
      const unsigned warp = threadIdx.x / kWarpSize;
      if (threadIdx.x % kWarpSize == 0) states[warp] = state;
      __syncthreads();
      if (lane == 0)
        for (int other = 1; other < width / kWarpSize; ++other) state = fold.combine(state, states[warp + other]);
      __syncthreads();
    }
    if (lane == 0 && output < num_outputs) target.store(fold, output, split, state);
  }
}

inline FoldPlan plan_fold(const ReduceGeometry& g) {
  FoldPlan plan;
  // Neighbouring threads take neighbouring outputs where these lie closer than the elements of one.
  const bool across = g.kept.extent[0] >= 32 && std::llabs(g.kept.stride[0][0]) <= std::llabs(g.reduced.stride[0][0]);
  if (!across)
    while ((1 << plan.log_width) < kFoldThreads && int64_t{16} << plan.log_width < g.length) ++plan.log_width;
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
