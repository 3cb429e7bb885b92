// linear_cross_entropy: the language-model head and its loss as one operator that never holds the logits.
//
// Shapes: x [..., C], weight [V, C], targets [...]; inside, x is [N, C].
// Asked for gradients (compute_x_grad, compute_weight_grad: what the call will need in backward) it computes them in
// the forward pass, from logits that are in cache at that time, for an upstream gradient of 1; backward multiplies by
// the upstream gradient. The other way, keeping the log-sum-exp and computing the logits again in backward, needs no
// [V, C] buffer between the passes but a fourth GEMM.
#include <cstring>

#include "ops/all_operators.h"
#include "ops/kernels.h"
#include "ops/linear_cross_entropy/head.h"
#include "ops/linear_cross_entropy/reference.h"
#include "ops/parallel.h"
#include "ops/registry.h"

namespace blutensor {

namespace {

enum HeadAttr { kIgnoreIndex, kReduction, kComputeX, kComputeWeight, kNumClasses };

std::vector<TensorSpec> infer_head(const OpCall& call) {
  const Tensor &x = call.inputs[0], &weight = call.inputs[1], &targets = call.inputs[2];
  const char* op = "[linear_cross_entropy] ";
  require_type(is_floating(x.dtype()), op, "expected floating-point x, got ", describe(x));
  require_type(weight.dtype() == x.dtype(), op, "expected weight of dtype ", dtype_name(x.dtype()), " like x, got ",
               describe(weight));
  require_type(targets.dtype() == DType::int32 || targets.dtype() == DType::int64, op,
               "expected targets of dtype int32 or int64, got ", describe(targets), ": use astype");
  require(x.rank() >= 1 && weight.rank() == 2 && weight.size(1) == x.size(-1), op,
          "expected x [..., C] and weight (V, C), got ", x.shape(), " and ", weight.shape());
  Shape leading;
  for (int i = 0; i + 1 < x.rank(); ++i) leading.push_back(x.size(i));
  require(targets.shape() == leading, op, "expected targets of shape ", leading, " for x ", x.shape(), ", got ",
          targets.shape());
  const int64_t classes = call.attrs.i(kNumClasses);
  require(classes >= 0 && classes <= weight.size(0), op, "expected num_classes from 0 (all) to ", weight.size(0),
          ", the rows of weight, got ", classes);
  const auto gradient = [&](size_t attr, const Tensor& of, DType dtype) {
    return TensorSpec{dtype, call.attrs.b(attr) ? of.shape() : Shape{0}, {}, false};
  };
  // The weight's is a sum over tokens, and stays in the dtype that it is summed in.
  const DType sums = accumulation_dtype(x.dtype());
  return {{sums, {}, {}, false}, gradient(kComputeX, x, x.dtype()), gradient(kComputeWeight, weight, sums)};
}

// Targets as int64, ignored ones as -1; the others are checked before anything is computed.
void read_targets(const View& targets, int64_t num_classes, int64_t ignore_index, int64_t* out) {
  const int64_t count = targets.numel();
  copy_to_contiguous(targets, out, targets.dtype);
  if (targets.dtype == DType::int32) {
    const auto* narrow = reinterpret_cast<const int32_t*>(out);
    for (int64_t n = count - 1; n >= 0; --n) {  // widened in place, from the end
      int32_t value = 0;
      std::memcpy(&value, narrow + n, sizeof(value));
      out[n] = value;
    }
  }
  for (int64_t n = 0; n < count; ++n) {
    if (out[n] == ignore_index) {
      out[n] = -1;
    } else if (out[n] < 0 || out[n] >= num_classes) {
      fail(Status::index, "[linear_cross_entropy] expected targets from 0 to ", num_classes - 1, " or ignore_index ",
           ignore_index, ", got ", out[n], " at position ", n, " of targets ", targets.shape);
    }
  }
}

void execute_head(const Launch& launch, Execution& run) {
  const View &x = launch.inputs[0], &weight = launch.inputs[1], &targets = launch.inputs[2];
  const DType dtype = accumulation_dtype(x.dtype);
  const int64_t classes = num_classes(launch.attrs.i(kNumClasses), weight);
  auto* rows = run.take<int64_t>(targets.numel());
  if (!run.dry()) read_targets(targets, classes, launch.attrs.i(kIgnoreIndex), rows);
  HeadProblem problem;
  problem.x = run.matrix(x, x.rank() - 1, dtype);
  problem.weight = run.matrix(weight, 1, dtype).row_block(0, classes);
  problem.targets = rows;
  problem.mean = launch.attrs.s(kReduction) == "mean";
  problem.loss = launch.outputs[0].data;
  // A 16-bit gradient of x is summed in float32 and rounded once.
  const auto gradient = [&](bool wanted, const View& view, int leading) {
    Matrix matrix;
    if (!wanted) return matrix;
    if (view.dtype == dtype && as_matrix(view, leading, &matrix)) return matrix;
    return run.scratch(view.numel() / std::max<int64_t>(1, view.shape.back()), view.shape.back(), dtype);
  };
  problem.x_grad = gradient(launch.attrs.b(kComputeX), launch.outputs[1], x.rank() - 1);
  if (launch.attrs.b(kComputeWeight)) {
    const Matrix whole = gradient(true, launch.outputs[2], 1);
    const auto row_bytes = static_cast<size_t>(whole.row_stride) * dtype_size(dtype);
    if (!run.dry() && whole.rows > classes)
      std::memset(static_cast<char*>(whole.data) + static_cast<size_t>(classes) * row_bytes, 0,
                  static_cast<size_t>(whole.rows - classes) * row_bytes);
    problem.weight_grad = whole.row_block(0, classes);
  }
  run_head(problem, run);
  if (x.dtype != dtype && problem.x_grad.rows > 0) run.store(problem.x_grad, launch.outputs[1]);
}

Tensors head_gradient(GradContext& ctx) {
  static const OpRef scaled{"linear_cross_entropy_scale"}, in_place{"linear_cross_entropy_scale_"};
  Tensors grads(3);
  if (ctx.grad_output(1).defined() || ctx.grad_output(2).defined())
    fail(Status::unsupported,
         "[linear_cross_entropy] has no second derivative: use linear and cross_entropy where it is needed");
  const Tensor upstream = ctx.grad_output(0);
  if (!upstream.defined()) return grads;
  for (const int i : {0, 1}) {
    if (!ctx.needs(i)) continue;
    if (!ctx.attrs().b(i == 0 ? kComputeX : kComputeWeight))
      fail(Status::invalid_value, "[linear_cross_entropy] expected ", i == 0 ? "compute_x_grad" : "compute_weight_grad",
           " to be true where the gradient of ", i == 0 ? "x" : "weight", " is needed");
    const GradTarget target = ctx.target(i);
    if (target.buffer.defined()) {
      in_place.many({target.buffer, ctx.output(1 + i), upstream}, {Attr::of_bool(target.accumulate)});
      ctx.consumed(i);
    } else {
      grads[static_cast<size_t>(i)] = scaled({ctx.output(1 + i), upstream}, {Attr::of_dtype(ctx.input_spec(i).dtype)});
    }
  }
  return grads;
}

Tensors decompose_head(std::span<const Tensor> in, const Attrs& attrs) {
  static const OpRef linear{"linear"}, cross_entropy{"cross_entropy"}, reshape{"reshape"}, full{"full"}, slice{"slice"};
  const int64_t given = attrs.i(kNumClasses), classes = given ? given : in[1].size(0);
  const Tensor weight =
      classes == in[1].size(0)
          ? in[1]
          : slice({in[1]}, {Attr::of_ints({0, 0}), Attr::of_ints({classes, in[1].size(1)}), Attr::of_ints({1, 1})});
  const Tensor logits = linear({in[0], weight, {}, {}});
  const Tensor flat = reshape({logits}, {Attr::of_ints({in[2].numel(), classes})});
  const Tensor loss = cross_entropy({flat, reshape({in[2]}, {Attr::of_ints({in[2].numel()})})},
                                    {attrs[kIgnoreIndex], attrs[kReduction], Attr::of_float(0)});
  const auto none = [&](DType dtype) {
    return full({}, {Attr::of_ints({0}), Attr::of_float(0), Attr::of_dtype(dtype)});
  };
  return {loss, none(in[0].dtype()), none(accumulation_dtype(in[0].dtype()))};
}

// ---------------------------------------------------------------- the saved gradient times the upstream gradient

void check_scale(const char* op, const Tensor& gradient, const Tensor& scale) {
  require_type(is_floating(gradient.dtype()) && is_floating(scale.dtype()), "[", op,
               "] expected floating-point tensors, got ", describe(gradient), " and ", describe(scale));
  require(scale.numel() == 1, "[", op, "] expected a 0-d scale, got ", describe(scale));
}

void scale_into(const View& source, const View& scale_view, const View& target, bool accumulate, Execution& run) {
  const DType dtype = accumulation_dtype(source.dtype);
  const void* from = run.contiguous(source, dtype);
  const bool direct = target.dtype == dtype && target.contiguous();
  const Matrix to =
      direct ? Matrix{target.data, dtype, 1, target.numel(), target.numel(), 1} : run.scratch(1, target.numel(), dtype);
  if (run.dry()) return;
  const double scale = visit_floating(scale_view.dtype, "linear_cross_entropy", [&](auto tag) {
    using T = typename decltype(tag)::type;
    return static_cast<double>(static_cast<compute_t<T>>(*scale_view.ptr<T>()));
  });
  parallel_for(to.cols, kElementwiseGrain, [&](int64_t begin, int64_t end) {
    if (dtype == DType::float32)
      kernels().linear_cross_entropy.store_scaled_f32(static_cast<float*>(to.data) + begin,
                                                      static_cast<const float*>(from) + begin, end - begin,
                                                      static_cast<float>(scale), direct && accumulate);
    else
      store_scaled_reference(static_cast<double*>(to.data) + begin, static_cast<const double*>(from) + begin,
                             end - begin, scale, direct && accumulate);
  });
  if (!direct) run.store(to, target, accumulate);
}

void execute_scale(const Launch& launch, Execution& run) {
  scale_into(launch.inputs[0], launch.inputs[1], launch.outputs[0], false, run);
}
void execute_scale_in_place(const Launch& launch, Execution& run) {
  scale_into(launch.inputs[1], launch.inputs[2], launch.inputs[0], launch.attrs.b(0), run);
}

}  // namespace

void register_linear_cross_entropy(OperatorRegistry& registry) {
  using Kind = InputSpec::Kind;
  const auto boolean = [](const char* name) {
    return AttrSpec{name, AttrKind::boolean, Attr::of_bool(false), false, {}};
  };
  {
    Operator op;
    op.name = "linear_cross_entropy";
    op.doc =
        "cross_entropy(x @ weight.T, targets) without holding the logits. x: [..., C], weight: [V, C], any floating "
        "dtype; targets: int32 or int64 "
        "[...], from 0 to V - 1 or ignore_index; result: 0-d loss in float32 (float64 for float64), the sum over the "
        "targets that count, or their mean "
        "(NaN when none counts). num_classes, where not 0, leaves out the rows of weight from it on, which pad a "
        "vocabulary: they take no part in the loss, and have gradient 0. compute_x_grad and compute_weight_grad say "
        "which gradients backward will need: they "
        "are computed at once and are the "
        "other two results, of shape (0,) where not asked for.";
    op.category = "Neural network";
    op.inputs = {{"x", Kind::required}, {"weight", Kind::required}, {"targets", Kind::required}};
    op.attrs = {{"ignore_index", AttrKind::integer, Attr::of_int(-100), false, {}},
                {"reduction", AttrKind::string, Attr::of_string("mean"), false, {"mean", "sum"}},
                boolean("compute_x_grad"),
                boolean("compute_weight_grad"),
                {"num_classes", AttrKind::integer, Attr::of_int(0), false, {}}};
    op.num_outputs = 3;
    op.output_names = {"loss", "x_grad", "weight_grad"};
    op.infer = infer_head;
    op.workspace = workspace_of<execute_head>;
    op.launch_cpu = launch_of<execute_head>;
    op.gradient = head_gradient;
    op.save_outputs = 0b110;
    op.decompose = decompose_head;
    registry.add(std::move(op));
  }
  {
    Operator op;
    op.name = "linear_cross_entropy_scale";
    op.doc =
        "gradient * scale in a floating dtype, scale 0-d: a gradient that linear_cross_entropy saved, for the upstream "
        "gradient of its loss.";
    op.category = "Gradients";
    op.inputs = {{"gradient", Kind::required}, {"scale", Kind::required}};
    op.attrs = {{"dtype", AttrKind::dtype, Attr::of_dtype(DType::float32), true, {}}};
    op.output_names = {"scaled"};
    op.infer = [](const OpCall& call) -> std::vector<TensorSpec> {
      check_scale("linear_cross_entropy_scale", call.inputs[0], call.inputs[1]);
      require_type(is_floating(call.attrs.dtype(0)),
                   "[linear_cross_entropy_scale] expected a floating-point dtype, got ",
                   dtype_name(call.attrs.dtype(0)));
      return {{call.attrs.dtype(0), call.inputs[0].shape(), {}, false}};
    };
    op.workspace = workspace_of<execute_scale>;
    op.launch_cpu = launch_of<execute_scale>;
    op.is_public = false;
    registry.add(std::move(op));
  }
  {
    Operator op;
    op.name = "linear_cross_entropy_scale_";
    op.doc = "linear_cross_entropy_scale written into, or added to, a gradient buffer.";
    op.category = "Gradients";
    op.inputs = {{"target", Kind::required, true}, {"gradient", Kind::required}, {"scale", Kind::required}};
    op.attrs = {boolean("accumulate")};
    op.num_outputs = 0;
    op.infer = [](const OpCall& call) -> std::vector<TensorSpec> {
      check_scale("linear_cross_entropy_scale_", call.inputs[1], call.inputs[2]);
      require(call.inputs[0].shape() == call.inputs[1].shape() && is_floating(call.inputs[0].dtype()),
              "[linear_cross_entropy_scale_] expected target like ", describe(call.inputs[1]), ", got ",
              describe(call.inputs[0]));
      return {};
    };
    op.workspace = workspace_of<execute_scale_in_place>;
    op.launch_cpu = launch_of<execute_scale_in_place>;
    op.effect = Effect::writes;
    op.is_public = false;
    registry.add(std::move(op));
  }
}

}  // namespace blutensor
