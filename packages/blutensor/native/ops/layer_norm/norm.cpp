// Rows of layer_norm and rms_norm on the host: cut into tasks, kernels from the table, sums over rows.
//
// The gradients of weight and bias are sums over M in two stages: blocks of rows, cut by M alone, each add their rows
// into partial sums in workspace; the partial sums are added in the order of the blocks, in double.
#include "ops/layer_norm/norm.h"

#include "ops/kernels.h"
#include "ops/layer_norm/layer_norm_kernels.h"
#include "ops/layer_norm/reference.h"
#include "ops/parallel.h"

namespace blutensor {

Shape leading_shape(const Shape& shape, int trailing) {
  Shape leading;
  for (int i = 0; i + trailing < shape.size(); ++i) leading.push_back(shape[i]);
  return leading;
}

Shape trailing_shape(const Shape& shape, int trailing) {
  Shape out;
  for (int i = shape.size() - trailing; i < shape.size(); ++i) out.push_back(shape[i]);
  return out;
}

int check_norm_axes(const char* op, const Tensor& x, int64_t num_axes) {
  require_type(is_floating(x.dtype()), "[", op, "] expected floating-point x, got ", describe(x));
  require(num_axes >= 1 && num_axes <= x.rank(), "[", op, "] expected to normalise 1 to ", x.rank(),
          " trailing axes of x ", x.shape(), ", got ", num_axes);
  return static_cast<int>(num_axes);
}

void check_norm_parameter(const char* op, const Tensor& parameter, const char* name, const Tensor& x,
                          const Shape& shape) {
  if (!parameter.defined()) return;
  require_type(parameter.dtype() == x.dtype(), "[", op, "] expected ", name, " of dtype ", dtype_name(x.dtype()),
               " like x, got ", describe(parameter));
  require(parameter.shape() == shape, "[", op, "] expected ", name, " of shape ", shape, " for x ", x.shape(), ", got ",
          parameter.shape());
}

void check_norm_target(const char* op, const Tensor& target, const char* name, const Shape& shape) {
  if (!target.defined()) return;
  require(target.shape() == shape && is_floating(target.dtype()), "[", op, "] expected ", name, " ", shape, ", got ",
          describe(target));
}

std::vector<TensorSpec> norm_gradient_spec(const char* op, const Tensor& x, const Tensor& sum) {
  if (!sum.defined()) return {{x.dtype(), x.shape(), {}, false}};
  require(sum.shape() == x.shape() && sum.dtype() == x.dtype() && sum.contiguous(), "[", op,
          "] expected a contiguous x_grad like x, ", describe(x), ", got ", describe(sum));
  return {{x.dtype(), {0}, {}, false}};
}

namespace {

constexpr int64_t kMaxBlocks = 64;

// Rows per parallel task of the forward pass.
int64_t forward_grain(int64_t cols) { return std::max<int64_t>(1, kElementwiseGrain / std::max<int64_t>(1, cols)); }
int64_t backward_grain(int64_t rows) { return std::max<int64_t>(16, (rows + kMaxBlocks - 1) / kMaxBlocks); }

template <class T>
void forward(const Matrix& x, const void* weight, const void* bias, const NormForward& a) {
  using C = compute_t<T>;
  parallel_for(x.rows, forward_grain(x.cols), [&](int64_t begin, int64_t end) {
    const T* rows = static_cast<const T*>(x.data) + begin * x.row_stride;
    T* y = a.y.ptr<T>() + begin * x.cols;
    C *mean = a.mean.defined() ? a.mean.ptr<C>() + begin : nullptr, *rstd = a.rstd.ptr<C>() + begin;
    if constexpr (std::is_same_v<T, float>)
      kernels().layer_norm.forward_f32({rows, x.row_stride, static_cast<const T*>(weight), static_cast<const T*>(bias),
                                        static_cast<float>(a.eps), end - begin, x.cols, y, mean, rstd});
    else
      layer_norm_forward_reference<T>(rows, x.row_stride, static_cast<const T*>(weight), static_cast<const T*>(bias),
                                      a.eps, end - begin, x.cols, y, mean, rstd);
  });
}

}  // namespace

void norm_forward(const NormForward& a, Execution& run) {
  const Matrix rows = run.rows(a.x, a.x.rank() - a.num_axes, a.x.dtype);
  const void *weight = run.contiguous(a.weight, a.x.dtype), *bias = run.contiguous(a.bias, a.x.dtype);
  if (run.dry()) return;
  visit_floating(a.x.dtype, "layer_norm",
                 [&](auto tag) { forward<typename decltype(tag)::type>(rows, weight, bias, a); });
}

namespace {

// Where the rows of a task's block go before they are added to dx: of each thread. None where dx is written.
struct AddScratch {
  char* data = nullptr;
  size_t bytes = 0;
  int32_t threads = 0;  // no limit
};

template <class T>
void backward_blocks(const Matrix& dy, const Matrix& x, const void* weight, const void* mean, const void* rstd, T* dx,
                     compute_t<T>* partial, const AddScratch& scratch) {
  using C = compute_t<T>;
  const int64_t grain = backward_grain(x.rows), cols = x.cols;
  const auto task = [&](int64_t begin, int64_t end, int32_t thread) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t row = block * grain, rows = std::min(grain, x.rows - row);
      const T *dy_rows = static_cast<const T*>(dy.data) + row * dy.row_stride,
              *x_rows = static_cast<const T*>(x.data) + row * x.row_stride;
      const C *means = mean ? static_cast<const C*>(mean) + row : nullptr, *rstds = static_cast<const C*>(rstd) + row;
      C *dweight = partial + 2 * block * cols, *dbias = dweight + cols;
      T *to = dx + row * cols, *fresh = to;
      if (scratch.data) fresh = reinterpret_cast<T*>(scratch.data + static_cast<size_t>(thread) * scratch.bytes);
      if constexpr (std::is_same_v<T, float>)
        kernels().layer_norm.backward_f32({dy_rows, dy.row_stride, x_rows, x.row_stride, static_cast<const T*>(weight),
                                           means, rstds, rows, cols, fresh, dweight, dbias});
      else
        layer_norm_backward_reference<T>(dy_rows, dy.row_stride, x_rows, x.row_stride, static_cast<const T*>(weight),
                                         means, rstds, rows, cols, fresh, dweight, dbias);
      if (fresh == to) continue;
      for (int64_t i = 0; i < rows * cols; ++i)
        to[i] = static_cast<T>(static_cast<C>(to[i]) + static_cast<C>(fresh[i]));
    }
  };
  parallel_for_threads((x.rows + grain - 1) / grain, 1, task, scratch.threads);
}

