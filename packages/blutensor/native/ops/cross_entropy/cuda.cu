// cross_entropy on CUDA: -log softmax(logits)[target] of rows of logits [N, V], and its gradient.
//
// A block takes a row, or a warp a short one: one pass for its maximum and sum of exponentials. The losses of the rows are added by one block,
// in double, in an order that N decides. Backward: one pass, from maximum and log_sum. A target out of range is reported
// (ops/cuda/report.h), and its row counts for nothing.
// Bytes: forward N V elements, backward 2 N V.
#include "ops/cross_entropy/sums.cuh"
#include "ops/cuda/report.h"
#include "ops/cuda/table.h"
#include "ops/matmul/operand.h"
#include "ops/softmax/online.cuh"

namespace blutensor {

using namespace cuda;

namespace {

constexpr int kThreads = 512, kSumThreads = 1024;
constexpr int64_t kWarpRow = 1024;  // a longer row takes a block

struct Targets {
  const void* data;
  DType dtype;
  int64_t ignore_index, num_classes;
  Report* slot;

  // -1 where the row is ignored, or the target is no class.
  __device__ int64_t at(int64_t row) const {
    const int64_t target = load_element<int64_t>(data, row, dtype);
    if (target == ignore_index) return -1;
    if (target >= 0 && target < num_classes) return target;
    report(slot, ReportCode::cross_entropy_target, target, num_classes);
    return -1;
  }
};

template <class T, int kRow, int kWidth>
__global__ void __launch_bounds__(kThreads)
    cross_entropy_rows(const T* logits, int64_t row_stride, int64_t rows, const Targets targets, double smoothing,
                       device_compute_t<T>* maximum, device_compute_t<T>* log_sum, double* losses,
                       device_compute_t<T>* loss) {
  using C = device_compute_t<T>;
  __shared__ MaxSum<C> shared[kThreads / kWarpSize];
  __shared__ C below[kThreads / kWarpSize];
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (kThreads / kRow) + threadIdx.x / kRow;
  if (row >= rows) return;
  const T* x = logits + row * row_stride;
  const MaxSum<C> all = row_max_sum<kRow, kWidth>(x, targets.num_classes, shared);
  C sum_below = 0;  // of maximum - logit
  if (smoothing > 0) {
    for (int64_t j = threadIdx.x % kRow; j < targets.num_classes; j += kRow)
      sum_below += all.maximum - convert<C>(x[j]);
    if constexpr (kRow == kWarpSize)
      sum_below = warp_sum(sum_below);
    else
      sum_below = block_sum<kRow>(sum_below, below);
  }
  if (threadIdx.x % kRow > 0) return;
  const double log_of_sum = log(static_cast<double>(all.sum));
  maximum[row] = all.maximum;
  log_sum[row] = static_cast<C>(log_of_sum);
  const int64_t target = targets.at(row);
  double value = 0;
  if (target >= 0) {
    value = static_cast<double>(all.maximum) - static_cast<double>(convert<C>(x[target]));
    if (smoothing > 0)
      value = (1 - smoothing) * value +
              smoothing * (static_cast<double>(sum_below) / static_cast<double>(targets.num_classes));
    value += log_of_sum;
  }
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
  double sum = losses_of_thread<kSumThreads>(losses, rows);
  double count =
      static_cast<double>(count_of_thread<kSumThreads>(targets.data, targets.dtype, targets.ignore_index, rows));
  sum = block_sum<kSumThreads>(sum, sums);
  count = block_sum<kSumThreads>(count, counts);
  if (threadIdx.x == 0) *loss = static_cast<C>(mean ? sum / count : sum);  // 0 / 0 where none counts
}

__global__ void __launch_bounds__(kSumThreads) count_rows(const Targets targets, int64_t rows, int64_t* count) {
  __shared__ double counts[kSumThreads / kWarpSize];
  double sum =
      static_cast<double>(count_of_thread<kSumThreads>(targets.data, targets.dtype, targets.ignore_index, rows));
  sum = block_sum<kSumThreads>(sum, counts);
  if (threadIdx.x == 0) *count = static_cast<int64_t>(sum);
}

template <class T, int kRow, int kWidth>
__global__ void __launch_bounds__(kThreads)
    cross_entropy_gradient(const device_compute_t<T>* grad, bool grad_per_row, const int64_t* count, const T* logits,
                           int64_t row_stride, int64_t rows, const Targets targets, double smoothing,
                           const device_compute_t<T>* maximum, const device_compute_t<T>* log_sum, T* out) {
  using C = device_compute_t<T>;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (kThreads / kRow) + threadIdx.x / kRow,
                n = targets.num_classes;
  if (row >= rows) return;
  const T* x = logits + row * row_stride;
  T* dx = out + row * n;
  const int64_t target = targets.at(row);
  const C scale = grad[grad_per_row ? row : 0] / (count ? static_cast<C>(*count) : C{1}), top = maximum[row],
          log_of_sum = log_sum[row];
  const C share = static_cast<C>(smoothing / static_cast<double>(n)), hit = static_cast<C>(1 - smoothing) + share;
  for (int64_t j = static_cast<int64_t>(threadIdx.x % kRow) * kWidth; j < n; j += kRow * kWidth) {
    Pack<C, kWidth> v = {};
    if (target >= 0) {
      v = convert_pack<C>(load_pack<kWidth>(x + j));
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        const C probability = exponential((v[i] - top) - log_of_sum);
        v[i] = (probability - (j + i == target ? hit : share)) * scale;
      }
    }
    store_pack(dx + j, convert_pack<T>(v));
  }
}

// ---------------------------------------------------------------- host

// Calls f(threads of a row, width of a pack) as constants.
template <class T, class F>
void visit_row(const Matrix& logits, const void* out, const F& f) {
  constexpr int kWidth = kPackOf<T>;
  const bool packs = logits.cols % kWidth == 0 && (logits.rows == 1 || logits.row_stride % kWidth == 0) &&
                     is_aligned(logits.data, 16) && is_aligned(out, 16);
  const auto visit_width = [&](auto row) {
    packs ? f(row, std::integral_constant<int, kWidth>{}) : f(row, std::integral_constant<int, 1>{});
  };
  if (logits.cols <= kWarpRow)
    visit_width(std::integral_constant<int, kWarpSize>{});
  else
    visit_width(std::integral_constant<int, kThreads>{});
}

unsigned row_blocks(int64_t rows, int threads_of_row) {
  const int64_t per_block = kThreads / threads_of_row;
  return static_cast<unsigned>((rows + per_block - 1) / per_block);
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
      visit_row<T>(logits, nullptr, [&](auto row, auto width) {
        cross_entropy_rows<T, row(), width()><<<row_blocks(rows, row()), kThreads, 0, stream_of(launch)>>>(
            static_cast<const T*>(logits.data), logits.row_stride, rows, targets, launch.attrs.f(2), maximum.ptr<C>(),
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
    visit_row<T>(logits, out, [&](auto row, auto width) {
      cross_entropy_gradient<T, row(), width()><<<row_blocks(rows, row()), kThreads, 0, stream_of(launch)>>>(
          static_cast<const C*>(grad), launch.attrs.s(1) == "none", count, static_cast<const T*>(logits.data),
          logits.row_stride, rows, targets, launch.attrs.f(2), launch.inputs[3].ptr<const C>(),
          launch.inputs[4].ptr<const C>(), out);
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
