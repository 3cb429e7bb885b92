// Maximum and sum of exponentials of a row in one pass (Milakov and Gimelshein 2018), for softmax and the losses.
//
// NaN and infinities as if computed in two passes: a NaN is no maximum but makes the sum NaN, as +inf does, and as a
// row of nothing but -inf does (finished()).
#pragma once

#include "ops/cuda/reduce.cuh"
#include "ops/cuda/vector.cuh"

namespace blutensor::cuda {

template <class C>
__device__ inline C lowest() {
  return static_cast<C>(-INFINITY);
}
__device__ inline float exponential(float x) { return expf(x); }
__device__ inline double exponential(double x) { return exp(x); }

// To some 2^-21 where `kFast` and in float: for logits that were rounded to 16 bits.
template <bool kFast, class C>
__device__ inline C exponential_of(C x) {
  if constexpr (kFast && std::is_same_v<C, float>)
    return __expf(x);
  else
    return exponential(x);
}

// sum of exp(x - maximum); nothing yet: {-inf, 0}.
template <class C>
struct MaxSum {
  C maximum, sum;

  // The values of a pack.
  template <bool kFast = false, int kWidth>
  __device__ void add(const Pack<C, kWidth>& v) {
    C top = maximum;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) top = v[i] > top ? v[i] : top;
    const C shift = top == lowest<C>() ? C{0} : top;
    C total = maximum == top ? sum : sum * exponential(maximum - shift);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) total += exponential_of<kFast>(v[i] - shift);
    maximum = top;
    sum = total;
  }
};

struct MergeOp {
  template <class C>
  __device__ MaxSum<C> operator()(const MaxSum<C>& a, const MaxSum<C>& b) const {
    const C top = a.maximum > b.maximum ? a.maximum : b.maximum, shift = top == lowest<C>() ? C{0} : top;
    // A part that has the maximum keeps its sum as it is (exp(inf - inf) would be NaN where the sum is one already).
    const C left = a.maximum == top ? a.sum : a.sum * exponential(a.maximum - shift),
            right = b.maximum == top ? b.sum : b.sum * exponential(b.maximum - shift);
    return {top, left + right};
  }
};

// Of a row of n elements.
template <class C>
__device__ inline MaxSum<C> finished(MaxSum<C> row, int64_t n) {
  if (n > 0 && row.maximum == lowest<C>()) row.sum = static_cast<C>(NAN);
  return row;
}

// Over a row of n elements, by the kThreads threads of a warp or block; every thread gets the result. With kWidth > 1,
// n is a multiple of it and the row is aligned. `shared`: kThreads / 32 values.
template <int kThreads, int kWidth, class T, class C = device_compute_t<T>>
__device__ inline MaxSum<C> row_max_sum(const T* x, int64_t n, MaxSum<C>* shared) {
  MaxSum<C> part{lowest<C>(), C{0}};
#pragma unroll 2
  for (int64_t j = static_cast<int64_t>(threadIdx.x % kThreads) * kWidth; j < n; j += kThreads * kWidth)
    part.add(convert_pack<C>(load_pack<kWidth>(x + j)));
  if constexpr (kThreads == kWarpSize)
    return finished(warp_reduce(part, MergeOp{}), n);
  else
    return finished(block_reduce<kThreads>(part, MergeOp{}, shared), n);
}

}  // namespace blutensor::cuda
