// take_along_axis: of every line of x along an axis, the elements at that line's own indices; and its gradient.
//
// Shapes: x [..., N, ...], indices [..., M, ...] with the same other axes; out like indices. Backward adds to lines of
// zeros, one line after another element by element: an order that the shapes decide.
#include "ops/all_operators.h"
#include "ops/matmul/operand.h"
#include "ops/parallel.h"
#include "ops/registry.h"
#include "ops/softmax/row_offsets.h"

namespace blutensor {

namespace {

int check_lines(const char* op, const Shape& x, const Tensor& indices, int64_t requested_axis) {
  require_type(is_integer(indices.dtype()), "[", op, "] expected integer indices, got ", describe(indices));
  require(x.size() == indices.rank() && x.size() > 0, "[", op, "] expected indices of as many axes as x, ", x, ", got ",
          indices.shape());
  const int axis = normalize_axis(requested_axis, x.size(), op);
  for (int i = 0; i < x.size(); ++i)
    require(i == axis || x[i] == indices.shape()[i], "[", op, "] expected indices like x ", x, " in all axes but ",
            axis, ", got ", indices.shape());
  return axis;
}

// Calls use(line, j, index) for all places of lines [begin, end), in order; indices are checked and not negative.
template <class Use>
void for_each_index(const View& indices, int axis, int64_t size, int64_t begin, int64_t end, const Use& use) {
  const RowOffsets lines(indices, axis);
  const int64_t length = indices.shape[axis], stride = indices.strides[axis];
  visit_dtype(indices.dtype, [&](auto tag) {
    using Index = typename decltype(tag)::type;
    if constexpr (std::is_integral_v<Index> && !std::is_same_v<Index, bool>) {
      for (int64_t line = begin; line < end; ++line) {
        const Index* at = indices.ptr<Index>() + lines(line);
        for (int64_t j = 0; j < length; ++j) {
          const auto value = static_cast<int64_t>(at[j * stride]);
          if (value < -size || value >= size)
            fail(Status::index, "[take_along_axis] expected an index from ", -size, " to ", size - 1, " of axis ", axis,
                 ", got ", value);
          use(line, j, value < 0 ? value + size : value);
        }
      }
    }
  });
}

int64_t lines_per_task(int64_t length) {
  return std::max<int64_t>(1, kElementwiseGrain / std::max<int64_t>(1, length));
}

// ---------------------------------------------------------------- forward

std::vector<TensorSpec> infer_take(const OpCall& call) {
  check_lines("take_along_axis", call.inputs[0].shape(), call.inputs[1], call.attrs.i(0));
  return {{call.inputs[0].dtype(), call.inputs[1].shape(), {}, false}};
}

void launch_take(const Launch& launch) {
  const View &x = launch.inputs[0], &indices = launch.inputs[1], &out = launch.outputs[0];
  const int axis = normalize_axis(launch.attrs.i(0), x.rank(), "take_along_axis");
  const RowOffsets x_lines(x, axis), out_lines(out, axis);
  visit_dtype(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    parallel_for(out_lines.count(), lines_per_task(out.shape[axis]), [&](int64_t begin, int64_t end) {
      for_each_index(indices, axis, x.shape[axis], begin, end, [&](int64_t line, int64_t j, int64_t index) {
        out.ptr<T>()[out_lines(line) + j * out.strides[axis]] = x.ptr<T>()[x_lines(line) + index * x.strides[axis]];
      });
    });
  });
}

Tensors take_gradient(GradContext& ctx) {
  static const OpRef backward{"take_along_axis_backward"};
  Tensors grads(2);
  if (const Tensor g = ctx.grad_output(0); g.defined() && ctx.needs(0)) {
    const Shape& x = ctx.input_spec(0).shape;
    const int axis = normalize_axis(ctx.attrs().i(0), x.size(), "take_along_axis");
    grads[0] = backward({g, ctx.input(1)}, {Attr::of_int(axis), Attr::of_int(x[axis])});
  }
  return grads;
}

// ---------------------------------------------------------------- backward

std::vector<TensorSpec> infer_backward(const OpCall& call) {
  const char* op = "take_along_axis_backward";
  const Tensor &grad = call.inputs[0], &indices = call.inputs[1];
  require_type(is_floating(grad.dtype()), "[", op, "] expected a floating-point grad, got ", describe(grad));
  require(grad.shape() == indices.shape(), "[", op, "] expected grad of shape ", indices.shape(), ", got ",
          grad.shape());
  Shape shape = grad.shape();
  const int axis = normalize_axis(call.attrs.i(0), shape.size(), op);
  require(call.attrs.i(1) >= 0, "[", op, "] expected a size of at least 0, got ", call.attrs.i(1));
  shape[axis] = call.attrs.i(1);
  check_lines(op, shape, indices, axis);
  return {{grad.dtype(), shape, {}, false}};
}

void execute_backward(const Launch& launch, Execution& run) {
  const View &grad = launch.inputs[0], &indices = launch.inputs[1], &out = launch.outputs[0];
  const int axis = static_cast<int>(launch.attrs.i(0));
  const DType sums = accumulation_dtype(grad.dtype);
  // 16-bit gradients are added in float32.
  const Matrix scratch =
      sums == out.dtype ? Matrix{out.data, sums, 1, out.numel(), out.numel(), 1} : run.scratch(1, out.numel(), sums);
  if (run.dry()) return;
  const RowOffsets grad_lines(grad, axis), out_lines(out, axis);
  const int64_t size = out.shape[axis], step = out.strides[axis];
  visit_floating(grad.dtype, "take_along_axis", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = compute_t<T>;
    auto* to = static_cast<C*>(scratch.data);
    parallel_for(out_lines.count(), lines_per_task(std::max(size, grad.shape[axis])), [&](int64_t begin, int64_t end) {
      for (int64_t line = begin; line < end; ++line)
        for (int64_t i = 0; i < size; ++i) to[out_lines(line) + i * step] = C{0};
      for_each_index(indices, axis, size, begin, end, [&](int64_t line, int64_t j, int64_t index) {
        to[out_lines(line) + index * step] += static_cast<C>(grad.ptr<T>()[grad_lines(line) + j * grad.strides[axis]]);
      });
    });
  });
  if (scratch.data != out.data) run.store(scratch, out);
}

