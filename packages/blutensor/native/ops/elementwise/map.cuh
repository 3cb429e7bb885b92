// Kernels that apply a functor (functions.cuh) to every position of a shape.
//
// map_packs: operands of one type that are contiguous, or one element, along the inner axis; 16 bytes per operand and
// step, several steps in flight. Serves contiguous tensors, biases (stride 0 along outer axes), column vectors (stride
// 0 along the inner one), scalars and slices of rows alike.
// map_any: operands of any strides and dtypes, one element at a time.
//
// Bytes: those of the operands, once. Benchmark: benchmarks/bench_memory_cuda.py.
#pragma once

#include <array>
#include <span>

#include "ops/cuda/vector.cuh"

namespace blutensor::cuda {

inline constexpr int kMapThreads = 256;

inline unsigned map_blocks(int64_t n, int64_t per_block) {
  return static_cast<unsigned>(std::min<int64_t>((n + per_block - 1) / per_block, 1 << 30));
}

// ---------------------------------------------------------------- packs

template <class T, int K>
struct PackOperands {
  const T* data[K] = {};
  bool splat[K] = {};  // one element along the inner axis
};

// How K + 1 operands (the first is the result) are walked in packs of N.
template <int K>
struct PackPlan {
  StridedIndex<K + 1> index;  // positions are packs; strides in elements
  int64_t num_packs = 0;      // whole ones
  int tail = 0;               // elements behind them, of rank 1 alone
  bool splat[K + 1] = {};
};

// False when the operands do not allow packs. `sizes`: of their elements, in bytes.
template <int K>
bool plan_packs(const Iteration& it, std::span<const View* const> views, int elements, PackPlan<K>& plan) {
  if (it.extent[0] % elements != 0 && it.rank > 1) return false;
  Iteration packs = it;
  packs.extent[0] = it.extent[0] / elements;
  for (size_t k = 0; k <= static_cast<size_t>(K); ++k) {
    if (it.stride[k][0] != 1 && (k == 0 || it.stride[k][0] != 0)) return false;
    plan.splat[k] = it.stride[k][0] == 0;
    packs.stride[k][0] = it.stride[k][0] * elements;
    if (plan.splat[k]) continue;
    const size_t bytes = dtype_size(views[k]->dtype) * static_cast<size_t>(elements);
    if (!is_aligned(views[k]->data, std::min<size_t>(bytes, 16))) return false;
    for (int axis = 1; axis < it.rank; ++axis)
      if (it.stride[k][static_cast<size_t>(axis)] % elements != 0) return false;
  }
  plan.num_packs = it.numel / elements;
  plan.tail = static_cast<int>(it.numel % elements);
  if (plan.num_packs > 0) plan.index = StridedIndex<K + 1>(packs);
  return true;
}

template <int N, int U, class T, class Out, int K, class F>
__global__ void __launch_bounds__(kMapThreads)
    map_packs(Out* out, PackOperands<T, K> operands, PackPlan<K> plan, F function) {
  using C = device_compute_t<T>;
  constexpr bool fast = is_16_bit<T>;
  const auto apply = [&](Pack<C, N>& result, const Pack<T, N>(&in)[K]) {
    const Pack<C, N> a = convert_pack<C>(in[0]);
    if constexpr (K == 1) {
      function.template apply<fast, N>(result.v, a.v);
    } else {
      const Pack<C, N> b = convert_pack<C>(in[1]);
      function.template apply<fast, N>(result.v, a.v, b.v);
    }
  };
  // U packs from `first` on; `all`: none of them is beyond the end.
  const auto run = [&](int64_t first, auto all) {
    Pack<T, N> in[U][K];
    int64_t to[U];
#pragma unroll
    for (int u = 0; u < U; ++u) {
      const int64_t pack = first + u * kMapThreads;
      if (!all.value && pack >= plan.num_packs) break;
      int64_t offset[K + 1] = {};
      plan.index.add_offsets(pack, offset);
      to[u] = offset[0];
#pragma unroll
      for (int k = 0; k < K; ++k) {
        if (operands.splat[k]) {
          const T value = operands.data[k][offset[k + 1]];
#pragma unroll
          for (int i = 0; i < N; ++i) in[u][k][i] = value;
        } else {
          in[u][k] = load_pack<N>(operands.data[k] + offset[k + 1]);
        }
      }
    }
#pragma unroll
    for (int u = 0; u < U; ++u) {
      if (!all.value && first + u * kMapThreads >= plan.num_packs) break;
      Pack<C, N> result;
      apply(result, in[u]);
      store_pack<N>(out + to[u], convert_pack<Out>(result));
    }
  };
  constexpr int64_t kPerBlock = int64_t{kMapThreads} * U;
  for (int64_t block = blockIdx.x * kPerBlock; block < plan.num_packs; block += gridDim.x * kPerBlock) {
    if (block + kPerBlock <= plan.num_packs)
      run(block + threadIdx.x, std::true_type{});
    else
      run(block + threadIdx.x, std::false_type{});
  }
  if (blockIdx.x == 0 && threadIdx.x < plan.tail) {
    const int64_t i = plan.num_packs * N + threadIdx.x;
    Pack<T, N> in[K];
#pragma unroll
    for (int k = 0; k < K; ++k) in[k][0] = operands.data[k][operands.splat[k] ? 0 : i];
    C a = convert<C>(in[0][0]), result;
    if constexpr (K == 1) {
      function.template apply<fast, 1>(&result, &a);
    } else {
      const C b = convert<C>(in[1][0]);
      function.template apply<fast, 1>(&result, &a, &b);
    }
    out[i] = convert<Out>(result);
  }
}

template <int U, class T, class Out, int K, class F>
void launch_map_packs(const View& out, const std::array<const View*, K>& inputs, const PackPlan<K>& plan, F function,
                      cudaStream_t stream) {
  constexpr int N = kPackOf<T>;
  PackOperands<T, K> operands;
  for (size_t k = 0; k < static_cast<size_t>(K); ++k) {
    operands.data[k] = inputs[k]->template ptr<const T>();
    operands.splat[k] = plan.splat[k + 1];
  }
  map_packs<N, U, T, Out, K>
      <<<map_blocks(std::max<int64_t>(plan.num_packs, 1), kMapThreads * U), kMapThreads, 0, stream>>>(
          out.ptr<Out>(), operands, plan, function);
}

// ---------------------------------------------------------------- any operands

template <int K>
struct AnyOperands {
  const void* data[K] = {};
  DType dtype[K] = {};
};

template <class C, int K, class F>
__global__ void __launch_bounds__(kMapThreads)
    map_any(void* out, DType out_dtype, AnyOperands<K> operands, StridedIndex<K + 1> index, int64_t numel, F function) {
  const int64_t step = int64_t{gridDim.x} * kMapThreads;
  for (int64_t i = int64_t{blockIdx.x} * kMapThreads + threadIdx.x; i < numel; i += step) {
    int64_t offset[K + 1] = {};
    index.add_offsets(i, offset);
    C in[K], result;
#pragma unroll
    for (int k = 0; k < K; ++k) in[k] = load_element<C>(operands.data[k], offset[k + 1], operands.dtype[k]);
    if constexpr (K == 1)
      function.template apply<false, 1>(&result, in);
    else
      function.template apply<false, 1>(&result, in, in + 1);
    store_element<C>(out, offset[0], out_dtype, result);
  }
}

template <class C, int K, class F>
void launch_map_any(const Iteration& it, const View& out, const std::array<const View*, K>& inputs, F function,
                    cudaStream_t stream) {
  AnyOperands<K> operands;
  for (size_t k = 0; k < static_cast<size_t>(K); ++k) {
    operands.data[k] = inputs[k]->data;
    operands.dtype[k] = inputs[k]->dtype;
  }
  map_any<C, K><<<map_blocks(it.numel, kMapThreads), kMapThreads, 0, stream>>>(
      out.data, out.dtype, operands, StridedIndex<K + 1>(it), it.numel, function);
}

}  // namespace blutensor::cuda
