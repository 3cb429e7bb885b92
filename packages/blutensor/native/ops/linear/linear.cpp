// linear and its gradient operators, over blublas's GEMM epilogues.
//
// Shapes: x [..., K], weight [N, K], bias [N], residual and y [..., N]; M = product of the leading axes.
#include "ops/linear/linear.h"
#include "ops/all_operators.h"
#include "ops/linear/linear_gemm.h"
#include "ops/linear/linear_shapes.h"
#include "ops/registry.h"

namespace blutensor {

namespace {

// ---------------------------------------------------------------- forward

std::vector<TensorSpec> infer_linear(const OpCall& call) {
  const Tensor &x = call.inputs[0], &weight = call.inputs[1], &bias = call.inputs[2], &residual = call.inputs[3];
  check_layer("linear", x, weight, bias, "weight", "bias");
  const Shape shape = with_last(x.shape(), weight.size(0));
  check_residual("linear", residual, shape, x.dtype());
  return {{x.dtype(), shape, {}, false}};
}

Tensors linear_gradient(GradContext& ctx) {
  static const OpRef input_grad{"linear_input_grad"};
  const Tensor grad = ctx.grad_output(0);
  Tensors grads(4);
  if (!grad.defined()) return grads;
  if (ctx.needs(0)) grads[0] = input_grad({grad, ctx.input(1), {}}, {Attr::of_string("none")});
  layer_weight_gradients(ctx, 1, 2, grad, [&] { return ctx.input(0); }, grads);
  if (ctx.has_input(3) && ctx.needs(3)) grads[3] = grad;
  return grads;
}

Tensors decompose_linear(std::span<const Tensor> in, const Attrs&) {
  static const OpRef matmul{"matmul"}, permute{"permute_dims"}, add{"add"};
  Tensor y = matmul({in[0], permute({in[1]}, {Attr::of_ints({1, 0})})});
  if (in[2].defined()) y = add({y, in[2]});
  if (in[3].defined()) y = add({y, in[3]});
  return {y};
}

// ---------------------------------------------------------------- input gradient

std::vector<TensorSpec> infer_input_grad(const OpCall& call) {
  const Tensor &grad = call.inputs[0], &weight = call.inputs[1], &preactivation = call.inputs[2];
  check_grad_output("linear_input_grad", grad, weight);
  const Shape shape = with_last(grad.shape(), weight.size(1));
  if (preactivation.defined())
    require(preactivation.shape() == shape && preactivation.dtype() == grad.dtype(),
            "[linear_input_grad] expected preactivation ", dtype_name(grad.dtype()), shape, ", got ",
            describe(preactivation));
  return {{grad.dtype(), shape, {}, false}};
}

Tensors input_grad_gradient(GradContext& ctx) {
  static const OpRef linear{"linear"}, weight_grad{"linear_weight_grad"};
  const Tensor grad = ctx.grad_output(0);
  Tensors grads(3);
  if (!grad.defined()) return grads;
  if (ctx.has_input(2))
    fail(Status::unsupported,
         "[mlp] has no second derivative: call linear, gelu and linear one by one where it is needed");
  if (ctx.needs(0)) grads[0] = linear({grad, ctx.input(1), {}, {}});
  if (ctx.needs(1)) grads[1] = weight_grad.many({ctx.input(0), grad}, {Attr::of_bool(false)})[0];
  return grads;
}

// ---------------------------------------------------------------- weight and bias gradient

// weight_grad (+)= grad^T x, bias_grad (+)= sum of grad's rows; bias_grad may be undefined.
void weight_grad(Execution& run, const View& grad, const View& x, const View& weight_grad, const View& bias_grad,
                 bool accumulate_weight, bool accumulate_bias) {
  const DType dtype = gemm_dtype(grad.dtype);
  const Matrix dy = run.matrix(grad, leading_axes(grad), dtype);
  const GemmOutput dw = gemm_output(run, weight_grad, 1, dtype);
  blublas_gemm_args args = make_gemm(dy.transposed(), run.matrix(x, leading_axes(x), dtype), dw.matrix);
  if (accumulate_weight && !dw.scratch) args.epilogue |= BLUBLAS_EPILOGUE_ACCUMULATE;
  Matrix db;
  bool db_scratch = false;
  if (bias_grad.defined()) {
    args.epilogue |= BLUBLAS_EPILOGUE_ROW_SUM_A;
    db_scratch = bias_grad.dtype != accumulation_dtype(dtype) || !bias_grad.contiguous();
    if (db_scratch)
      db = run.scratch(1, dy.cols, accumulation_dtype(dtype));
    else
      as_matrix(bias_grad, 0, &db);
    if (accumulate_bias && !db_scratch) args.epilogue |= BLUBLAS_EPILOGUE_ROW_SUM_A_ACCUMULATE;
    args.row_sum_a = db.data;
  }
  run.gemm(args);
  if (dw.scratch) run.store(dw.matrix, weight_grad, accumulate_weight);
  if (db_scratch) run.store(db, bias_grad, accumulate_bias);
}

void check_weight_grad(const char* op, const Tensor& grad, const Tensor& x) {
  require_floating(op, grad, "grad_output");
  require_same_dtype(op, x, "x", grad.dtype());
  require(grad.rank() >= 1 && with_last(grad.shape(), 1) == with_last(x.shape(), 1), "[", op,
          "] expected grad_output and x with the same leading axes, got ", grad.shape(), " and ", x.shape());
}

std::vector<TensorSpec> infer_weight_grad(const OpCall& call) {
  const Tensor &grad = call.inputs[0], &x = call.inputs[1];
  check_weight_grad("linear_weight_grad", grad, x);
  return {{grad.dtype(), {grad.size(-1), x.size(-1)}, {}, false},
          {grad.dtype(), {call.attrs.b(0) ? grad.size(-1) : 0}, {}, false}};
}

Tensors weight_grad_gradient(GradContext& ctx) {
  static const OpRef linear{"linear"}, input_grad{"linear_input_grad"}, add{"add"};
  const Tensor weight = ctx.grad_output(0), bias = ctx.attrs().b(0) ? ctx.grad_output(1) : Tensor{};
  Tensors grads(2);
  if (bias.defined() && !weight.defined())
    fail(Status::unsupported,
         "[linear] has no second derivative through the bias gradient alone: differentiate the weight gradient too");
  if (!weight.defined()) return grads;
  if (ctx.needs(0)) grads[0] = linear({ctx.input(1), weight, bias, {}});
  if (ctx.needs(1)) grads[1] = input_grad({ctx.input(0), weight, {}}, {Attr::of_string("none")});
  return grads;
}

std::vector<TensorSpec> infer_weight_grad_in_place(const OpCall& call) {
  const Tensor &weight = call.inputs[0], &bias = call.inputs[1], &grad = call.inputs[2], &x = call.inputs[3];
  check_weight_grad("linear_weight_grad_", grad, x);
  require(weight.shape() == Shape{grad.size(-1), x.size(-1)} && is_floating(weight.dtype()),
          "[linear_weight_grad_] expected weight_grad ", Shape{grad.size(-1), x.size(-1)}, ", got ", describe(weight));
  if (bias.defined())
    require(bias.shape() == Shape{grad.size(-1)} && is_floating(bias.dtype()),
            "[linear_weight_grad_] expected bias_grad ", Shape{grad.size(-1)}, ", got ", describe(bias));
  return {};
}

}  // namespace

// ---------------------------------------------------------------- execution, on any device

void execute_linear(const Launch& launch, Execution& run) {
  const View &x = launch.inputs[0], &y = launch.outputs[0];
  const Matrix operand = run.matrix(x, leading_axes(x), gemm_dtype(x.dtype));
  const GemmOutput out = gemm_output(run, y, leading_axes(y), operand.dtype);
  linear_forward(run, operand, launch.inputs[1], launch.inputs[2], launch.inputs[3], {}, out.matrix);
  if (out.scratch) run.store(out.matrix, y);
}

void execute_linear_input_grad(const Launch& launch, Execution& run) {
  const View &grad = launch.inputs[0], &weight = launch.inputs[1], &preactivation = launch.inputs[2],
             &out = launch.outputs[0];
  const DType dtype = gemm_dtype(grad.dtype);
  const Matrix a = run.matrix(grad, leading_axes(grad), dtype), b = run.matrix(weight, 1, dtype);
  const GemmOutput c = gemm_output(run, out, leading_axes(out), dtype);
  blublas_gemm_args args = make_gemm(a, b, c.matrix);
  const GeluEpilogue gelu = GeluEpilogue::gradient(launch.attrs.s(0), preactivation);
  if (gelu.flag) {
    args.epilogue |= gelu.flag;
    args.aux = gemm_matrix(run.matrix(preactivation, leading_axes(preactivation), dtype));
  }
  run.gemm(args);
  if (c.scratch) run.store(c.matrix, out);
}

void execute_linear_weight_grad(const Launch& launch, Execution& run) {
  weight_grad(run, launch.inputs[0], launch.inputs[1], launch.outputs[0],
              launch.attrs.b(0) ? launch.outputs[1] : View{}, false, false);
}

void execute_linear_weight_grad_in_place(const Launch& launch, Execution& run) {
  weight_grad(run, launch.inputs[2], launch.inputs[3], launch.inputs[0], launch.inputs[1], launch.attrs.b(0),
              launch.attrs.b(1));
}

// ---------------------------------------------------------------- gradients of a layer's parameters

void layer_weight_gradients(GradContext& ctx, int weight, int bias, const Tensor& grad,
                            const std::function<Tensor()>& x, Tensors& grads) {
  static const OpRef in_place{"linear_weight_grad_"}, fresh{"linear_weight_grad"};
  const bool wants_weight = ctx.needs(weight), wants_bias = ctx.has_input(bias) && ctx.needs(bias);
  if (!wants_weight && !wants_bias) return;
  const GradTarget weight_target = wants_weight ? ctx.target(weight) : GradTarget{};
  const GradTarget bias_target = wants_bias ? ctx.target(bias) : GradTarget{};
  const bool weight_in_place = weight_target.buffer.defined();
  const bool bias_in_place = weight_in_place && bias_target.buffer.defined();
  if (weight_in_place) {
    in_place.many({weight_target.buffer, bias_in_place ? bias_target.buffer : Tensor{}, grad, x()},
                  {Attr::of_bool(weight_target.accumulate), Attr::of_bool(bias_target.accumulate)});
    ctx.consumed(weight);
    if (bias_in_place) ctx.consumed(bias);
  }
  const bool weight_left = wants_weight && !weight_in_place, bias_left = wants_bias && !bias_in_place;
  if (!weight_left && !bias_left) return;
  // One GEMM gives both; a bias gradient alone (rare: a frozen weight) pays for the product too.
  const Tensors both = fresh.many({grad, x()}, {Attr::of_bool(bias_left)});
  if (weight_left) grads[static_cast<size_t>(weight)] = both[0];
  if (bias_left) grads[static_cast<size_t>(bias)] = both[1];
}

void register_mlp(OperatorRegistry& registry);

void register_linear(OperatorRegistry& registry) {
  using Kind = InputSpec::Kind;
  const AttrSpec approximate{"approximate", AttrKind::string, Attr::of_string("none"), false, {"none", "tanh"}};
  {
    Operator op;
    op.name = "linear";
    op.doc =
        "x @ weight.T + bias + residual. x: [..., K], weight: [N, K], bias: [N] or none, residual: [..., N] or none; "
        "result: [..., N]. Any "
        "floating dtype, the same for all; accumulates in float32 (float64 for float64). Bias and residual are added "
        "by the GEMM's epilogue.";
    op.category = "Neural network";
    op.inputs = {
        {"x", Kind::required}, {"weight", Kind::required}, {"bias", Kind::optional}, {"residual", Kind::optional}};
    op.output_names = {"y"};
    op.infer = infer_linear;
    op.workspace = workspace_of<execute_linear>;
    op.launch_cpu = launch_of<execute_linear>;
    op.gradient = linear_gradient;
    op.save_inputs = 0b11;
    op.decompose = decompose_linear;
    op.grad_cases = {
        {{{5, 3}, {4, 3}}, {}, "normal"}, {{{2, 3, 5}, {1, 5}}, {}, "normal"}, {{{3}, {2, 3}}, {}, "normal"}};
    registry.add(std::move(op));
  }
  {
    Operator op;
    op.name = "linear_input_grad";
    op.doc =
        "Gradient of linear with respect to x: grad_output @ weight, times gelu'(preactivation) where that is given "
        "(the layer's input was "
        "gelu(preactivation)). grad_output: [..., N], weight: [N, K], preactivation and result: [..., K].";
    op.category = "Gradients";
    op.inputs = {{"grad_output", Kind::required}, {"weight", Kind::required}, {"preactivation", Kind::optional}};
    op.attrs = {approximate};
    op.infer = infer_input_grad;
    op.workspace = workspace_of<execute_linear_input_grad>;
    op.launch_cpu = launch_of<execute_linear_input_grad>;
    op.gradient = input_grad_gradient;
    op.save_inputs = 0b11;
    op.is_public = false;
    registry.add(std::move(op));
  }
  {
    Operator op;
    op.name = "linear_weight_grad";
    op.doc =
        "Gradients of linear with respect to weight and bias: (grad_output^T @ x, sum of grad_output over all axes but "
        "the last). grad_output: "
        "[..., N], x: [..., K]; results: [N, K], and [N] or without `bias` [0].";
    op.category = "Gradients";
    op.inputs = {{"grad_output", Kind::required}, {"x", Kind::required}};
    op.attrs = {{"bias", AttrKind::boolean, Attr::of_bool(true), false, {}}};
    op.num_outputs = 2;
    op.output_names = {"weight_grad", "bias_grad"};
    op.infer = infer_weight_grad;
    op.workspace = workspace_of<execute_linear_weight_grad>;
    op.launch_cpu = launch_of<execute_linear_weight_grad>;
    op.gradient = weight_grad_gradient;
    op.save_inputs = 0b11;
    op.is_public = false;
    registry.add(std::move(op));
  }
  {
    Operator op;
    op.name = "linear_weight_grad_";
    op.doc =
        "linear_weight_grad written into, or added to, the gradient buffers weight_grad [N, K] and bias_grad [N], by "
        "one GEMM.";
    op.category = "Gradients";
    op.inputs = {{"weight_grad", Kind::required, true},
                 {"bias_grad", Kind::optional, true},
                 {"grad_output", Kind::required},
                 {"x", Kind::required}};
    op.attrs = {{"accumulate_weight", AttrKind::boolean, Attr::of_bool(false), false, {}},
                {"accumulate_bias", AttrKind::boolean, Attr::of_bool(false), false, {}}};
    op.num_outputs = 0;
    op.infer = infer_weight_grad_in_place;
    op.workspace = workspace_of<execute_linear_weight_grad_in_place>;
    op.launch_cpu = launch_of<execute_linear_weight_grad_in_place>;
    op.effect = Effect::writes;
    op.is_public = false;
    registry.add(std::move(op));
  }
  register_mlp(registry);
}

}  // namespace blutensor
