// cross_entropy on CUDA: -log softmax(logits)[target] of rows of logits [N, V], and its gradient.
//
// A block takes a row: one pass for its maximum and sum of exponentials. The losses of the rows are added by one block,
// in double, in an order that N decides. Backward: one pass, from maximum and log_sum. A target out of range is reported
// (ops/cuda/report.h), and its row counts for nothing.
// Bytes: forward N V elements, backward 2 N V.
#include "ops/cuda/report.h"
#include "ops/cuda/table.h"
#include "ops/matmul/operand.h"
#include "ops/softmax/online.cuh"

namespace blutensor {

using namespace cuda;

namespace {

constexpr int kThreads = 512, kSumThreads = 1024;

struct Targets {
  const void* data;
  DType dtype;
  int64_t ignore_index, num_classes;
  Report* slot;

  __device__ bool counts(int64_t row) const { return load_element<int64_t>(data, row, dtype) != ignore_index; }
  // -1 where the row is ignored, or the target is no class.
  __device__ int64_t at(int64_t row) const {
    const int64_t target = load_element<int64_t>(data, row, dtype);
    if (target == ignore_index) return -1;
    if (target >= 0 && target < num_classes) return target;
    report(slot, ReportCode::cross_entropy_target, target, num_classes);
    return -1;
  }
};

template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    cross_entropy_rows(const T* logits, int64_t row_stride, const Targets targets, device_compute_t<T>* maximum,
                       device_compute_t<T>* log_sum, double* losses, device_compute_t<T>* loss) {
  using C = device_compute_t<T>;
  __shared__ MaxSum<C> shared[kThreads / kWarpSize];
  const int64_t row = blockIdx.x;
  const T* x = logits + row * row_stride;
  const MaxSum<C> all = row_max_sum<kThreads, kWidth>(x, targets.num_classes, shared);
  if (threadIdx.x > 0) return;
  const double log_of_sum = log(static_cast<double>(all.sum));
  maximum[row] = all.maximum;
  log_sum[row] = static_cast<C>(log_of_sum);
  const int64_t target = targets.at(row);
  const double value =
      target < 0 ? 0 : (static_cast<double>(all.maximum) - static_cast<double>(convert<C>(x[target]))) + log_of_sum;
  if (losses)
    losses[row] = value;
  else
    loss[row] = static_cast<C>(value);
}

// The sum of the losses, divided by the number of rows that count where `mean`.
template <class C>
__global__ void __launch_bounds__(kSumThreads)
    add_losses(const double* losses, const Targets targets, int64_t rows, bool mean, C* loss) {
  __shared__ double sums[kSumThreads / kWarpSize], counts[kSumThreads / kWarpSize];
  double sum = 0, count = 0;
  for (int64_t row = threadIdx.x; row < rows; row += kSumThreads) {
    sum += losses[row];
    count += targets.counts(row);
  }
  sum = block_sum<kSumThreads>(sum, sums);
  count = block_sum<kSumThreads>(count, counts);
  if (threadIdx.x == 0) *loss = static_cast<C>(mean ? sum / count : sum);  // 0 / 0 where none counts
}

__global__ void __launch_bounds__(kSumThreads) count_rows(const Targets targets, int64_t rows, int64_t* count) {
  __shared__ double counts[kSumThreads / kWarpSize];
  double sum = 0;
  for (int64_t row = threadIdx.x; row < rows; row += kSumThreads) sum += targets.counts(row);
  sum = block_sum<kSumThreads>(sum, counts);
  if (threadIdx.x == 0) *count = static_cast<int64_t>(sum);
}

template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    cross_entropy_gradient(const device_compute_t<T>* grad, bool grad_per_row, const int64_t* count, const T* logits,
                           int64_t row_stride, const Targets targets, const device_compute_t<T>* maximum,
                           const device_compute_t<T>* log_sum, T* out) {
  using C = device_compute_t<T>;
  const int64_t row = blockIdx.x, n = targets.num_classes;
  const T* x = logits + row * row_stride;
  T* dx = out + row * n;
  const int64_t target = targets.at(row);
  const C scale = grad[grad_per_row ? row : 0] / (count ? static_cast<C>(*count) : C{1}), top = maximum[row],
          log_of_sum = log_sum[row];
  for (int64_t j = static_cast<int64_t>(threadIdx.x) * kWidth; j < n; j += kThreads * kWidth) {
    Pack<C, kWidth> v = {};
    if (target >= 0) {
      v = convert_pack<C>(load_pack<kWidth>(x + j));
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        const C probability = exponential((v[i] - top) - log_of_sum);
        v[i] = (j + i == target ? probability - C{1} : probability) * scale;
      }
    }
    store_pack(dx + j, convert_pack<T>(v));
  }
}

// ---------------------------------------------------------------- host

// Calls f(width of a pack) as a constant.
template <class T, class F>
void visit_width(const Matrix& logits, const void* out, const F& f) {
  constexpr int kWidth = kPackOf<T>;
  if (logits.cols % kWidth == 0 && (logits.rows == 1 || logits.row_stride % kWidth == 0) &&
      is_aligned(logits.data, 16) && is_aligned(out, 16))
    f(std::integral_constant<int, kWidth>{});
  else
    f(std::integral_constant<int, 1>{});
}

Targets targets_of(const void* data, const View& view, const Launch& launch, int64_t num_classes) {
  return {data, view.dtype, launch.attrs.i(0), num_classes, report_slot()};
}

void forward(const Launch& launch, Execution& run) {
  const View &logits_view = launch.inputs[0], &target_view = launch.inputs[1], &maximum = launch.outputs[1];
  const Matrix logits = run.rows(logits_view, logits_view.rank() - 1, logits_view.dtype);
  const void* target_data = run.contiguous(target_view, target_view.dtype);
  const bool reduces = launch.attrs.s(1) != "none";
  const int64_t rows = maximum.numel();
  auto* losses = reduces ? run.take<double>(rows) : nullptr;
  if (run.dry()) return;
  const Targets targets = targets_of(target_data, target_view, launch, logits_view.shape.back());
  visit_device_floating(logits.dtype, "cross_entropy", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = device_compute_t<T>;
    if (rows > 0)
      visit_width<T>(logits, nullptr, [&](auto width) {
        cross_entropy_rows<T, width()><<<static_cast<unsigned>(rows), kThreads, 0, stream_of(launch)>>>(
            static_cast<const T*>(logits.data), logits.row_stride, targets, maximum.ptr<C>(),
            launch.outputs[2].ptr<C>(), losses, launch.outputs[0].ptr<C>());
        check_launch("cross_entropy");
      });
    if (!reduces) return;
    add_losses<<<1, kSumThreads, 0, stream_of(launch)>>>(losses, targets, rows, launch.attrs.s(1) == "mean",
                                                         launch.outputs[0].ptr<C>());
    check_launch("cross_entropy");
  });
}

