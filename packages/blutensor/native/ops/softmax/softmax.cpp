// softmax and log_softmax over any axis, and their gradients.
#include "ops/all_operators.h"
#include "ops/kernels.h"
#include "ops/parallel.h"
#include "ops/registry.h"
#include "ops/softmax/row_offsets.h"
#include "ops/softmax/softmax_kernels.h"

namespace blutensor {

namespace {

// A 0-d tensor counts as one row of one element.
int row_axis(int64_t axis, int rank, const char* op) { return normalize_axis(axis, std::max(rank, 1), op); }

// ---------------------------------------------------------------- geometry

int64_t axis_stride(const View& v, int axis) { return v.rank() > 0 ? v.strides[axis] : 1; }
int64_t axis_length(const View& v, int axis) { return v.rank() > 0 ? v.shape[axis] : 1; }
int64_t rows_per_task(int64_t n) { return std::max<int64_t>(1, kElementwiseGrain / std::max<int64_t>(n, 1)); }

// ---------------------------------------------------------------- forward

template <bool kLog>
std::vector<TensorSpec> infer_forward(const OpCall& call) {
  const char* op = kLog ? "log_softmax" : "softmax";
  const Tensor& x = call.inputs[0];
  require_type(is_floating(x.dtype()), "[", op, "] expected a floating-point tensor, got ", describe(x));
  row_axis(call.attrs.i(0), x.rank(), op);
  return {{x.dtype(), x.shape(), {}, false}};
}

// Neighbouring rows side by side in both operands: the last axis is not the softmax axis and has unit stride.
bool has_columns(const View& x, const View& y, int axis) {
  const int last = x.rank() - 1;
  return axis < last && x.strides[last] == 1 && y.strides[last] == 1;
}

template <bool kLog>
void launch_forward(const Launch& launch) {
  const View &x = launch.inputs[0], &y = launch.outputs[0];
  const int axis = row_axis(launch.attrs.i(0), x.rank(), "softmax");
  const int64_t n = axis_length(x, axis), x_stride = axis_stride(x, axis), y_stride = axis_stride(y, axis);
  const RowOffsets x_rows(x, axis), y_rows(y, axis);
  if (n == 0) return;
  if (x.dtype == DType::float32 && has_columns(x, y, axis)) {
    const int64_t columns = x.shape.back();
    if (columns == 0) return;
    // A task takes up to 64 columns of one slab.
    const int64_t strip = std::min<int64_t>(columns, 64), strips = (columns + strip - 1) / strip,
                  slabs = x_rows.count() / columns;
    parallel_for(slabs * strips, rows_per_task(n * strip), [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        const int64_t first = task % strips * strip, row = task / strips * columns + first;
        kernels().softmax.forward_columns(x.ptr<float>() + x_rows(row), x_stride, y.ptr<float>() + y_rows(row),
                                          y_stride, n, std::min(strip, columns - first), kLog);
      }
    });
    return;
  }
  visit_floating(x.dtype, "softmax", [&](auto tag) {
    using T = typename decltype(tag)::type;
    parallel_for(y_rows.count(), rows_per_task(n), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const T* from = x.ptr<T>() + x_rows(row);
        T* to = y.ptr<T>() + y_rows(row);
        if constexpr (std::is_same_v<T, float>) {
          if (x_stride == 1 && y_stride == 1) {
            kernels().softmax.forward_row(from, to, n, kLog);
            continue;
          }
        }
        softmax_forward_reference(from, x_stride, to, y_stride, n, kLog);
      }
    });
  });
}

template <bool kLog>
Tensors forward_gradient(GradContext& ctx) {
  static const OpRef backward{kLog ? "log_softmax_backward" : "softmax_backward"};
  const Tensor grad = ctx.grad_output(0);
  if (!grad.defined() || !ctx.needs(0)) return Tensors(1);
  return {backward({grad, ctx.output(0)}, {ctx.attrs()[0]})};
}

template <bool kLog>
Tensors decompose_forward(std::span<const Tensor> inputs, const Attrs& attrs) {
  static const OpRef maximum{"max"}, subtract{"subtract"}, exponential{"exp"}, sum{"sum"}, divide{"divide"},
      logarithm{"log"};
  const Tensor& x = inputs[0];
  const Attr axes = Attr::of_axes(x.rank() > 0 ? Dims{row_axis(attrs.i(0), x.rank(), "softmax")} : Dims{});
  const Attr keepdims = Attr::of_bool(true);
  const Tensor shifted = subtract({x, maximum({x}, {axes, keepdims})});
  const Tensor e = exponential({shifted});
  const Tensor total = sum({e}, {axes, keepdims});
  return {kLog ? subtract({shifted, logarithm({total})}) : divide({e, total})};
}

