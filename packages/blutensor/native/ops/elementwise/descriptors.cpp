#include "ops/elementwise/descriptors.h"

#include "ops/elementwise/arguments.h"
#include "ops/elementwise/compose.h"

namespace blutensor {

namespace {

template <class Op>
const char* expected_dtypes(Op op) {
  using enum DType;
  const auto defined = [op](DType dtype) {
    const auto k = static_cast<int>(op), d = static_cast<int>(compute_dtype(op, dtype));
    if constexpr (std::is_same_v<Op, UnaryOp>)
      return kernels().elementwise.unary[k][d] != nullptr;
    else
      return kernels().elementwise.binary[k][d] != nullptr;
  };
  if (!defined(int64)) return "floating-point";
  if (defined(float32)) return "numeric";
  return defined(boolean) ? "integer or bool" : "integer";
}

}  // namespace

InferFn infer_unary(std::string name, UnaryOp op) {
  return [name = std::move(name), op](const OpCall& call) -> std::vector<TensorSpec> {
    const Tensor& a = call.inputs[0];
    const DType compute = compute_dtype(op, a.dtype());
    require_type(kernels().elementwise.unary[static_cast<int>(op)][static_cast<int>(compute)] != nullptr, "[", name,
                 "] expected a ", expected_dtypes(op), " tensor, got ", dtype_name(a.dtype()),
                 "; convert it first: astype(x, ...)");
    return {{has_bool_result(op) ? DType::boolean : a.dtype(), a.shape(), {}, false}};
  };
}

InferFn infer_binary(std::string name, BinaryOp op) {
  return [name = std::move(name), op](const OpCall& call) -> std::vector<TensorSpec> {
    const Tensor &a = call.inputs[0], &b = call.inputs[1];
    const DType dtype = has_bool_operands(op) ? DType::boolean : promote(a.dtype(), b.dtype());
    const DType compute = compute_dtype(op, dtype);
    require_type(kernels().elementwise.binary[static_cast<int>(op)][static_cast<int>(compute)] != nullptr, "[", name,
                 "] expected ", expected_dtypes(op), " tensors, got ", dtype_name(a.dtype()), " and ",
                 dtype_name(b.dtype()), "; convert one first: astype(x, ...)");
    return {{has_bool_result(op) ? DType::boolean : dtype,
             broadcast_shapes(a.shape(), b.shape(), name.c_str()),
             {},
             false}};
  };
}

Operator unary_operator(UnaryOp op, const char* name, const char* doc, const char* category) {
  Operator o;
  o.name = name;
  o.doc = doc;
  o.category = category;
  o.inputs = {{.name = "x"}};
  o.output_names = {"out"};
  o.infer = infer_unary(name, op);
  o.launch_cpu = [op](const Launch& args) { run_unary(op, args.outputs[0], args.inputs[0]); };
  return o;
}

Operator binary_operator(BinaryOp op, const char* name, const char* doc, const char* category) {
  Operator o;
  o.name = name;
  o.doc = doc;
  o.category = category;
  o.inputs = {{.name = "a", .accepts_scalar = true}, {.name = "b", .accepts_scalar = true}};
  o.output_names = {"out"};
  o.infer = infer_binary(name, op);
  o.launch_cpu = [op](const Launch& args) {
    const View &a = args.inputs[0], &b = args.inputs[1];
    run_binary(op, has_bool_operands(op) ? DType::boolean : promote(a.dtype, b.dtype), args.outputs[0], a, b);
  };
  return o;
}

Operator differentiable(UnaryOp op, const char* name, const char* doc, Saves saves, UnaryDerivative derivative,
                        const char* domain) {
  Operator o = unary_operator(op, name, doc, "Elementwise functions");
  o.gradient = [derivative, saves](GradContext& context) -> Tensors {
    const Tensor g = context.grad_output(0);
    if (!g.defined() || !context.needs(0)) return {Tensor{}};
    return {derivative(g, saves == Saves::input    ? context.input(0)
                          : saves == Saves::output ? context.output(0)
                                                   : Tensor{})};
  };
  o.save_inputs = saves == Saves::input;
  o.save_outputs = saves == Saves::output;
  o.grad_cases = {{{{3, 5}}, {}, domain}, {{{}}, {}, domain}};
  return o;
}

Operator differentiable(BinaryOp op, const char* name, const char* doc, uint64_t save_inputs, uint64_t save_outputs,
                        BinaryDerivative derivative, const char* domain) {
  Operator o = binary_operator(op, name, doc, "Arithmetic");
  o.save_inputs = save_inputs;
  o.save_outputs = save_outputs;
  o.gradient = [derivative](GradContext& context) -> Tensors {
    Tensors gradients(2);
    const Tensor g = context.grad_output(0);
    if (!g.defined()) return gradients;
    for (int i = 0; i < 2; ++i)
      if (context.needs(i))
        gradients[static_cast<size_t>(i)] = reduced_to(derivative(context, g, i), context.input_spec(i));
    return gradients;
  };
  o.grad_cases = {{{{3, 5}, {3, 5}}, {}, domain}, {{{2, 1, 4}, {3, 1}}, {}, domain}, {{{2, 3}, {}}, {}, domain}};
  return o;
}

Tensor zeros_like(const Tensor& g) { return broadcast_to(constant(0, g.dtype()), g.shape()); }

}  // namespace blutensor
