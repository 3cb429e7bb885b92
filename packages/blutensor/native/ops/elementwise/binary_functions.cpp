// Elementwise functions of two tensors, beside the arithmetic of binary.cpp, and clip.
#include "ops/elementwise/arguments.h"
#include "ops/elementwise/compose.h"
#include "ops/elementwise/descriptors.h"
#include "ops/elementwise/elementwise.h"

namespace blutensor {

namespace {

using C = GradContext&;
using T = const Tensor&;
const OpRef add{"add"}, subtract{"subtract"}, multiply{"multiply"}, divide{"divide"}, negative{"negative"},
    square{"square"}, where{"where"}, less{"less"};

struct Row {
  BinaryOp op;
  const char* name;
  const char* doc;
  uint64_t save_inputs, save_outputs;
  BinaryDerivative derivative;
  const char* domain;
};

#define BROADCAST " Shapes broadcast, dtypes promote."
const Row kFunctions[] = {
    {BinaryOp::floor_divide, "floor_divide",
     "The whole number below a / b, elementwise; integers by 0 give 0, and the lowest by -1 wraps. The gradient is "
     "0." BROADCAST,
     0, 0, [](C, T g, int) -> Tensor { return zeros_like(g); }, "away_from_zero"},
    {BinaryOp::remainder, "remainder",
     "a - b floor(a / b), elementwise: it has the sign of b; integers by 0 give 0." BROADCAST, 3, 0,
     [](C context, T g, int i) -> Tensor {
       static const OpRef floor_divide{"floor_divide"};
       return i == 0 ? g : negative({multiply({g, floor_divide({context.input(0), context.input(1)})})});
     },
     "away_from_zero"},
    {BinaryOp::atan2, "atan2", "The angle of the point (b, a) in radians, elementwise." BROADCAST, 3, 0,
     [](C context, T g, int i) -> Tensor {
       const Tensor a = context.input(0), b = context.input(1);
       const Tensor slope = divide({g, add({square({a}), square({b})})});
       return i == 0 ? multiply({slope, b}) : negative({multiply({slope, a})});
     },
     "away_from_zero"},
    {BinaryOp::hypot, "hypot", "sqrt(a^2 + b^2), elementwise, without overflow." BROADCAST, 3, 1,
     [](C context, T g, int i) -> Tensor { return multiply({g, divide({context.input(i), context.output(0)})}); },
     "away_from_zero"},
    {BinaryOp::logaddexp, "logaddexp", "log(e^a + e^b), elementwise, without overflow." BROADCAST, 3, 0,
     [](C context, T g, int i) -> Tensor {
       static const OpRef sigmoid{"sigmoid"};
       return multiply({g, sigmoid({subtract({context.input(i), context.input(1 - i)})})});
     },
     "normal"},
    {BinaryOp::copysign, "copysign", "|a| with the sign of b, elementwise; the gradient of b is 0." BROADCAST, 3, 0,
     [](C context, T g, int i) -> Tensor {
       static const OpRef copysign{"copysign"}, sign{"sign"};
       if (i == 1) return zeros_like(g);
       const Tensor a = context.input(0);
       return multiply({g, multiply({sign({a}), copysign({constant(1, g.dtype()), context.input(1)})})});
     },
     "away_from_zero"},
};
#undef BROADCAST

void register_bits(OperatorRegistry& registry) {
  const char* category = "Comparison and logic";
  const auto row = [&](BinaryOp op, const char* name, const char* doc) {
    registry.add(binary_operator(op, name, doc, category));
  };
  row(BinaryOp::bitwise_and, "bitwise_and",
      "Bits that a and b have, elementwise. Integers or bool, promoted; shapes broadcast.");
  row(BinaryOp::bitwise_or, "bitwise_or",
      "Bits that a or b has, elementwise. Integers or bool, promoted; shapes broadcast.");
  row(BinaryOp::bitwise_xor, "bitwise_xor",
      "Bits that either a or b has, elementwise. Integers or bool, promoted; shapes broadcast.");
  row(BinaryOp::bitwise_left_shift, "bitwise_left_shift",
      "a 2^b, elementwise; what leaves the dtype is lost. Integers, promoted; shapes broadcast.");
  row(BinaryOp::bitwise_right_shift, "bitwise_right_shift",
      "a / 2^b towards minus infinity, elementwise. Integers, promoted; shapes broadcast.");
  row(BinaryOp::nextafter, "nextafter",
      "The number of the dtype next to a in the direction of b, elementwise. Floating, promoted; shapes broadcast.");
}

// ---------------------------------------------------------------- clip

// Of high where it is what min(max(x, low), high) chose, else of low or x.
Tensors clip_gradient(GradContext& context) {
  static const OpRef maximum{"maximum"};
  Tensors gradients(3);
  const Tensor g = context.grad_output(0);
  if (!g.defined()) return gradients;
  const Tensor x = context.input(0), zero = constant(0, g.dtype());
  const bool has_low = context.has_input(1), has_high = context.has_input(2);
  Tensor below, above, rest = g;
  if (has_high) {
    above = less({context.input(2), has_low ? maximum({x, context.input(1)}) : x});
    rest = where({above, zero, g});
  }
  if (has_low) below = less({x, context.input(1)});
  const auto give = [&](size_t i, const Tensor& mine) {
    if (context.needs(static_cast<int>(i))) gradients[i] = reduced_to(mine, context.input_spec(static_cast<int>(i)));
  };
  give(0, has_low ? where({below, zero, rest}) : rest);
  if (has_low) give(1, where({below, rest, zero}));
  if (has_high) give(2, where({above, g, zero}));
  return gradients;
}

void launch_clip(const Launch& args) {
  const View &out = args.outputs[0], &low = args.inputs[1], &high = args.inputs[2];
  View x = args.inputs[0];
  if (low.defined()) {
    run_binary(BinaryOp::maximum, out.dtype, out, x, low);
    x = out;
  }
  if (high.defined()) {
    run_binary(BinaryOp::minimum, out.dtype, out, x, high);
    x = out;
  }
  if (!low.defined() && !high.defined()) run_binary(BinaryOp::maximum, out.dtype, out, x, x);
}

void register_clip(OperatorRegistry& registry) {
  Operator o;
  o.name = "clip";
  o.doc =
      "x, but not below low and not above high, elementwise; NaN where any of them is. low and high: none, or tensors "
      "of "
      "x's dtype (numbers take it) whose shapes broadcast with x's. The gradient of x is that of out where x lies "
      "within "
      "the bounds, boundaries included, else that of the bound. x: numeric; out: x's dtype.";
  o.category = "Elementwise functions";
  o.inputs = {{.name = "x"},
              {.name = "low", .kind = InputSpec::Kind::optional},
              {.name = "high", .kind = InputSpec::Kind::optional}};
  o.output_names = {"out"};
  o.infer = [](const OpCall& call) -> std::vector<TensorSpec> {
    const Tensor& x = call.inputs[0];
    require_type(x.dtype() != DType::boolean, "[clip] expected a numeric tensor, got bool");
    Shape shape = x.shape();
    for (size_t k = 1; k < 3; ++k) {
      const Tensor& bound = call.inputs[k];
      if (!bound.defined()) continue;
      require_type(promote(x.dtype(), bound.dtype()) == x.dtype(), "[clip] expected bounds that convert to ",
                   dtype_name(x.dtype()), ", got ", dtype_name(bound.dtype()), "; convert them first: astype");
      shape = broadcast_shapes(shape, bound.shape(), "clip");
    }
    return {{x.dtype(), shape, {}, false}};
  };
  o.launch_cpu = launch_clip;
  o.save_inputs = 7;
  o.gradient = clip_gradient;
  o.grad_cases = {{{{3, 5}, {}, {5}}, {}, "normal"}, {{{2, 3}, {2, 1}}, {}, "normal"}};
  registry.add(std::move(o));
}

}  // namespace

void register_binary_functions(OperatorRegistry& registry) {
  for (const Row& row : kFunctions)
    registry.add(
        differentiable(row.op, row.name, row.doc, row.save_inputs, row.save_outputs, row.derivative, row.domain));
  register_bits(registry);
  register_clip(registry);
}

}  // namespace blutensor