Tensors backward_gradient(GradContext& ctx) {
  static const OpRef take{"take_along_axis"};
  Tensors grads(2);
  if (const Tensor g = ctx.grad_output(0); g.defined() && ctx.needs(0))
    grads[0] = take({g, ctx.input(1)}, {ctx.attrs()[0]});
  return grads;
}

}  // namespace

void register_take_along_axis(OperatorRegistry& registry);

void register_take_along_axis(OperatorRegistry& registry) {
  using Kind = InputSpec::Kind;
  const AttrSpec axis{"axis", AttrKind::integer, Attr::of_int(-1), false, {}};
  {
    Operator op;
    op.name = "take_along_axis";
    op.doc =
        "Of every line of x along an axis, the elements at that line's indices: out[..., j, ...] = x[..., indices[..., "
        "j, ...], ...]. x: any dtype; indices: integers of x's shape in all other axes, negative ones counted from the "
        "end, IndexError outside; out: the shape of indices. Gradients of an element that was taken several times add "
        "up in the order of j.";
    op.category = "Indexing";
    op.inputs = {{"x", Kind::required}, {"indices", Kind::required}};
    op.attrs = {axis};
    op.output_names = {"out"};
    op.infer = infer_take;
    op.launch_cpu = launch_take;
    op.gradient = take_gradient;
    op.save_inputs = 0b10;
    registry.add(std::move(op));
  }
  {
    Operator op;
    op.name = "take_along_axis_backward";
    op.doc =
        "Gradient of take_along_axis with respect to x, which has `size` elements along the axis: grad added at "
        "indices.";
    op.category = "Gradients";
    op.inputs = {{"grad", Kind::required}, {"indices", Kind::required}};
    op.attrs = {axis, {"size", AttrKind::integer, {}, true, {}}};
    op.output_names = {"x_grad"};
    op.infer = infer_backward;
    op.workspace = workspace_of<execute_backward>;
    op.launch_cpu = launch_of<execute_backward>;
    op.gradient = backward_gradient;
    op.save_inputs = 0b10;
    op.is_public = false;
    registry.add(std::move(op));
  }
}

}  // namespace blutensor
