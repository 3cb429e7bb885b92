// Reductions over axes: sum, mean, max, min, argmax, and sum_to, the reverse of broadcasting.
#include "ops/all_operators.h"
#include "ops/elementwise/arguments.h"
#include "ops/elementwise/compose.h"
#include "ops/reduce/engine.h"
#include "ops/reduce/reduce_operator.h"

namespace blutensor {

namespace {

const OpRef multiply{"multiply"}, divide{"divide"}, equal{"equal"}, sum{"sum"};

// `visit(fold)` with the fold of sums (or means) for a dtype.
template <bool mean, class Visitor>
decltype(auto) visit_sum(DType dtype, const Visitor& visit) {
  if constexpr (mean) {
    return dtype == DType::float64 ? visit(MeanOf<SumOfDoubles>{}) : visit(MeanOf<SumOfFloats>{});
  } else {
    if (dtype == DType::float64) return visit(SumOfDoubles{});
    return is_floating(dtype) ? visit(SumOfFloats{}) : visit(SumOfIntegers{});
  }
}

template <bool mean>
size_t sum_workspace(const View& x, unsigned axes) {
  const ReduceGeometry g = geometry(x, axes);
  if (are_columns(g, x.dtype)) return columns_workspace(g);
  return visit_sum<mean>(x.dtype, [&](auto fold) { return rows_workspace<decltype(fold)>(g); });
}

template <bool mean>
void run_sum(const View& x, unsigned axes, const View& out, void* workspace) {
  const ReduceGeometry g = geometry(x, axes);
  if (are_columns(g, x.dtype)) return sum_columns(g, x, out, mean, workspace);
  visit_sum<mean>(x.dtype, [&](auto fold) { reduce_rows<decltype(fold)>(g, x, out, workspace); });
}

// Folds of extremes by compute type: float32, float64, and int64 or uint64 for integers.
template <template <class, bool> class Fold, bool largest, class Visitor>
decltype(auto) visit_extreme(DType dtype, const Visitor& visit) {
  if (dtype == DType::float64) return visit(Fold<double, largest>{});
  if (dtype == DType::uint64) return visit(Fold<uint64_t, largest>{});
  return is_floating(dtype) ? visit(Fold<float, largest>{}) : visit(Fold<int64_t, largest>{});
}

// ---------------------------------------------------------------- sum and mean

template <bool mean>
Operator sum_operator(const char* name, const char* doc) {
  Operator o = reduce_operator(name, doc);
  o.infer = [](const OpCall& call) -> std::vector<TensorSpec> {
    const char* op = mean ? "mean" : "sum";
    const Tensor& x = call.inputs[0];
    require_type(!mean || is_floating(x.dtype()), "[mean] expected a floating-point tensor, got ",
                 dtype_name(x.dtype()), "; convert it first: astype(x, float32)");
    const Shape shape = reduced_shape(x.shape(), axes_of(call.attrs, x.rank(), op), call.attrs.b(1));
    return {{sum_dtype(x.dtype()), shape, {}, false}};
  };
  o.workspace = [](const Launch& args) {
    return sum_workspace<mean>(args.inputs[0], axes_of(args.attrs, args.inputs[0].rank(), "sum"));
  };
  o.launch_cpu = [](const Launch& args) {
    run_sum<mean>(args.inputs[0], axes_of(args.attrs, args.inputs[0].rank(), "sum"), args.outputs[0], args.workspace);
  };
  o.gradient = [](GradContext& context) -> Tensors {
    Tensor g = context.grad_output(0);
    if (!g.defined() || !context.needs(0)) return {Tensor{}};
    const Shape& shape = context.input_spec(0).shape;
    const unsigned axes = axes_of(context.attrs(), shape.size(), "sum");
    if (mean)
      g = scaled(g, 1.0 / static_cast<double>(num_elements(shape) / std::max<int64_t>(1, num_elements(g.shape()))));
    return {stretched(g, shape, axes)};
  };
  o.grad_cases = reduce_cases();
  return o;
}

Tensors decompose_mean(std::span<const Tensor> inputs, const Attrs& attrs) {
  const Tensor total = sum({inputs[0]}, attrs);
  const auto length = static_cast<double>(inputs[0].numel()) / static_cast<double>(std::max<int64_t>(1, total.numel()));
  return {divide({total, constant(length, total.dtype())})};
}

void register_sum_to(OperatorRegistry& registry) {
  Operator o;
  o.name = "sum_to";
  o.doc =
      "x summed over the axes along which `shape` broadcasts to x's shape: the gradient of broadcast_to. out: `shape`.";
  o.category = "Gradient helpers";
  o.is_public = false;
  o.inputs = {{.name = "x"}};
  o.attrs = {{"shape", AttrKind::integers, {}, true, {}}};
  o.output_names = {"out"};
  o.infer = [](const OpCall& call) -> std::vector<TensorSpec> {
    const Tensor& x = call.inputs[0];
    const Shape& shape = call.attrs.ints(0);
    require(shape.size() <= x.rank() && broadcast_shapes(x.shape(), shape, "sum_to") == x.shape(),
            "[sum_to] expected a shape that broadcasts to ", x.shape(), ", got ", shape);
    return {{sum_dtype(x.dtype()), shape, {}, false}};
  };
  o.workspace = [](const Launch& args) {
    return sum_workspace<false>(args.inputs[0], broadcast_axes(args.inputs[0].shape, args.attrs.ints(0)));
  };
  o.launch_cpu = [](const Launch& args) {
    run_sum<false>(args.inputs[0], broadcast_axes(args.inputs[0].shape, args.attrs.ints(0)), args.outputs[0],
                   args.workspace);
  };
  o.gradient = [](GradContext& context) -> Tensors {
    const Tensor g = context.grad_output(0);
    if (!g.defined() || !context.needs(0)) return {Tensor{}};
    return {broadcast_to(g, context.input_spec(0).shape)};
  };
  registry.add(std::move(o));
}

// ---------------------------------------------------------------- max, min, argmax

template <template <class, bool> class Fold, bool largest, ReduceOrder order>
void attach_extreme(Operator& o) {
  o.workspace = [](const Launch& args) {
    const View& x = args.inputs[0];
    const ReduceGeometry g = geometry(x, axes_of(args.attrs, x.rank(), "max"), order);
    return visit_extreme<Fold, largest>(x.dtype, [&](auto fold) { return rows_workspace<decltype(fold)>(g); });
  };
  o.launch_cpu = [](const Launch& args) {
    const View& x = args.inputs[0];
    const ReduceGeometry g = geometry(x, axes_of(args.attrs, x.rank(), "max"), order);
    visit_extreme<Fold, largest>(
        x.dtype, [&](auto fold) { reduce_rows<decltype(fold)>(g, x, args.outputs[0], args.workspace); });
  };
}

InferFn infer_extreme(std::string name, bool position) {
  return [name = std::move(name), position](const OpCall& call) -> std::vector<TensorSpec> {
    const Tensor& x = call.inputs[0];
    const unsigned axes = axes_of(call.attrs, x.rank(), name.c_str());
    require(!position || call.attrs.ints(0).size() <= 1, "[", name,
            "] expected one axis, or none for all elements, got ", call.attrs.ints(0));
    for (int axis = 0; axis < x.rank(); ++axis)
      require(!(axes >> axis & 1u) || x.size(axis) > 0, "[", name, "] expected at least one element along axis ", axis,
              ", got shape ", x.shape());
    return {{position ? DType::int64 : x.dtype(), reduced_shape(x.shape(), axes, call.attrs.b(1)), {}, false}};
  };
}

// Shared between equal extremes.
Tensors extreme_gradient(GradContext& context) {
  const Tensor g = context.grad_output(0);
  if (!g.defined() || !context.needs(0)) return {Tensor{}};
  const Tensor x = context.input(0);
  const unsigned axes = axes_of(context.attrs(), x.rank(), "max");
  const Tensor chosen = cast_to(equal({x, stretched(context.output(0), x.shape(), axes)}), g.dtype());
  const Tensor share = divide({g, sum({chosen}, context.attrs())});
  return {multiply({chosen, stretched(share, x.shape(), axes)})};
}

template <bool largest>
Operator extreme_operator(const char* name, const char* doc) {
  Operator o = reduce_operator(name, doc);
  o.infer = infer_extreme(name, false);
  attach_extreme<Extreme, largest, ReduceOrder::by_stride>(o);
  o.save_inputs = 1;
  o.save_outputs = 1;
  o.gradient = extreme_gradient;
  o.grad_cases = reduce_cases();
  return o;
}

template <bool largest>
Operator position_operator(const char* name, const char* doc) {
  Operator o = reduce_operator(name, doc);
  o.infer = infer_extreme(name, true);
  attach_extreme<ArgExtreme, largest, ReduceOrder::logical>(o);
  return o;
}

}  // namespace

void register_reduce(OperatorRegistry& registry) {
  registry.add(sum_operator<false>(
      "sum",
      "Sum over axes (none given: all). float32 and the 16-bit floats accumulate in "
      "float64, float64 with compensation; signed integers and bool "
      "give int64, unsigned ones uint64, and wrap. keepdims keeps the axes with size 1. The sum of nothing is 0."));
  Operator mean =
      sum_operator<true>("mean",
                         "Arithmetic mean over axes (none given: all) of a floating-point tensor, accumulated as sum "
                         "does. keepdims keeps the axes with size 1. The mean of nothing is NaN.");
  mean.decompose = decompose_mean;
  registry.add(std::move(mean));
  register_sum_to(registry);
  registry.add(extreme_operator<true>("max",
                                      "Largest element over axes (none given: all); NaN where there is one. keepdims "
                                      "keeps the axes with size 1. The gradient is shared between equal elements."));
  registry.add(extreme_operator<false>("min",
                                       "Smallest element over axes (none given: all); NaN where there is one. keepdims "
                                       "keeps the axes with size 1. The gradient is shared between equal elements."));
  registry.add(position_operator<true>("argmax",
                                       "Position of the largest element along one axis (none given: in row-major order "
                                       "over all): int64. The first of equals; the first NaN where there is one."));
  registry.add(position_operator<false>("argmin",
                                        "Position of the smallest element along one axis (none given: in row-major "
                                        "order over all): int64. The first of equals; the first NaN where there is "
                                        "one."));
  register_statistics(registry);
}

}  // namespace blutensor
