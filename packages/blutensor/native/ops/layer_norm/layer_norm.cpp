// layer_norm over the trailing axes, and its backward operators.
//
// Shapes: x and y [..., C...], weight and bias [C...], mean and rstd [...]; inside, x is [M, C].
#include "ops/all_operators.h"
#include "ops/layer_norm/norm.h"
#include "ops/registry.h"

namespace blutensor {

namespace {

// ---------------------------------------------------------------- forward

enum ForwardAttr { kEps, kNumAxes };

std::vector<TensorSpec> infer_layer_norm(const OpCall& call) {
  const Tensor& x = call.inputs[0];
  const int axes = check_norm_axes("layer_norm", x, call.attrs.i(kNumAxes));
  const Shape normalised = trailing_shape(x.shape(), axes), leading = leading_shape(x.shape(), axes);
  check_norm_parameter("layer_norm", call.inputs[1], "weight", x, normalised);
  check_norm_parameter("layer_norm", call.inputs[2], "bias", x, normalised);
  require(call.attrs.f(kEps) >= 0, "[layer_norm] expected eps of at least 0, got ", call.attrs.f(kEps));
  const DType statistics = accumulation_dtype(x.dtype());
  return {{x.dtype(), x.shape(), {}, false}, {statistics, leading, {}, false}, {statistics, leading, {}, false}};
}

void execute_layer_norm(const Launch& launch, Execution& run) { norm_forward(layer_norm_operands(launch), run); }

Tensors layer_norm_gradient(GradContext& ctx) {
  static const OpRef in_place{"layer_norm_backward_"}, fresh{"layer_norm_backward"};
  Tensors grads(3);
  if (ctx.grad_output(1).defined() || ctx.grad_output(2).defined())
    fail(Status::unsupported, "[layer_norm] has no gradient through mean and rstd: compute them with mean and rsqrt");
  const Tensor grad = ctx.grad_output(0);
  if (!grad.defined()) return grads;
  const bool wants_weight = ctx.has_input(1) && ctx.needs(1), wants_bias = ctx.has_input(2) && ctx.needs(2);
  const Tensor weight = ctx.has_input(1) ? ctx.input(1) : Tensor{};
  const GradTarget weight_target = wants_weight ? ctx.target(1) : GradTarget{},
                   bias_target = wants_bias ? ctx.target(2) : GradTarget{};
  // What else reached x, in a residual stream: dx is added to it in the same pass.
  const GradTarget sum = ctx.needs(0) ? ctx.target(0) : GradTarget{};
  const bool adds = sum.accumulate && sum.buffer.defined() && sum.buffer.dtype() == ctx.input_spec(0).dtype;
  const Attr axes = ctx.attrs()[kNumAxes];
  if (wants_weight == weight_target.buffer.defined() && wants_bias == bias_target.buffer.defined()) {
    const Tensor dx = in_place({weight_target.buffer, bias_target.buffer, grad, ctx.input(0), weight, ctx.output(1),
                                ctx.output(2), adds ? sum.buffer : Tensor{}},
                               {axes, Attr::of_bool(weight_target.accumulate), Attr::of_bool(bias_target.accumulate)});
    if (adds)
      ctx.consumed(0);
    else
      grads[0] = dx;
    if (wants_weight) ctx.consumed(1);
    if (wants_bias) ctx.consumed(2);
    return grads;
  }
  const Tensors all = fresh.many({grad, ctx.input(0), weight, ctx.output(1), ctx.output(2)}, {axes});
  grads[0] = all[0];
  if (wants_weight) grads[1] = all[1];
  if (wants_bias) grads[2] = all[2];
  return grads;
}

Tensors decompose_layer_norm(std::span<const Tensor> in, const Attrs& attrs) {
  static const OpRef mean_op{"mean"}, subtract{"subtract"}, multiply{"multiply"}, add{"add"}, rsqrt{"rsqrt"},
      reshape{"reshape"}, full{"full"};
  const Tensor& x = in[0];
  const int num_axes = static_cast<int>(attrs.i(kNumAxes));
  Dims axes;
  for (int i = x.rank() - num_axes; i < x.rank(); ++i) axes.push_back(i);
  const Attrs keep{Attr::of_axes(axes), Attr::of_bool(true)};
  const Tensor mean = mean_op({x}, keep), deviation = subtract({x, mean});
  const Tensor variance = mean_op({multiply({deviation, deviation})}, keep);
  const Tensor eps = full({}, {Attr::of_ints({}), attrs[kEps], Attr::of_dtype(x.dtype())});
  const Tensor rstd = rsqrt({add({variance, eps})});
  Tensor y = multiply({deviation, rstd});
  if (in[1].defined()) y = multiply({y, in[1]});
  if (in[2].defined()) y = add({y, in[2]});
  const Attrs leading{Attr::of_ints(leading_shape(x.shape(), num_axes))};
  return {y, reshape({mean}, leading), reshape({rstd}, leading)};
}

// ---------------------------------------------------------------- backward

// Inputs from `at`: grad_output, x, weight, mean, rstd.
void check_backward(const char* op, const OpCall& call, size_t at) {
  const Tensor &grad = call.inputs[at], &x = call.inputs[at + 1], &mean = call.inputs[at + 3],
               &rstd = call.inputs[at + 4];
  const int axes = check_norm_axes(op, x, call.attrs.i(0));
  check_norm_parameter(op, grad, "grad_output", x, x.shape());
  check_norm_parameter(op, call.inputs[at + 2], "weight", x, trailing_shape(x.shape(), axes));
  const Shape leading = leading_shape(x.shape(), axes);
  require(mean.shape() == leading && rstd.shape() == leading, "[", op, "] expected mean and rstd of shape ", leading,
          ", got ", mean.shape(), " and ", rstd.shape());
}

std::vector<TensorSpec> infer_backward(const OpCall& call) {
  check_backward("layer_norm_backward", call, 0);
  const Tensor& x = call.inputs[1];
  const Shape normalised = trailing_shape(x.shape(), static_cast<int>(call.attrs.i(0)));
  return {{x.dtype(), x.shape(), {}, false}, {x.dtype(), normalised, {}, false}, {x.dtype(), normalised, {}, false}};
}

void execute_backward(const Launch& launch, Execution& run) {
  norm_backward(layer_norm_backward_operands(launch), run);
}

std::vector<TensorSpec> infer_backward_in_place(const OpCall& call) {
  check_backward("layer_norm_backward_", call, 2);
  const Tensor& x = call.inputs[3];
  const Shape normalised = trailing_shape(x.shape(), static_cast<int>(call.attrs.i(0)));
  check_norm_target("layer_norm_backward_", call.inputs[0], "weight_grad", normalised);
  check_norm_target("layer_norm_backward_", call.inputs[1], "bias_grad", normalised);
  return norm_gradient_spec("layer_norm_backward_", x, call.inputs[7]);
}

void execute_backward_in_place(const Launch& launch, Execution& run) {
  norm_backward(layer_norm_backward_in_place_operands(launch), run);
}

}  // namespace

NormForward layer_norm_operands(const Launch& launch) {
  const auto &in = launch.inputs, &out = launch.outputs;
  return {
      in[0], in[1], in[2], out[0], out[1], out[2], launch.attrs.f(kEps), static_cast<int>(launch.attrs.i(kNumAxes))};
}

NormBackward layer_norm_backward_operands(const Launch& launch) {
  const auto &in = launch.inputs, &out = launch.outputs;
  return {in[0], in[1], in[2], in[3], in[4], out[0], out[1], out[2], static_cast<int>(launch.attrs.i(0)),
          false, false, false};
}

NormBackward layer_norm_backward_in_place_operands(const Launch& launch) {
  const auto& in = launch.inputs;
  const bool adds = in[7].defined();
  return {in[2],
          in[3],
          in[4],
          in[5],
          in[6],
          adds ? in[7] : launch.outputs[0],
          in[0],
          in[1],
          static_cast<int>(launch.attrs.i(0)),
          launch.attrs.b(1),
          launch.attrs.b(2),
          adds};
}

void register_layer_norm(OperatorRegistry& registry) {
  using Kind = InputSpec::Kind;
  const AttrSpec num_axes{"num_axes", AttrKind::integer, Attr::of_int(1), false, {}};
  {
    Operator op;
    op.name = "layer_norm";
    op.doc =
        "(x - mean) * rstd * weight + bias over the last num_axes axes, rstd = 1 / sqrt(variance + eps) with the "
        "biased variance, as PyTorch. x: "
        "[..., C], weight and bias: [C] or none; results: y like x, mean and rstd [...], in float32 (float64 for "
        "float64). Any floating dtype.";
    op.category = "Neural network";
    op.inputs = {{"x", Kind::required}, {"weight", Kind::optional}, {"bias", Kind::optional}};
    op.attrs = {{"eps", AttrKind::floating, Attr::of_float(1e-5), false, {}}, num_axes};
    op.num_outputs = 3;
    op.output_names = {"y", "mean", "rstd"};
    op.infer = infer_layer_norm;
    op.workspace = workspace_of<execute_layer_norm>;
    op.launch_cpu = launch_of<execute_layer_norm>;
    op.gradient = layer_norm_gradient;
    op.save_inputs = 0b111;
    op.save_outputs = 0b110;
    op.recompute = true;
    op.decompose = decompose_layer_norm;
    op.grad_cases = {{{{5, 7}}, {}, "normal"}, {{{2, 3, 4}}, {Attr::of_float(1e-5), Attr::of_int(2)}, "normal"}};
    registry.add(std::move(op));
  }
  {
    Operator op;
    op.name = "layer_norm_backward";
    op.doc = "Gradients of layer_norm with respect to x, weight and bias.";
    op.category = "Gradients";
    op.inputs = {{"grad_output", Kind::required},
                 {"x", Kind::required},
                 {"weight", Kind::optional},
                 {"mean", Kind::required},
                 {"rstd", Kind::required}};
    op.attrs = {num_axes};
    op.num_outputs = 3;
    op.output_names = {"x_grad", "weight_grad", "bias_grad"};
    op.infer = infer_backward;
    op.workspace = workspace_of<execute_backward>;
    op.launch_cpu = launch_of<execute_backward>;
    op.is_public = false;
    registry.add(std::move(op));
  }
  {
    Operator op;
    op.name = "layer_norm_backward_";
    op.doc =
        "layer_norm_backward with the gradients of weight and bias written into, or added to, their buffers; returns "
        "the gradient of x, or adds it to x_grad where that is given, and then returns a tensor of shape (0,).";
    op.category = "Gradients";
    op.inputs = {{"weight_grad", Kind::optional, true},
                 {"bias_grad", Kind::optional, true},
                 {"grad_output", Kind::required},
                 {"x", Kind::required},
                 {"weight", Kind::optional},
                 {"mean", Kind::required},
                 {"rstd", Kind::required},
                 {"x_grad", Kind::optional, true}};
    op.attrs = {num_axes,
                {"accumulate_weight", AttrKind::boolean, Attr::of_bool(false), false, {}},
                {"accumulate_bias", AttrKind::boolean, Attr::of_bool(false), false, {}}};
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
