// Elementwise operators of one tensor: descriptors and gradients.
#include "ops/elementwise/arguments.h"
#include "ops/elementwise/compose.h"
#include "ops/elementwise/descriptors.h"
#include "ops/elementwise/elementwise.h"

namespace blutensor {

namespace {

const OpRef multiply{"multiply"}, divide{"divide"}, subtract{"subtract"}, add{"add"}, square{"square"},
    exponential{"exp"};

// ---------------------------------------------------------------- GELU

constexpr const char* kGeluDoc =
    "Gaussian error linear unit (Hendrycks and Gimpel 2016), elementwise. approximate=\"none\": x (1 + erf(x / sqrt "
    "2)) / 2; \"tanh\": "
    "x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2. x: any shape, floating; out: the same shape and dtype.";

AttrSpec approximate_attr() {
  return {"approximate", AttrKind::string, Attr::of_string("none"), false, {"none", "tanh"}};
}
bool is_tanh(const Attrs& attrs, size_t k = 0) { return attrs.s(k) == "tanh"; }

void launch_gelu(const Launch& args) {
  run_unary(is_tanh(args.attrs) ? UnaryOp::gelu_tanh : UnaryOp::gelu_erf, args.outputs[0], args.inputs[0]);
}
void launch_gelu_backward(const Launch& args) {
  const auto op = is_tanh(args.attrs) ? BinaryOp::gelu_tanh_backward : BinaryOp::gelu_erf_backward;
  run_binary(op, args.outputs[0].dtype, args.outputs[0], args.inputs[0], args.inputs[1]);
}

Tensors decompose_gelu(std::span<const Tensor> inputs, const Attrs& attrs) {
  static const OpRef tanh{"tanh"}, erf{"erf"};
  const Tensor& x = inputs[0];
  const Tensor one = constant(1, x.dtype());
  Tensor inner;
  if (is_tanh(attrs)) {
    const Tensor cubic = add({one, scaled(square({x}), 0.044715)});
    inner = tanh({scaled(multiply({x, cubic}), std::sqrt(2 / M_PI))});
  } else {
    inner = erf({scaled(x, M_SQRT1_2)});
  }
  return {multiply({scaled(x, 0.5), add({one, inner})})};
}

void register_gelu(OperatorRegistry& registry) {
  Operator gelu;
  gelu.name = "gelu";
  gelu.doc = kGeluDoc;
  gelu.category = "Neural network functions";
  gelu.inputs = {{.name = "x"}};
  gelu.attrs = {approximate_attr()};
  gelu.output_names = {"out"};
  gelu.infer = infer_unary("gelu", UnaryOp::gelu_tanh);
  gelu.launch_cpu = launch_gelu;
  gelu.save_inputs = 1;
  gelu.gradient = [](GradContext& context) -> Tensors {
    static const OpRef backward{"gelu_backward"};
    const Tensor g = context.grad_output(0);
    if (!g.defined() || !context.needs(0)) return {Tensor{}};
    return {backward({g, context.input(0)}, context.attrs())};
  };
  gelu.decompose = decompose_gelu;
  gelu.grad_cases = {{{{3, 5}}, {Attr::of_string("none")}}, {{{3, 5}}, {Attr::of_string("tanh")}}};
  registry.add(std::move(gelu));

  Operator backward;
  backward.name = "gelu_backward";
  backward.doc = "grad * d gelu(x) / dx, elementwise: the gradient of gelu.";
  backward.category = "Gradient helpers";
  backward.inputs = {{.name = "grad"}, {.name = "x"}};
  backward.attrs = {approximate_attr()};
  backward.output_names = {"out"};
  backward.is_public = false;
  backward.infer = [](const OpCall& call) -> std::vector<TensorSpec> {
    const Tensor &g = call.inputs[0], &x = call.inputs[1];
    require(g.shape() == x.shape(), "[gelu_backward] expected grad and x of one shape, got ", g.shape(), " and ",
            x.shape());
    require_type(is_floating(x.dtype()) && is_floating(g.dtype()),
                 "[gelu_backward] expected floating-point tensors, got ", dtype_name(g.dtype()), " and ",
                 dtype_name(x.dtype()));
    return {{x.dtype(), x.shape(), {}, false}};
  };
  backward.launch_cpu = launch_gelu_backward;
  registry.add(std::move(backward));
}

}  // namespace

void register_unary(OperatorRegistry& registry) {
  using T = const Tensor&;
  registry.add(differentiable(
      UnaryOp::negative, "negative",
      "-x, elementwise. Integers wrap. x: any shape, numeric; out: the same shape and dtype.", Saves::nothing,
      [](T g, T) -> Tensor {
        static const OpRef negative{"negative"};
        return negative({g});
      },
      "normal"));
  registry.add(differentiable(
      UnaryOp::absolute, "abs",
      "|x|, elementwise; the gradient at 0 is 0. x: any shape, numeric; out: the same shape and dtype.", Saves::input,
      [](T g, T x) -> Tensor {
        static const OpRef sign{"sign"};
        return multiply({g, sign({x})});
      },
      "away_from_zero"));
  registry.add(differentiable(
      UnaryOp::sign, "sign",
      "-1, 0 or 1 by the sign of x, elementwise; zeros and NaN stay what they are; the gradient is 0. x: any shape, "
      "numeric; out: the same shape and dtype.",
      Saves::nothing, [](T g, T) -> Tensor { return zeros_like(g); }, "away_from_zero"));
  registry.add(differentiable(
      UnaryOp::square, "square", "x x, elementwise. x: any shape, numeric; out: the same shape and dtype.",
      Saves::input, [](T g, T x) -> Tensor { return multiply({scaled(g, 2), x}); }, "normal"));
  registry.add(differentiable(
      UnaryOp::reciprocal, "reciprocal", "1 / x, elementwise. x: any shape, floating; out: the same shape and dtype.",
      Saves::output, [](T g, T y) -> Tensor { return multiply({scaled(g, -1), square({y})}); }, "away_from_zero"));
  registry.add(differentiable(
      UnaryOp::exp, "exp", "e to the power x, elementwise. x: any shape, floating; out: the same shape and dtype.",
      Saves::output, [](T g, T y) -> Tensor { return multiply({g, y}); }, "normal"));
  registry.add(differentiable(
      UnaryOp::log, "log",
      "Natural logarithm, elementwise: -inf at 0, NaN below. x: any shape, floating; out: the same shape and dtype.",
      Saves::input, [](T g, T x) -> Tensor { return divide({g, x}); }, "positive"));
  registry.add(differentiable(
      UnaryOp::sqrt, "sqrt",
      "Square root, elementwise, correctly rounded. x: any shape, floating; out: the same shape and dtype.",
      Saves::output, [](T g, T y) -> Tensor { return divide({g, scaled(y, 2)}); }, "positive"));
  registry.add(differentiable(
      UnaryOp::rsqrt, "rsqrt", "1 / sqrt(x), elementwise. x: any shape, floating; out: the same shape and dtype.",
      Saves::output, [](T g, T y) -> Tensor { return multiply({scaled(g, -0.5), multiply({y, square({y})})}); },
      "positive"));
  registry.add(differentiable(
      UnaryOp::tanh, "tanh", "Hyperbolic tangent, elementwise. x: any shape, floating; out: the same shape and dtype.",
      Saves::output, [](T g, T y) -> Tensor { return multiply({g, subtract({constant(1, y.dtype()), square({y})})}); },
      "normal"));
  registry.add(differentiable(
      UnaryOp::erf, "erf", "Error function, elementwise. x: any shape, floating; out: the same shape and dtype.",
      Saves::input,
      [](T g, T x) -> Tensor {
        static const OpRef negative{"negative"};
        return multiply({scaled(g, 2 / std::sqrt(M_PI)), exponential({negative({square({x})})})});
      },
      "normal"));
  registry.add(unary_operator(UnaryOp::isnan, "isnan",
                              "Whether x is NaN, elementwise. x: any shape and dtype; out: the same shape, bool.",
                              "Comparison and logic"));
  registry.add(unary_operator(
      UnaryOp::isfinite, "isfinite",
      "Whether x is neither NaN nor infinite, elementwise. x: any shape and dtype; out: the same shape, bool.",
      "Comparison and logic"));
  registry.add(unary_operator(UnaryOp::logical_not, "logical_not",
                              "not x, elementwise; numbers count as true when they are not zero. x: any "
                              "shape and dtype; out: the same shape, bool.",
                              "Comparison and logic"));
  register_gelu(registry);
}

}  // namespace blutensor