void backward(const Launch& launch, Execution& run) {
  const View &grad_view = launch.inputs[0], &logits_view = launch.inputs[1], &target_view = launch.inputs[2];
  const Matrix logits = run.rows(logits_view, logits_view.rank() - 1, logits_view.dtype);
  const void *target_data = run.contiguous(target_view, target_view.dtype),
             *grad = run.contiguous(grad_view, grad_view.dtype);
  auto* count = launch.attrs.s(1) == "mean" ? run.take<int64_t>(1) : nullptr;
  const int64_t rows = target_view.numel();
  if (run.dry() || launch.outputs[0].numel() == 0) return;
  const Targets targets = targets_of(target_data, target_view, launch, logits_view.shape.back());
  if (count) {
    count_rows<<<1, kSumThreads, 0, stream_of(launch)>>>(targets, rows, count);
    check_launch("cross_entropy_backward");
  }
  visit_device_floating(logits.dtype, "cross_entropy_backward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = device_compute_t<T>;
    T* out = launch.outputs[0].ptr<T>();
    visit_width<T>(logits, out, [&](auto width) {
      cross_entropy_gradient<T, width()><<<static_cast<unsigned>(rows), kThreads, 0, stream_of(launch)>>>(
          static_cast<const C*>(grad), launch.attrs.s(1) == "none", count, static_cast<const T*>(logits.data),
          logits.row_stride, targets, launch.inputs[3].ptr<const C>(), launch.inputs[4].ptr<const C>(), out);
      check_launch("cross_entropy_backward");
    });
  });
}

}  // namespace

void add_cross_entropy_cuda(CudaTable& table) {
  table.add("cross_entropy", launch_of<forward>, workspace_of<forward>);
  table.add("cross_entropy_backward", launch_of<backward>, workspace_of<backward>);
}

}  // namespace blutensor