// total[j] = sum over blocks of partial[block][j], j in [0, 2 cols).
template <class C>
void add_blocks(const C* partial, int64_t blocks, int64_t width, C* total) {
  constexpr int64_t kColumns = 64;
  parallel_for((width + kColumns - 1) / kColumns, 16, [&](int64_t begin, int64_t end) {
    for (int64_t j = begin * kColumns; j < std::min(width, end * kColumns); j += kColumns) {
      double sums[kColumns] = {};
      const int64_t count = std::min(kColumns, width - j);
      for (int64_t block = 0; block < blocks; ++block)
        for (int64_t i = 0; i < count; ++i) sums[i] += static_cast<double>(partial[block * width + j + i]);
      for (int64_t i = 0; i < count; ++i) total[j + i] = static_cast<C>(sums[i]);
    }
  });
}

}  // namespace

void norm_backward(const NormBackward& a, Execution& run) {
  const DType dtype = a.x.dtype, statistics = accumulation_dtype(dtype);
  const int leading = a.x.rank() - a.num_axes;
  const Matrix dy = run.rows(a.grad, leading, dtype), x = run.rows(a.x, leading, dtype);
  const void *weight = run.contiguous(a.weight, dtype), *mean = run.contiguous(a.mean, statistics),
             *rstd = run.contiguous(a.rstd, statistics);
  const int64_t grain = backward_grain(x.rows), blocks = (x.rows + grain - 1) / grain;
  const Matrix partial = run.scratch(blocks, 2 * x.cols, statistics), total = run.scratch(2, x.cols, statistics);
  AddScratch add;
  if (a.accumulate_x) {
    add.bytes = (static_cast<size_t>(grain * x.cols) * dtype_size(dtype) + 63) / 64 * 64;
    add.threads = run.take_per_thread(add.bytes, &add.data);
  }
  if (run.dry()) return;
  visit_floating(dtype, "layer_norm_backward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = compute_t<T>;
    backward_blocks<T>(dy, x, weight, mean, rstd, a.dx.ptr<T>(), static_cast<C*>(partial.data), add);
    if (a.dweight.defined() || a.dbias.defined())
      add_blocks<C>(static_cast<const C*>(partial.data), blocks, 2 * x.cols, static_cast<C*>(total.data));
  });
  if (a.dweight.defined()) run.store(total.row_block(0, 1), a.dweight, a.accumulate_weight);
  if (a.dbias.defined()) run.store(total.row_block(1, 1), a.dbias, a.accumulate_bias);
}

}  // namespace blutensor