// ---------------------------------------------------------------- backward

template <bool kLog>
std::vector<TensorSpec> infer_backward(const OpCall& call) {
  const char* op = kLog ? "log_softmax_backward" : "softmax_backward";
  const Tensor &grad = call.inputs[0], &y = call.inputs[1];
  require_type(is_floating(y.dtype()) && grad.dtype() == y.dtype(), "[", op,
               "] expected two tensors of one floating dtype, got ", describe(grad), " and ", describe(y));
  require(grad.shape() == y.shape(), "[", op, "] expected two tensors of one shape, got ", grad.shape(), " and ",
          y.shape());
  row_axis(call.attrs.i(0), y.rank(), op);
  return {{y.dtype(), y.shape(), {}, false}};
}

template <bool kLog>
void launch_backward(const Launch& launch) {
  const View &grad = launch.inputs[0], &y = launch.inputs[1], &dx = launch.outputs[0];
  const int axis = row_axis(launch.attrs.i(0), y.rank(), "softmax");
  const int64_t n = axis_length(y, axis), g_stride = axis_stride(grad, axis), y_stride = axis_stride(y, axis),
                dx_stride = axis_stride(dx, axis);
  const RowOffsets grad_rows(grad, axis), y_rows(y, axis), dx_rows(dx, axis);
  visit_floating(y.dtype, "softmax", [&](auto tag) {
    using T = typename decltype(tag)::type;
    parallel_for(y_rows.count(), rows_per_task(n), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const T* g = grad.ptr<T>() + grad_rows(row);
        const T* result = y.ptr<T>() + y_rows(row);
        T* to = dx.ptr<T>() + dx_rows(row);
        if constexpr (std::is_same_v<T, float>) {
          if (g_stride == 1 && y_stride == 1 && dx_stride == 1) {
            kernels().softmax.backward_row(g, result, to, n, kLog);
            continue;
          }
        }
        softmax_backward_reference(g, g_stride, result, y_stride, to, dx_stride, n, kLog);
      }
    });
  });
}

template <bool kLog>
void register_one(OperatorRegistry& registry) {
  const AttrSpec axis{"axis", AttrKind::integer, Attr::of_int(-1), false, {}};
  {
    Operator op;
    op.name = kLog ? "log_softmax" : "softmax";
    op.doc = kLog
                 ? "Logarithm of softmax, x - max(x) - log(sum(exp(x - max(x)))) along `axis`, without overflow or "
                   "cancellation. x: any shape, any "
                   "floating dtype (statistics in float32 for the 16-bit floats); result like x. Rows of -inf give NaN."
                 : "exp(x - max(x)) / sum(exp(x - max(x))) along `axis`. x: any shape, any floating dtype (statistics "
                   "in float32 for the 16-bit floats); "
                   "result like x. Results below 2^-126 may be 0. Rows of -inf give NaN.";
    op.category = "Neural network";
    op.inputs = {{"x", InputSpec::Kind::required}};
    op.attrs = {axis};
    op.output_names = {"y"};
    op.infer = infer_forward<kLog>;
    op.launch_cpu = launch_forward<kLog>;
    op.gradient = forward_gradient<kLog>;
    op.save_outputs = 0b1;
    op.decompose = decompose_forward<kLog>;
    op.grad_cases = {{{{4, 5}}, {Attr::of_int(-1)}, "normal"},
                     {{{2, 3, 4}}, {Attr::of_int(1)}, "normal"},
                     {{{3, 1}}, {Attr::of_int(0)}, "normal"}};
    registry.add(std::move(op));
  }
  {
    Operator op;
    op.name = kLog ? "log_softmax_backward" : "softmax_backward";
    op.doc =
        kLog
            ? "Gradient of log_softmax from that of its result y: grad_output - exp(y) * sum(grad_output) along `axis`."
            : "Gradient of softmax from that of its result y: y * (grad_output - sum(grad_output * y)) along `axis`.";
    op.category = "Gradients";
    op.inputs = {{"grad_output", InputSpec::Kind::required}, {"y", InputSpec::Kind::required}};
    op.attrs = {axis};
    op.output_names = {"grad_x"};
    op.infer = infer_backward<kLog>;
    op.launch_cpu = launch_backward<kLog>;
    op.is_public = false;
    registry.add(std::move(op));
  }
}

}  // namespace

void register_softmax(OperatorRegistry& registry) {
  register_one<false>(registry);
  register_one<true>(registry);
}

}  // namespace blutensor
