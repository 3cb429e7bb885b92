// Elementwise operators of two tensors, and where: descriptors and gradients.
#include "ops/copy/convert.h"
#include "ops/elementwise/arguments.h"
#include "ops/elementwise/compose.h"
#include "ops/elementwise/descriptors.h"
#include "ops/elementwise/elementwise.h"

namespace blutensor {

namespace {

const OpRef multiply{"multiply"}, divide{"divide"}, negative{"negative"}, equal{"equal"}, where{"where"}, power{"pow"};

// All of g where the operand was chosen, half where both are equal.
template <bool greater>
Tensor extremum_gradient(GradContext& context, const Tensor& g, int i) {
  static const OpRef less{"less"};
  const Tensor mine = context.input(i), other = context.input(1 - i);
  const Tensor chosen = greater ? less({other, mine}) : less({mine, other});
  const Tensor tie = where({equal({mine, other}), scaled(g, 0.5), constant(0, g.dtype())});
  return where({chosen, g, tie});
}

// d a^b: b a^(b-1) for a (0 where b is 0), a^b log a for b (0 where a and out are 0).
Tensor power_gradient(GradContext& context, const Tensor& g, int i) {
  static const OpRef log{"log"}, subtract{"subtract"}, logical_and{"logical_and"};
  const Tensor a = context.input(0), b = context.input(1);
  const Tensor zero = constant(0, g.dtype());
  if (i == 0) {
    const Tensor slope = multiply({b, power({a, subtract({b, constant(1, b.dtype())})})});
    return where({equal({b, constant(0, b.dtype())}), zero, multiply({g, slope})});
  }
  const Tensor out = context.output(0);
  const Tensor vanishes = logical_and({equal({a, constant(0, a.dtype())}), equal({out, constant(0, out.dtype())})});
  return where({vanishes, zero, multiply({g, multiply({out, log({cast_to(a, out.dtype())})})})});
}

// ---------------------------------------------------------------- pow

// Exponents that are one multiplication or division; the results are those of the general form rounded.
void launch_power(const Launch& args) {
  const View &out = args.outputs[0], &a = args.inputs[0], &b = args.inputs[1];
  const DType dtype = promote(a.dtype, b.dtype);
  if (is_floating(dtype) && b.numel() == 1) {
    double exponent = 0;
    kernels().copy.from_to(b.dtype, DType::float64)(1, &exponent, 1, b.data, 0);
    if (exponent == 2) return run_binary(BinaryOp::multiply, dtype, out, a, a);
    if (exponent == -1 && is_floating(a.dtype)) return run_unary(UnaryOp::reciprocal, out, a);
  }
  run_binary(BinaryOp::power, dtype, out, a, b);
}

// ---------------------------------------------------------------- where

void launch_where(const Launch& args) {
  const DType dtype = args.outputs[0].dtype;
  const WhereKernel kernel = kernels().elementwise.where[static_cast<int>(dtype)];
  const BlockOperand inputs[] = {{&args.inputs[0], DType::boolean}, {&args.inputs[1], dtype}, {&args.inputs[2], dtype}};
  block_loop({&args.outputs[0], dtype}, inputs, false, [kernel](int64_t n, void* o, const auto& in, int64_t) {
    kernel(n, o, in[0].data, in[1].data, in[2].data);
  });
}

void register_where(OperatorRegistry& registry) {
  Operator o;
  o.name = "where";
  o.doc =
      "a where condition is true, b elsewhere, elementwise. condition: bool (numbers count as true when they are not "
      "zero); a, b: any "
      "dtype, promoted; all three are broadcast.";
  o.category = "Comparison and logic";
  o.inputs = {{.name = "condition"}, {.name = "a", .accepts_scalar = true}, {.name = "b", .accepts_scalar = true}};
  o.output_names = {"out"};
  o.infer = [](const OpCall& call) -> std::vector<TensorSpec> {
    const Tensor &c = call.inputs[0], &a = call.inputs[1], &b = call.inputs[2];
    const Shape shape = broadcast_shapes(c.shape(), broadcast_shapes(a.shape(), b.shape(), "where"), "where");
    return {{promote(a.dtype(), b.dtype()), shape, {}, false}};
  };
  o.launch_cpu = launch_where;
  o.save_inputs = 1;
  o.gradient = [](GradContext& context) -> Tensors {
    Tensors gradients(3);
    const Tensor g = context.grad_output(0);
    if (!g.defined()) return gradients;
    const Tensor condition = context.input(0), zero = constant(0, g.dtype());
    if (context.needs(1)) gradients[1] = reduced_to(where({condition, g, zero}), context.input_spec(1));
    if (context.needs(2)) gradients[2] = reduced_to(where({condition, zero, g}), context.input_spec(2));
    return gradients;
  };
  registry.add(std::move(o));
}

}  // namespace

void register_binary(OperatorRegistry& registry) {
  using C = GradContext&;
  using T = const Tensor&;
  registry.add(differentiable(BinaryOp::add, "add",
                              "a + b, elementwise. Shapes broadcast, dtypes promote; integers wrap.", 0, 0,
                              [](C, T g, int) -> Tensor { return g; }));
  registry.add(differentiable(BinaryOp::subtract, "subtract",
                              "a - b, elementwise. Shapes broadcast, dtypes promote; integers wrap.", 0, 0,
                              [](C, T g, int i) -> Tensor { return i == 0 ? g : negative({g}); }));
  registry.add(differentiable(BinaryOp::multiply, "multiply",
                              "a b, elementwise. Shapes broadcast, dtypes promote; integers wrap.", 3, 0,
                              [](C context, T g, int i) -> Tensor { return multiply({g, context.input(1 - i)}); }));
  registry.add(differentiable(
      BinaryOp::divide, "divide",
      "a / b, elementwise. Shapes broadcast, dtypes promote to a floating-point one (two integers are an error).", 2, 1,
      [](C context, T g, int i) -> Tensor {
        const Tensor quotient = divide({g, context.input(1)});
        if (i == 0) return quotient;
        return multiply({negative({quotient}), context.output(0)});
      },
      "away_from_zero"));
  registry.add(differentiable(BinaryOp::maximum, "maximum",
                              "The larger of a and b, elementwise; NaN where either is. Shapes broadcast, "
                              "dtypes promote. The gradient is halved between equal operands.",
                              3, 0, extremum_gradient<true>));
  registry.add(differentiable(BinaryOp::minimum, "minimum",
                              "The smaller of a and b, elementwise; NaN where either is. Shapes broadcast, "
                              "dtypes promote. The gradient is halved between equal operands.",
                              3, 0, extremum_gradient<false>));
  Operator pow = differentiable(BinaryOp::power, "pow",
                                "a to the power b, elementwise. Shapes broadcast, dtypes promote; integers wrap, "
                                "and a negative integer exponent truncates towards zero.",
                                3, 1, power_gradient, "positive");
  pow.launch_cpu = launch_power;
  registry.add(std::move(pow));

  const char* logic = "Comparison and logic";
  registry.add(binary_operator(BinaryOp::equal, "equal",
                               "a == b, elementwise: bool. Shapes broadcast; compared in the promoted dtype.", logic));
  registry.add(binary_operator(BinaryOp::not_equal, "not_equal",
                               "a != b, elementwise: bool. Shapes broadcast; compared in the promoted dtype.", logic));
  registry.add(binary_operator(BinaryOp::less, "less",
                               "a < b, elementwise: bool. Shapes broadcast; compared in the promoted dtype.", logic));
  registry.add(binary_operator(BinaryOp::less_equal, "less_equal",
                               "a <= b, elementwise: bool. Shapes broadcast; compared in the promoted dtype.", logic));
  registry.add(binary_operator(BinaryOp::greater, "greater",
                               "a > b, elementwise: bool. Shapes broadcast; compared in the promoted dtype.", logic));
  registry.add(binary_operator(BinaryOp::greater_equal, "greater_equal",
                               "a >= b, elementwise: bool. Shapes broadcast; compared in the promoted dtype.", logic));
  registry.add(binary_operator(
      BinaryOp::logical_and, "logical_and",
      "a and b, elementwise: bool; numbers count as true when they are not zero. Shapes broadcast.", logic));
  registry.add(binary_operator(
      BinaryOp::logical_or, "logical_or",
      "a or b, elementwise: bool; numbers count as true when they are not zero. Shapes broadcast.", logic));
  registry.add(binary_operator(
      BinaryOp::logical_xor, "logical_xor",
      "Either a or b but not both, elementwise: bool; numbers count as true when they are not zero. Shapes broadcast.",
      logic));
  register_where(registry);
}

}  // namespace blutensor
