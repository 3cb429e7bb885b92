// Softmax, loss and gradient of rows of logits [n, V], in place.
//
// A block takes a row. It reads it once, to shared memory where that holds it (GPT-2's vocabulary: 98 KiB in bfloat16,
// 197 KiB in float32): all of it is asked for at once, and maximum and sum of exponentials are taken part by part as it
// arrives; a thread reads only what it copied itself. Then every logit becomes its gradient. A target out of range is
// reported (ops/cuda/report.h); its row counts for nothing.
// Bytes: n V elements read and written. FLOPs: two exponentials a logit.
#include <cuda_pipeline_primitives.h>

#include "ops/cross_entropy/sums.cuh"
#include "ops/cuda/report.h"
#include "ops/linear_cross_entropy/rows_cuda.h"
#include "ops/softmax/online.cuh"

namespace blutensor {

using namespace cuda;

namespace {

constexpr int kSumThreads = 1024;
constexpr int kParts = 4;  // of a row that arrives in shared memory

// 16-bit rows are half as long: two blocks share a multiprocessor.
template <class T>
inline constexpr int kThreads = sizeof(T) == 4 ? 1024 : 512;
template <class T>
inline constexpr int kResident = sizeof(T) == 2 ? 2 : 1;

template <class T>
struct Rows {
  T* logits;
  int64_t stride;
  int columns;  // num_classes or more
  RowTargets targets;
  int64_t first;
  double* losses;
  const int64_t* count;  // or null
  bool gradient;
  Report* slot;
};

__device__ inline int64_t target_of(const RowTargets& targets, int64_t row, Report* slot) {
  const int64_t target = load_element<int64_t>(targets.data, row, targets.dtype);
  if (target == targets.ignore_index) return -1;
  if (target >= 0 && target < targets.num_classes) return target;
  report(slot, ReportCode::linear_cross_entropy_target, target, targets.num_classes);
  return -1;
}

template <class T, bool kShared>
__global__ void __launch_bounds__(kThreads<T>, kResident<T>) loss_of_rows(const Rows<T> p) {
  using C = device_compute_t<T>;
  constexpr int kWidth = kPackOf<T>, kStep = kThreads<T> * kWidth, kUnroll = 16 / kWidth;
  extern __shared__ uint4 dynamic[];
  __shared__ MaxSum<C> partial[kThreads<T> / kWarpSize];
  T* const row = p.logits + static_cast<int64_t>(blockIdx.x) * p.stride;
  T* const kept = kShared ? reinterpret_cast<T*>(dynamic) : row;
  const int n = static_cast<int>(p.targets.num_classes), start = static_cast<int>(threadIdx.x) * kWidth;
  const int64_t at = p.first + blockIdx.x, target = target_of(p.targets, at, p.slot);
  if (target < 0) {
    if (threadIdx.x == 0) p.losses[at] = 0;
    if (p.gradient)
      for (int j = start; j < p.columns; j += kStep) store_pack(row + j, Pack<T, kWidth>{});
    return;
  }
  const C target_logit = convert<C>(row[target]);  // before the barrier, after which it is overwritten

  // ------------------------------------------------ maximum and sum
  MaxSum<C> part{lowest<C>(), C{0}};
  const auto add = [&](int begin, int end) {
#pragma unroll kUnroll
    for (int j = begin; j < end; j += kStep) {
      Pack<C, kWidth> v = convert_pack<C>(load_pack<kWidth>(kept + j));
      if (j + kWidth > n) {
#pragma unroll
        for (int i = 0; i < kWidth; ++i) v[i] = j + i < n ? v[i] : lowest<C>();
      }
      part.template add<is_16_bit<T>>(v);
    }
  };
  if constexpr (kShared) {
    const int steps = (n + kStep - 1) / kStep;
    const auto begin_of = [&](int k) { return start + steps * k / kParts * kStep; };
#pragma unroll
    for (int k = 0; k < kParts; ++k) {
#pragma unroll 1
      for (int j = begin_of(k); j < min(n, begin_of(k + 1)); j += kStep)
        __pipeline_memcpy_async(kept + j, row + j, sizeof(Pack<T, kWidth>));
      __pipeline_commit();
    }
#pragma unroll
    for (int k = 0; k < kParts; ++k) {
      __pipeline_wait_prior(kParts - 1 - k);
      add(begin_of(k), min(n, begin_of(k + 1)));
    }
  } else {
    add(start, n);
  }
  const MaxSum<C> all = finished(block_reduce<kThreads<T>>(part, MergeOp{}, partial), n);
  if (threadIdx.x == 0)
    p.losses[at] =
        (static_cast<double>(all.maximum) - static_cast<double>(target_logit)) + log(static_cast<double>(all.sum));
  if (!p.gradient) return;

  // ------------------------------------------------ gradient
  const C scale = p.count ? C{1} / static_cast<C>(*p.count) : C{1}, inverse = C{1} / all.sum;
#pragma unroll kUnroll
  for (int j = start; j < n; j += kStep) {
    Pack<C, kWidth> v = convert_pack<C>(load_pack<kWidth>(kept + j));
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const C probability = exponential_of<is_16_bit<T>>(v[i] - all.maximum) * inverse;
      v[i] = (j + i == target ? probability - C{1} : probability) * scale;
    }
    if (j + kWidth > n) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) v[i] = j + i < n ? v[i] : C{0};
    }
    store_pack(row + j, convert_pack<T>(v));
  }
  const int padding = (n + kWidth - 1) / kWidth * kWidth;
  for (int j = padding + start; j < p.columns; j += kStep) store_pack(row + j, Pack<T, kWidth>{});
}

