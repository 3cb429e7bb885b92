// Reductions over axes, beside those of reduce.cpp: products, counts, variances, log-sum-exp.
#include "ops/reduce/engine.h"
#include "ops/reduce/reduce_operator.h"

namespace blutensor {

namespace {

const OpRef add{"add"}, subtract{"subtract"}, multiply{"multiply"}, divide{"divide"}, mean{"mean"}, where{"where"},
    equal{"equal"};

unsigned axes_of(const Launch& args) { return axes_of(args.attrs, args.inputs[0].rank(), "reduce"); }
unsigned axes_of(GradContext& context) {
  return axes_of(context.attrs(), context.input_spec(0).shape.size(), "reduce");
}

template <class Fold>
void attach(Operator& o) {
  o.workspace = [](const Launch& args) { return rows_workspace<Fold>(geometry(args.inputs[0], axes_of(args))); };
  if constexpr (requires { Fold::finish(Fold::start(), 1); })
    o.launch_cpu = [](const Launch& args) {
      reduce_rows<Fold>(geometry(args.inputs[0], axes_of(args)), args.inputs[0], args.outputs[0], args.workspace);
    };
}

InferFn infer(std::string name, DType (*result)(DType), bool only_floats) {
  return [name = std::move(name), result, only_floats](const OpCall& call) -> std::vector<TensorSpec> {
    const Tensor& x = call.inputs[0];
    require_type(!only_floats || is_floating(x.dtype()), "[", name, "] expected a floating-point tensor, got ",
                 dtype_name(x.dtype()), "; convert it first: astype(x, float32)");
    const unsigned axes = axes_of(call.attrs, x.rank(), name.c_str());
    return {{result(x.dtype()), reduced_shape(x.shape(), axes, call.attrs.b(1)), {}, false}};
  };
}

// ---------------------------------------------------------------- any, all, count_nonzero

template <class Fold>
Operator counting(const char* name, const char* doc, DType (*result)(DType)) {
  Operator o = reduce_operator(name, doc);
  o.infer = infer(name, result, false);
  attach<Fold>(o);
  return o;
}

// ---------------------------------------------------------------- prod

// The products of all other elements: of those before times those behind, along the reduced axes as one line. Divided
// by nothing, so that zeros do no harm.
Tensor others(const Tensor& x, unsigned axes) {
  static const OpRef permute{"permute_dims"}, cumulative_prod{"cumulative_prod"};
  Dims order, back = Dims::filled(x.rank(), 0);
  Shape line;
  int64_t length = 1;
  for (int axis = 0; axis < x.rank(); ++axis)
    if (!(axes >> axis & 1u)) {
      order.push_back(axis);
      line.push_back(x.size(axis));
    }
  for (int axis = 0; axis < x.rank(); ++axis)
    if (axes >> axis & 1u) {
      order.push_back(axis);
      length *= x.size(axis);
    }
  line.push_back(length);
  Shape moved;
  for (int i = 0; i < x.rank(); ++i) {
    moved.push_back(x.size(static_cast<int>(order[i])));
    back[static_cast<int>(order[i])] = i;
  }
  const Tensor rows = reshaped(permute({x}, {Attr::of_ints(order)}), line);
  const auto products = [&](bool reverse) {
    return cumulative_prod({rows}, {Attr::of_int(-1), Attr::of_bool(reverse), Attr::of_bool(true)});
  };
  return permute({reshaped(multiply({products(false), products(true)}), moved)}, {Attr::of_ints(back)});
}

Operator prod_operator() {
  Operator o =
      reduce_operator("prod",
                      "Product over axes (none given: all). Floats accumulate in float64; signed integers and bool "
                      "give int64, unsigned "
                      "ones uint64, and wrap. keepdims keeps the axes with size 1. The product of nothing is 1.");
  o.infer = infer("prod", sum_dtype, false);
  o.workspace = [](const Launch& args) {
    return rows_workspace<ProductOfFloats>(geometry(args.inputs[0], axes_of(args)));
  };
  static_assert(sizeof(ProductOfFloats::Acc) == sizeof(ProductOfIntegers::Acc));
  o.launch_cpu = [](const Launch& args) {
    const View& x = args.inputs[0];
    const ReduceGeometry g = geometry(x, axes_of(args));
    if (is_floating(x.dtype)) return reduce_rows<ProductOfFloats>(g, x, args.outputs[0], args.workspace);
    reduce_rows<ProductOfIntegers>(g, x, args.outputs[0], args.workspace);
  };
  o.save_inputs = 1;
  o.gradient = [](GradContext& context) -> Tensors {
    const Tensor g = context.grad_output(0);
    if (!g.defined() || !context.needs(0)) return {Tensor{}};
    const Tensor x = context.input(0);
    const unsigned axes = axes_of(context);
    return {multiply({stretched(g, x.shape(), axes), others(x, axes)})};
  };
  o.grad_cases = reduce_cases();
  return o;
}

// ---------------------------------------------------------------- var and std

double degrees(int64_t length, const Attrs& attrs) { return static_cast<double>(length) - attrs.f(2); }

template <bool root>
void launch_variance(const Launch& args) {
  const ReduceGeometry g = geometry(args.inputs[0], axes_of(args));
  const double divisor = std::max(0.0, degrees(g.length, args.attrs));
  reduce_rows<Moments>(g, args.inputs[0], args.outputs[0], args.workspace,
                       [divisor](const Moments::Acc& state, int64_t) {
                         const double variance = state.squares / divisor;
                         return root ? std::sqrt(variance) : variance;
                       });
}

template <bool root>
Tensors variance_gradient(GradContext& context) {
  Tensor g = context.grad_output(0);
  if (!g.defined() || !context.needs(0)) return {Tensor{}};
  const Tensor x = context.input(0);
  const unsigned axes = axes_of(context);
  const Attrs keep{context.attrs()[0], Attr::of_bool(true)};
  const Tensor deviation = subtract({x, mean({x}, keep)});
  const double length = static_cast<double>(x.numel()) / static_cast<double>(std::max<int64_t>(1, g.numel()));
  const double divisor = std::max(0.0, length - context.attrs().f(2));
  if (root) {  // the gradient of a root of 0 is taken as 0
    const Tensor out = context.output(0), zero = constant(0, g.dtype());
    g = where({equal({out, zero}), zero, divide({g, out})});
  }
  return {multiply({scaled(deviation, (root ? 1 : 2) / divisor), stretched(g, x.shape(), axes)})};
}

template <bool root>
Operator variance_operator(const char* name, const char* doc) {
  Operator o = reduce_operator(name, doc);
  o.attrs.push_back({"correction", AttrKind::floating, Attr::of_float(0), false, {}});
  o.infer = infer(name, [](DType dtype) { return dtype; }, true);
  attach<Moments>(o);
  o.launch_cpu = launch_variance<root>;
  o.save_inputs = 1;
  o.save_outputs = root;
  o.gradient = variance_gradient<root>;
  o.grad_cases = reduce_cases();
  o.grad_cases.push_back({{{3, 5}}, {Attr::of_axes({1}), Attr::of_bool(false), Attr::of_float(1)}});
  return o;
}

// ---------------------------------------------------------------- logsumexp

Operator logsumexp_operator() {
  Operator o =
      reduce_operator("logsumexp",
                      "log(sum(e^x)) over axes (none given: all) of a floating-point tensor, without overflow, "
                      "accumulated in float64. keepdims keeps the axes with size 1. That of nothing is -inf.");
  o.infer = infer("logsumexp", [](DType dtype) { return dtype; }, true);
  attach<LogOfSum>(o);
  o.save_inputs = 1;
  o.save_outputs = 1;
  o.gradient = [](GradContext& context) -> Tensors {
    static const OpRef exp{"exp"};
    const Tensor g = context.grad_output(0);
    if (!g.defined() || !context.needs(0)) return {Tensor{}};
    const Tensor x = context.input(0);
    const unsigned axes = axes_of(context);
    const Tensor share = exp({subtract({x, stretched(context.output(0), x.shape(), axes)})});
    return {multiply({stretched(g, x.shape(), axes), share})};
  };
  o.grad_cases = reduce_cases();
  return o;
}

}  // namespace

void register_statistics(OperatorRegistry& registry) {
  const auto to_bool = [](DType) { return DType::boolean; };
  registry.add(
      counting<AnyTrue>("any",
                        "Whether any element over axes (none given: all) is true: bool; numbers count as true "
                        "when they are not zero (NaN is true). keepdims keeps the axes with size 1. Of nothing: "
                        "false.",
                        to_bool));
  registry.add(counting<AllTrue>("all",
                                 "Whether all elements over axes (none given: all) are true: bool; numbers count as "
                                 "true when they are not zero (NaN is true). keepdims keeps the axes with size 1. Of "
                                 "nothing: true.",
                                 to_bool));
  registry.add(counting<CountTrue>("count_nonzero",
                                   "How many elements over axes (none given: all) are not zero: int64 (NaN is not "
                                   "zero). keepdims keeps the axes with size 1.",
                                   [](DType) { return DType::int64; }));
  registry.add(prod_operator());
  registry.add(variance_operator<false>(
      "var",
      "Variance over axes (none given: all) of a floating-point tensor: the sum of squared deviations from the mean by "
      "n "
      "- correction (0: of a population, 1: of a sample), accumulated in float64. keepdims keeps the axes with size 1. "
      "NaN where n - correction is not positive."));
  registry.add(variance_operator<true>("std",
                                       "Standard deviation over axes (none given: all) of a floating-point tensor: the "
                                       "root of var. The gradient at 0 is "
                                       "0."));
  registry.add(logsumexp_operator());
}

}  // namespace blutensor
