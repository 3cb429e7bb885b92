// rms_norm over the trailing axes, and its backward operators: layer_norm's kernels without a mean (norm.h).
//
// Shapes: x and y [..., C...], weight [C...], rstd [...]; inside, x is [M, C].
#include "ops/all_operators.h"
#include "ops/layer_norm/norm.h"
#include "ops/registry.h"

namespace blutensor {

namespace {

// ---------------------------------------------------------------- forward

enum ForwardAttr { kEps, kNumAxes };

std::vector<TensorSpec> infer_rms_norm(const OpCall& call) {
  const Tensor& x = call.inputs[0];
  const int axes = check_norm_axes("rms_norm", x, call.attrs.i(kNumAxes));
  check_norm_parameter("rms_norm", call.inputs[1], "weight", x, trailing_shape(x.shape(), axes));
  require(call.attrs.f(kEps) >= 0, "[rms_norm] expected eps of at least 0, got ", call.attrs.f(kEps));
  return {{x.dtype(), x.shape(), {}, false},
          {accumulation_dtype(x.dtype()), leading_shape(x.shape(), axes), {}, false}};
}

void execute_rms_norm(const Launch& launch, Execution& run) { norm_forward(rms_norm_operands(launch), run); }

Tensors rms_norm_gradient(GradContext& ctx) {
  static const OpRef in_place{"rms_norm_backward_"}, fresh{"rms_norm_backward"};
  Tensors grads(2);
  if (ctx.grad_output(1).defined())
    fail(Status::unsupported, "[rms_norm] has no gradient through rstd: compute it with square, mean and rsqrt");
  const Tensor grad = ctx.grad_output(0);
  if (!grad.defined()) return grads;
  const bool wants_weight = ctx.has_input(1) && ctx.needs(1);
  const Tensor weight = ctx.has_input(1) ? ctx.input(1) : Tensor{};
  const GradTarget target = wants_weight ? ctx.target(1) : GradTarget{};
  // What else reached x, in a residual stream: dx is added to it in the same pass.
  const GradTarget sum = ctx.needs(0) ? ctx.target(0) : GradTarget{};
  const bool adds = sum.accumulate && sum.buffer.defined() && sum.buffer.dtype() == ctx.input_spec(0).dtype;
  const Attr axes = ctx.attrs()[kNumAxes];
  if (wants_weight != target.buffer.defined()) {
    const Tensors all = fresh.many({grad, ctx.input(0), weight, ctx.output(1)}, {axes});
    grads[0] = all[0];
    grads[1] = all[1];
    return grads;
  }
  const Tensor dx = in_place({target.buffer, grad, ctx.input(0), weight, ctx.output(1), adds ? sum.buffer : Tensor{}},
                             {axes, Attr::of_bool(target.accumulate)});
  if (adds)
    ctx.consumed(0);
  else
    grads[0] = dx;
  if (wants_weight) ctx.consumed(1);
  return grads;
}

Tensors decompose_rms_norm(std::span<const Tensor> in, const Attrs& attrs) {
  static const OpRef mean{"mean"}, multiply{"multiply"}, add{"add"}, rsqrt{"rsqrt"}, reshape{"reshape"}, full{"full"};
  const Tensor& x = in[0];
  const int num_axes = static_cast<int>(attrs.i(kNumAxes));
  Dims axes;
  for (int i = x.rank() - num_axes; i < x.rank(); ++i) axes.push_back(i);
  const Tensor mean_square = mean({multiply({x, x})}, {Attr::of_axes(axes), Attr::of_bool(true)});
  const Tensor eps = full({}, {Attr::of_ints({}), attrs[kEps], Attr::of_dtype(x.dtype())});
  const Tensor rstd = rsqrt({add({mean_square, eps})});
  Tensor y = multiply({x, rstd});
  if (in[1].defined()) y = multiply({y, in[1]});
  return {y, reshape({rstd}, {Attr::of_ints(leading_shape(x.shape(), num_axes))})};
}

// ---------------------------------------------------------------- backward

// Inputs from `at`: grad_output, x, weight, rstd. Returns the shape of weight.
Shape check_backward(const char* op, const OpCall& call, size_t at) {
  const Tensor &grad = call.inputs[at], &x = call.inputs[at + 1], &rstd = call.inputs[at + 3];
  const int axes = check_norm_axes(op, x, call.attrs.i(0));
  const Shape normalised = trailing_shape(x.shape(), axes), leading = leading_shape(x.shape(), axes);
  check_norm_parameter(op, grad, "grad_output", x, x.shape());
  check_norm_parameter(op, call.inputs[at + 2], "weight", x, normalised);
  require(rstd.shape() == leading, "[", op, "] expected rstd of shape ", leading, ", got ", rstd.shape());
  return normalised;
}

std::vector<TensorSpec> infer_backward(const OpCall& call) {
  const Shape normalised = check_backward("rms_norm_backward", call, 0);
  const Tensor& x = call.inputs[1];
  return {{x.dtype(), x.shape(), {}, false}, {x.dtype(), normalised, {}, false}};
}

void execute_backward(const Launch& launch, Execution& run) { norm_backward(rms_norm_backward_operands(launch), run); }

std::vector<TensorSpec> infer_backward_in_place(const OpCall& call) {
  const char* op = "rms_norm_backward_";
  const Shape normalised = check_backward(op, call, 1);
  check_norm_target(op, call.inputs[0], "weight_grad", normalised);
  return norm_gradient_spec(op, call.inputs[2], call.inputs[5]);
}

void execute_backward_in_place(const Launch& launch, Execution& run) {
  norm_backward(rms_norm_backward_in_place_operands(launch), run);
}

}  // namespace

NormForward rms_norm_operands(const Launch& launch) {
  const auto &in = launch.inputs, &out = launch.outputs;
  return {in[0], in[1], {}, out[0], {}, out[1], launch.attrs.f(kEps), static_cast<int>(launch.attrs.i(kNumAxes))};
}

NormBackward rms_norm_backward_operands(const Launch& launch) {
  const auto &in = launch.inputs, &out = launch.outputs;
  return {in[0], in[1], in[2], {}, in[3], out[0], out[1], {}, static_cast<int>(launch.attrs.i(0)), false, false, false};
}

NormBackward rms_norm_backward_in_place_operands(const Launch& launch) {
  const auto& in = launch.inputs;
  const bool adds = in[5].defined();
  return {in[1],
          in[2],
          in[3],
          {},
          in[4],
          adds ? in[5] : launch.outputs[0],
          in[0],
          {},
          static_cast<int>(launch.attrs.i(0)),
          launch.attrs.b(1),
          false,
          adds};
}

void register_rms_norm(OperatorRegistry& registry) {
  using Kind = InputSpec::Kind;
  const AttrSpec num_axes{"num_axes", AttrKind::integer, Attr::of_int(1), false, {}};
  {
    Operator op;
    op.name = "rms_norm";
    op.doc =
        "x * rstd * weight over the last num_axes axes, rstd = 1 / sqrt(mean of x^2 + eps) (Zhang and Sennrich, 2019). "
        "x: [..., C], weight: [C] or none; results: y like x, rstd [...], in float32 (float64 for float64). Any "
        "floating dtype.";
    op.category = "Neural network";
    op.inputs = {{"x", Kind::required}, {"weight", Kind::optional}};
    op.attrs = {{"eps", AttrKind::floating, Attr::of_float(1e-6), false, {}}, num_axes};
    op.num_outputs = 2;
    op.output_names = {"y", "rstd"};
    op.infer = infer_rms_norm;
    op.workspace = workspace_of<execute_rms_norm>;
    op.launch_cpu = launch_of<execute_rms_norm>;
    op.gradient = rms_norm_gradient;
    op.save_inputs = 0b11;
    op.save_outputs = 0b10;
    op.recompute = true;
    op.decompose = decompose_rms_norm;
    op.grad_cases = {{{{5, 7}, {7}}, {}, "normal"},
                     {{{5, 7}}, {}, "normal"},
                     {{{2, 3, 4}, {3, 4}}, {Attr::of_float(1e-5), Attr::of_int(2)}, "normal"}};
    registry.add(std::move(op));
  }
  {
    Operator op;
    op.name = "rms_norm_backward";
    op.doc = "Gradients of rms_norm with respect to x and weight.";
    op.category = "Gradients";
    op.inputs = {
        {"grad_output", Kind::required}, {"x", Kind::required}, {"weight", Kind::optional}, {"rstd", Kind::required}};
    op.attrs = {num_axes};
    op.num_outputs = 2;
    op.output_names = {"x_grad", "weight_grad"};
    op.infer = infer_backward;
    op.workspace = workspace_of<execute_backward>;
    op.launch_cpu = launch_of<execute_backward>;
    op.is_public = false;
    registry.add(std::move(op));
  }
  {
    Operator op;
    op.name = "rms_norm_backward_";
    op.doc =
        "rms_norm_backward with the gradient of weight written into, or added to, its buffer; returns the gradient of "
        "x, or adds it to x_grad where that is given, and then returns a tensor of shape (0,).";
    op.category = "Gradients";
    op.inputs = {{"weight_grad", Kind::optional, true},
                 {"grad_output", Kind::required},
                 {"x", Kind::required},
                 {"weight", Kind::optional},
                 {"rstd", Kind::required},
                 {"x_grad", Kind::optional, true}};
    op.attrs = {num_axes, {"accumulate_weight", AttrKind::boolean, Attr::of_bool(false), false, {}}};
    op.output_names = {"fresh_x_grad"};
    op.infer = infer_backward_in_place;
    op.workspace = workspace_of<execute_backward_in_place>;
    op.launch_cpu = launch_of<execute_backward_in_place>;
    op.effect = Effect::writes;
    op.is_public = false;
    registry.add(std::move(op));
  }
}

}  // namespace blutensor