__global__ void __launch_bounds__(kSumThreads) count_valid(const RowTargets targets, int64_t rows, int64_t* count) {
  __shared__ double shared[kSumThreads / kWarpSize];
  double sum =
      static_cast<double>(count_of_thread<kSumThreads>(targets.data, targets.dtype, targets.ignore_index, rows));
  sum = block_sum<kSumThreads>(sum, shared);
  if (threadIdx.x == 0) *count = static_cast<int64_t>(sum);
}

__global__ void __launch_bounds__(kSumThreads)
    add_losses(const double* losses, int64_t rows, const int64_t* count, void* loss, DType dtype) {
  __shared__ double shared[kSumThreads / kWarpSize];
  double sum = losses_of_thread<kSumThreads>(losses, rows);
  sum = block_sum<kSumThreads>(sum, shared);
  if (threadIdx.x == 0) store_element<double>(loss, 0, dtype, count ? sum / static_cast<double>(*count) : sum);
}

// Shared memory that one block may have on the current device.
int64_t block_shared_limit() {
  int device = 0, bytes = 0;
  check(cudaGetDevice(&device), "linear_cross_entropy");
  check(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "linear_cross_entropy");
  return bytes;
}

template <class T>
void launch_rows(const Rows<T>& p, int64_t rows, cudaStream_t stream) {
  const int64_t bytes = (p.targets.num_classes + kPackOf<T> - 1) / kPackOf<T> * 16;
  const auto blocks = static_cast<unsigned>(rows);
  // What the block's own few sums take, and what the system reserves.
  if (constexpr int64_t kOther = 2048; bytes + kOther <= block_shared_limit()) {
    check(cudaFuncSetAttribute(loss_of_rows<T, true>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(bytes)),
          "linear_cross_entropy");
    loss_of_rows<T, true><<<blocks, kThreads<T>, static_cast<size_t>(bytes), stream>>>(p);
  } else {
    loss_of_rows<T, false><<<blocks, kThreads<T>, 0, stream>>>(p);
  }
  check_launch("linear_cross_entropy");
}

}  // namespace

void count_targets(const RowTargets& targets, int64_t rows, int64_t* count, void* stream) {
  count_valid<<<1, kSumThreads, 0, static_cast<cudaStream_t>(stream)>>>(targets, rows, count);
  check_launch("linear_cross_entropy");
}

void loss_rows(const Matrix& logits, const RowTargets& targets, int64_t first, double* losses, const int64_t* count,
               bool gradient, void* stream) {
  if (logits.rows == 0) return;
  visit_device_floating(logits.dtype, "linear_cross_entropy", [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (!std::is_same_v<T, __half>)
      launch_rows<T>({static_cast<T*>(logits.data), logits.row_stride, static_cast<int>(logits.cols), targets, first,
                      losses, count, gradient, report_slot()},
                     logits.rows, static_cast<cudaStream_t>(stream));
  });
}

void add_row_losses(const double* losses, int64_t rows, const int64_t* count, void* loss, DType dtype, void* stream) {
  add_losses<<<1, kSumThreads, 0, static_cast<cudaStream_t>(stream)>>>(losses, rows, count, loss, dtype);
  check_launch("linear_cross_entropy");
}

}  // namespace blutensor
