// Reductions over the threads of a warp and of a block, in an order that depends on the thread numbers alone.
#pragma once

#include <cstdint>

namespace blutensor::cuda {

inline constexpr int kWarpSize = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;

struct SumOp {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};
// NaN when either is.
struct MaxOp {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a != a || a > b ? a : b;
  }
};

// Shuffles a value of any trivially copyable type whose size is a multiple of 4.
template <class T>
__device__ inline T shuffle_xor(const T& value, int mask) {
  static_assert(sizeof(T) % 4 == 0);
  T result;
#pragma unroll
  for (size_t i = 0; i < sizeof(T) / 4; ++i)
    reinterpret_cast<uint32_t*>(&result)[i] =
        __shfl_xor_sync(kAllLanes, reinterpret_cast<const uint32_t*>(&value)[i], mask);
  return result;
}

// Over groups of kWidth neighbouring lanes; every lane gets the result. `op` must be commutative for all lanes to get
// the same bits (sums of IEEE floats are).
template <int kWidth = kWarpSize, class T, class Op>
__device__ inline T warp_reduce(T value, Op op) {
#pragma unroll
  for (int mask = kWidth / 2; mask > 0; mask /= 2) value = op(value, shuffle_xor(value, mask));
  return value;
}
template <int kWidth = kWarpSize, class T>
__device__ inline T warp_sum(T value) {
  return warp_reduce<kWidth>(value, SumOp{});
}
template <int kWidth = kWarpSize, class T>
__device__ inline T warp_max(T value) {
  return warp_reduce<kWidth>(value, MaxOp{});
}

// Over all kThreads threads of a one-dimensional block (a multiple of 32, at most 1024); every thread gets the result.
// `shared` has room for kThreads / 32 values. It is free again when all threads have returned; a caller that reduces
// twice with one buffer puts __syncthreads() between, or alternates two buffers.
template <int kThreads, class T, class Op>
__device__ inline T block_reduce(T value, Op op, T* shared) {
  constexpr int kWarps = kThreads / kWarpSize;
  static_assert(kThreads % kWarpSize == 0 && kWarps <= kWarpSize && (kWarps & (kWarps - 1)) == 0);
  value = warp_reduce(value, op);
  if constexpr (kWarps == 1) return value;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize, warp = static_cast<int>(threadIdx.x) / kWarpSize;
  if (lane == 0) shared[warp] = value;
  __syncthreads();
  return warp_reduce<kWarps>(shared[lane % kWarps], op);  // every warp by itself: no second barrier
}
template <int kThreads, class T>
__device__ inline T block_sum(T value, T* shared) {
  return block_reduce<kThreads>(value, SumOp{}, shared);
}
template <int kThreads, class T>
__device__ inline T block_max(T value, T* shared) {
  return block_reduce<kThreads>(value, MaxOp{}, shared);
}

}  // namespace blutensor::cuda
