// Elementwise functions of one tensor, beside those of unary.cpp: activations, trigonometry, logarithms, rounding, bits.
#include "ops/elementwise/arguments.h"
#include "ops/elementwise/compose.h"
#include "ops/elementwise/descriptors.h"
#include "ops/elementwise/elementwise.h"

namespace blutensor {

namespace {

using T = const Tensor&;
const OpRef add{"add"}, subtract{"subtract"}, multiply{"multiply"}, divide{"divide"}, square{"square"}, sqrt{"sqrt"},
    negative{"negative"}, where{"where"};

Tensor one_plus(T x) { return add({x, constant(1, x.dtype())}); }
Tensor one_minus(T x) { return subtract({constant(1, x.dtype()), x}); }
Tensor step(T g, T) { return zeros_like(g); }

// ---------------------------------------------------------------- activations

void register_activations(OperatorRegistry& registry) {
  registry.add(differentiable(
      UnaryOp::relu, "relu",
      "The larger of x and 0, elementwise; NaN stays. The gradient at 0 is 0. x: any shape, numeric; out: the same "
      "shape "
      "and dtype.",
      Saves::output,
      [](T g, T y) -> Tensor {
        static const OpRef greater{"greater"};
        return where({greater({y, constant(0, y.dtype())}), g, constant(0, g.dtype())});
      },
      "away_from_zero"));
  registry.add(differentiable(
      UnaryOp::sigmoid, "sigmoid",
      "1 / (1 + e^-x), elementwise. x: any shape, floating; out: the same shape and dtype.", Saves::output,
      [](T g, T y) -> Tensor { return multiply({g, multiply({y, one_minus(y)})}); }, "normal"));

  Operator silu = differentiable(
      UnaryOp::silu, "silu",
      "x sigmoid(x), elementwise (Elfwing et al. 2018; \"swish\"). x: any shape, floating; out: the same shape and "
      "dtype.",
      Saves::input,
      [](T g, T x) -> Tensor {
        static const OpRef backward{"silu_backward"};
        return backward({g, x});
      },
      "normal");
  silu.category = "Neural network functions";
  silu.decompose = [](std::span<const Tensor> inputs, const Attrs&) -> Tensors {
    static const OpRef sigmoid{"sigmoid"};
    return {multiply({inputs[0], sigmoid({inputs[0]})})};
  };
  registry.add(std::move(silu));

  Operator backward = binary_operator(BinaryOp::silu_backward, "silu_backward",
                                      "grad * d silu(x) / dx, elementwise: the gradient of silu.", "Gradient helpers");
  backward.inputs = {{.name = "grad"}, {.name = "x"}};
  backward.is_public = false;
  registry.add(std::move(backward));
}

// ---------------------------------------------------------------- trigonometry, exponentials and logarithms

struct Row {
  UnaryOp op;
  const char* name;
  const char* doc;
  Saves saves;
  UnaryDerivative derivative;
  const char* domain;
};

#define FLOATING " x: any shape, floating; out: the same shape and dtype. Computed in float64."
const Row kFunctions[] = {
    {UnaryOp::sin, "sin", "Sine of x radians, elementwise; NaN for infinities." FLOATING, Saves::input,
     [](T g, T x) -> Tensor {
       static const OpRef cos{"cos"};
       return multiply({g, cos({x})});
     },
     "normal"},
    {UnaryOp::cos, "cos", "Cosine of x radians, elementwise; NaN for infinities." FLOATING, Saves::input,
     [](T g, T x) -> Tensor {
       static const OpRef sin{"sin"};
       return multiply({negative({g}), sin({x})});
     },
     "normal"},
    {UnaryOp::tan, "tan", "Tangent of x radians, elementwise; NaN for infinities." FLOATING, Saves::output,
     [](T g, T y) -> Tensor { return multiply({g, one_plus(square({y}))}); }, "unit"},
    {UnaryOp::asin, "asin", "Arc sine in radians, elementwise; NaN outside [-1, 1]." FLOATING, Saves::input,
     [](T g, T x) -> Tensor { return divide({g, sqrt({one_minus(square({x}))})}); }, "unit"},
    {UnaryOp::acos, "acos", "Arc cosine in radians, elementwise; NaN outside [-1, 1]." FLOATING, Saves::input,
     [](T g, T x) -> Tensor { return divide({negative({g}), sqrt({one_minus(square({x}))})}); }, "unit"},
    {UnaryOp::atan, "atan", "Arc tangent in radians, elementwise." FLOATING, Saves::input,
     [](T g, T x) -> Tensor { return divide({g, one_plus(square({x}))}); }, "normal"},
    {UnaryOp::sinh, "sinh", "Hyperbolic sine, elementwise." FLOATING, Saves::input,
     [](T g, T x) -> Tensor {
       static const OpRef cosh{"cosh"};
       return multiply({g, cosh({x})});
     },
     "normal"},
    {UnaryOp::cosh, "cosh", "Hyperbolic cosine, elementwise." FLOATING, Saves::input,
     [](T g, T x) -> Tensor {
       static const OpRef sinh{"sinh"};
       return multiply({g, sinh({x})});
     },
     "normal"},
    {UnaryOp::asinh, "asinh", "Inverse hyperbolic sine, elementwise." FLOATING, Saves::input,
     [](T g, T x) -> Tensor { return divide({g, sqrt({one_plus(square({x}))})}); }, "normal"},
    {UnaryOp::acosh, "acosh", "Inverse hyperbolic cosine, elementwise; NaN below 1." FLOATING, Saves::input,
     [](T g, T x) -> Tensor { return divide({g, sqrt({subtract({square({x}), constant(1, x.dtype())})})}); },
     "above_one"},
    {UnaryOp::atanh, "atanh", "Inverse hyperbolic tangent, elementwise; NaN outside [-1, 1]." FLOATING, Saves::input,
     [](T g, T x) -> Tensor { return divide({g, one_minus(square({x}))}); }, "unit"},
    {UnaryOp::expm1, "expm1", "e^x - 1, elementwise, accurate near 0." FLOATING, Saves::output,
     [](T g, T y) -> Tensor { return multiply({g, one_plus(y)}); }, "normal"},
    {UnaryOp::log1p, "log1p", "Natural logarithm of 1 + x, elementwise, accurate near 0; NaN below -1." FLOATING,
     Saves::input, [](T g, T x) -> Tensor { return divide({g, one_plus(x)}); }, "unit"},
    {UnaryOp::log2, "log2", "Logarithm to the base 2, elementwise: -inf at 0, NaN below." FLOATING, Saves::input,
     [](T g, T x) -> Tensor { return divide({scaled(g, M_LOG2E), x}); }, "positive"},
    {UnaryOp::log10, "log10", "Logarithm to the base 10, elementwise: -inf at 0, NaN below." FLOATING, Saves::input,
     [](T g, T x) -> Tensor { return divide({scaled(g, M_LOG10E), x}); }, "positive"},
};
#undef FLOATING

#define NUMERIC " Integers stay; the gradient is 0. x: any shape, numeric; out: the same shape and dtype."
const Row kRounding[] = {
    {UnaryOp::floor, "floor", "The largest whole number that is not above x, elementwise." NUMERIC, Saves::nothing,
     step, "fraction"},
    {UnaryOp::ceil, "ceil", "The smallest whole number that is not below x, elementwise." NUMERIC, Saves::nothing, step,
     "fraction"},
    {UnaryOp::trunc, "trunc", "x without its fraction, elementwise." NUMERIC, Saves::nothing, step, "fraction"},
    {UnaryOp::round, "round", "The whole number next to x, halves to the even one, elementwise." NUMERIC,
     Saves::nothing, step, "fraction"},
};
#undef NUMERIC

}  // namespace

void register_functions(OperatorRegistry& registry) {
  register_activations(registry);
  for (const auto& rows : {std::span<const Row>(kFunctions), std::span<const Row>(kRounding)})
    for (const Row& row : rows)
      registry.add(differentiable(row.op, row.name, row.doc, row.saves, row.derivative, row.domain));
  registry.add(unary_operator(UnaryOp::bitwise_invert, "bitwise_invert",
                              "All bits of x exchanged (bool: not x), elementwise. x: any shape, integer or bool; out: "
                              "the same shape and dtype.",
                              "Comparison and logic"));
  registry.add(unary_operator(UnaryOp::isinf, "isinf",
                              "Whether x is infinite, elementwise. x: any shape and dtype; out: the same shape, bool.",
                              "Comparison and logic"));
  registry.add(unary_operator(UnaryOp::signbit, "signbit",
                              "Whether the sign of x is negative, also of -0 and NaN, elementwise. x: any shape, "
                              "floating; out: the same shape, bool.",
                              "Comparison and logic"));
}

}  // namespace blutensor
