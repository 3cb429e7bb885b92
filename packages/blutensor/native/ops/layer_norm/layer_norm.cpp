// layer_norm over the trailing axes, and its backward operators.
//
// Shapes: x and y [..., C...], weight and bias [C...], mean and rstd [...]; inside, x is [M, C].
// The gradients of weight and bias are sums over M in two stages: blocks of rows, cut by M alone, each add their rows
// into partial sums in workspace; the partial sums are added in the order of the blocks, in double.
#include "ops/all_operators.h"
#include "ops/kernels.h"
#include "ops/layer_norm/layer_norm_kernels.h"
#include "ops/layer_norm/reference.h"
#include "ops/matmul/operand.h"
#include "ops/parallel.h"
#include "ops/registry.h"

namespace blutensor {

namespace {

constexpr int64_t kMaxBlocks = 64;

// Rows per parallel task of the forward pass.
int64_t forward_grain(int64_t cols) { return std::max<int64_t>(1, kElementwiseGrain / std::max<int64_t>(1, cols)); }
int64_t backward_grain(int64_t rows) { return std::max<int64_t>(16, (rows + kMaxBlocks - 1) / kMaxBlocks); }

Shape leading_shape(const Shape& shape, int trailing) {
  Shape leading;
  for (int i = 0; i + trailing < shape.size(); ++i) leading.push_back(shape[i]);
  return leading;
}

Shape trailing_shape(const Shape& shape, int trailing) {
  Shape out;
  for (int i = shape.size() - trailing; i < shape.size(); ++i) out.push_back(shape[i]);
  return out;
}

void check_parameter(const char* op, const Tensor& parameter, const char* name, const Tensor& x, const Shape& shape) {
  if (!parameter.defined()) return;
  require_type(parameter.dtype() == x.dtype(), "[", op, "] expected ", name, " of dtype ", dtype_name(x.dtype()),
               " like x, got ", describe(parameter));
  require(parameter.shape() == shape, "[", op, "] expected ", name, " of shape ", shape, " for x ", x.shape(), ", got ",
          parameter.shape());
}

int check_axes(const char* op, const Tensor& x, int64_t num_axes) {
  require_type(is_floating(x.dtype()), "[", op, "] expected floating-point x, got ", describe(x));
  require(num_axes >= 1 && num_axes <= x.rank(), "[", op, "] expected to normalise 1 to ", x.rank(),
          " trailing axes of x ", x.shape(), ", got ", num_axes);
  return static_cast<int>(num_axes);
}

DType statistics_dtype(DType dtype) { return accumulation_dtype(dtype); }

// ---------------------------------------------------------------- forward

enum ForwardAttr { kEps, kNumAxes };

std::vector<TensorSpec> infer_layer_norm(const OpCall& call) {
  const Tensor& x = call.inputs[0];
  const int axes = check_axes("layer_norm", x, call.attrs.i(kNumAxes));
  const Shape normalised = trailing_shape(x.shape(), axes), leading = leading_shape(x.shape(), axes);
  check_parameter("layer_norm", call.inputs[1], "weight", x, normalised);
  check_parameter("layer_norm", call.inputs[2], "bias", x, normalised);
  require(call.attrs.f(kEps) >= 0, "[layer_norm] expected eps of at least 0, got ", call.attrs.f(kEps));
  const DType statistics = statistics_dtype(x.dtype());
  return {{x.dtype(), x.shape(), {}, false}, {statistics, leading, {}, false}, {statistics, leading, {}, false}};
}

template <class T>
void forward(const Matrix& x, const void* weight, const void* bias, double eps, const Launch& launch) {
  using C = compute_t<T>;
  parallel_for(x.rows, forward_grain(x.cols), [&](int64_t begin, int64_t end) {
    const T* rows = static_cast<const T*>(x.data) + begin * x.row_stride;
    T* y = launch.outputs[0].ptr<T>() + begin * x.cols;
    C *mean = launch.outputs[1].ptr<C>() + begin, *rstd = launch.outputs[2].ptr<C>() + begin;
    if constexpr (std::is_same_v<T, float>)
      kernels().layer_norm.forward_f32({rows, x.row_stride, static_cast<const T*>(weight), static_cast<const T*>(bias),
                                        static_cast<float>(eps), end - begin, x.cols, y, mean, rstd});
    else
      layer_norm_forward_reference<T>(rows, x.row_stride, static_cast<const T*>(weight), static_cast<const T*>(bias),
                                      eps, end - begin, x.cols, y, mean, rstd);
  });
}

void execute_layer_norm(const Launch& launch, Execution& run) {
  const View& x = launch.inputs[0];
  const Matrix rows = run.rows(x, x.rank() - static_cast<int>(launch.attrs.i(kNumAxes)), x.dtype);
  const void *weight = run.contiguous(launch.inputs[1], x.dtype), *bias = run.contiguous(launch.inputs[2], x.dtype);
  if (run.dry()) return;
  visit_floating(x.dtype, "layer_norm", [&](auto tag) {
    forward<typename decltype(tag)::type>(rows, weight, bias, launch.attrs.f(kEps), launch);
  });
}

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
  const Attrs keep{Attr::of_ints(axes), Attr::of_bool(true)};
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

struct BackwardOperands {
  View grad, x, weight, mean, rstd, dx, dweight, dbias;  // the last two may be undefined
  int num_axes;
  bool accumulate_weight, accumulate_bias, accumulate_x;
};

// Where the rows of a task's block go before they are added to dx: of each thread. None where dx is written.
struct AddScratch {
  char* data = nullptr;
  size_t bytes = 0;
  int32_t threads = 0;  // no limit
};

template <class T>
void backward_blocks(const Matrix& dy, const Matrix& x, const void* weight, const void* mean, const void* rstd, T* dx,
                     compute_t<T>* partial, const AddScratch& scratch) {
  using C = compute_t<T>;
  const int64_t grain = backward_grain(x.rows), cols = x.cols;
  const auto task = [&](int64_t begin, int64_t end, int32_t thread) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t row = block * grain, rows = std::min(grain, x.rows - row);
      const T *dy_rows = static_cast<const T*>(dy.data) + row * dy.row_stride,
              *x_rows = static_cast<const T*>(x.data) + row * x.row_stride;
      const C *means = static_cast<const C*>(mean) + row, *rstds = static_cast<const C*>(rstd) + row;
      C *dweight = partial + 2 * block * cols, *dbias = dweight + cols;
      T *to = dx + row * cols, *fresh = to;
      if (scratch.data) fresh = reinterpret_cast<T*>(scratch.data + static_cast<size_t>(thread) * scratch.bytes);
      if constexpr (std::is_same_v<T, float>)
        kernels().layer_norm.backward_f32({dy_rows, dy.row_stride, x_rows, x.row_stride, static_cast<const T*>(weight),
                                           means, rstds, rows, cols, fresh, dweight, dbias});
      else
        layer_norm_backward_reference<T>(dy_rows, dy.row_stride, x_rows, x.row_stride, static_cast<const T*>(weight),
                                         means, rstds, rows, cols, fresh, dweight, dbias);
      if (fresh == to) continue;
      for (int64_t i = 0; i < rows * cols; ++i)
        to[i] = static_cast<T>(static_cast<C>(to[i]) + static_cast<C>(fresh[i]));
    }
  };
  parallel_for_threads((x.rows + grain - 1) / grain, 1, task, scratch.threads);
}

// total[j] = sum over blocks of partial[block][j], j in [0, 2 cols).
template <class C>
void add_blocks(const C* partial, int64_t blocks, int64_t width, C* total) {
  constexpr int64_t kColumns = 64;
  parallel_for((width + kColumns - 1) / kColumns, 16, [&](int64_t begin, int64_t end) {
    for (int64_t j = begin * kColumns; j < std::min(width, end * kColumns); j += kColumns) {
      double sums[kColumns] = {};
      const int64_t count = std::min(kColumns, width - j);
      for (int64_t block = 0; block < blocks; ++block)
        for (int64_t i = 0; i < count; ++i) sums[i] += static_cast<double>(partial[block * width + j + i]);
      for (int64_t i = 0; i < count; ++i) total[j + i] = static_cast<C>(sums[i]);
    }
  });
}

void backward(const BackwardOperands& a, Execution& run) {
  const DType dtype = a.x.dtype, statistics = statistics_dtype(dtype);
  const int leading = a.x.rank() - a.num_axes;
  const Matrix dy = run.rows(a.grad, leading, dtype), x = run.rows(a.x, leading, dtype);
  const void *weight = run.contiguous(a.weight, dtype), *mean = run.contiguous(a.mean, statistics),
             *rstd = run.contiguous(a.rstd, statistics);
  const int64_t grain = backward_grain(x.rows), blocks = (x.rows + grain - 1) / grain;
  const Matrix partial = run.scratch(blocks, 2 * x.cols, statistics), total = run.scratch(2, x.cols, statistics);
  AddScratch add;
  if (a.accumulate_x) {
    add.bytes = (static_cast<size_t>(grain * x.cols) * dtype_size(dtype) + 63) / 64 * 64;
    add.threads = run.take_per_thread(add.bytes, &add.data);
  }
  if (run.dry()) return;
  visit_floating(dtype, "layer_norm_backward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = compute_t<T>;
    backward_blocks<T>(dy, x, weight, mean, rstd, a.dx.ptr<T>(), static_cast<C*>(partial.data), add);
    if (a.dweight.defined() || a.dbias.defined())
      add_blocks<C>(static_cast<const C*>(partial.data), blocks, 2 * x.cols, static_cast<C*>(total.data));
  });
  if (a.dweight.defined()) run.store(total.row_block(0, 1), a.dweight, a.accumulate_weight);
  if (a.dbias.defined()) run.store(total.row_block(1, 1), a.dbias, a.accumulate_bias);
}

// Inputs from `at`: grad_output, x, weight, mean, rstd.
void check_backward(const char* op, const OpCall& call, size_t at) {
  const Tensor &grad = call.inputs[at], &x = call.inputs[at + 1], &mean = call.inputs[at + 3],
               &rstd = call.inputs[at + 4];
  const int axes = check_axes(op, x, call.attrs.i(0));
  check_parameter(op, grad, "grad_output", x, x.shape());
  check_parameter(op, call.inputs[at + 2], "weight", x, trailing_shape(x.shape(), axes));
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
  const auto& in = launch.inputs;
  backward({in[0], in[1], in[2], in[3], in[4], launch.outputs[0], launch.outputs[1], launch.outputs[2],
            static_cast<int>(launch.attrs.i(0)), false, false, false},
           run);
}

std::vector<TensorSpec> infer_backward_in_place(const OpCall& call) {
  check_backward("layer_norm_backward_", call, 2);
  const Tensor& x = call.inputs[3];
  const Shape normalised = trailing_shape(x.shape(), static_cast<int>(call.attrs.i(0)));
  for (size_t i = 0; i < 2; ++i)
    if (call.inputs[i].defined())
      require(call.inputs[i].shape() == normalised && is_floating(call.inputs[i].dtype()),
              "[layer_norm_backward_] expected ", i ? "bias_grad " : "weight_grad ", normalised, ", got ",
              describe(call.inputs[i]));
  const Tensor& sum = call.inputs[7];
  if (!sum.defined()) return {{x.dtype(), x.shape(), {}, false}};
  require(sum.shape() == x.shape() && sum.dtype() == x.dtype() && sum.contiguous(),
          "[layer_norm_backward_] expected a contiguous x_grad like x, ", describe(x), ", got ", describe(sum));
  return {{x.dtype(), {0}, {}, false}};
}

void execute_backward_in_place(const Launch& launch, Execution& run) {
  const auto& in = launch.inputs;
  const bool adds = in[7].defined();
  backward({in[2], in[3], in[4], in[5], in[6], adds ? in[7] : launch.outputs[0], in[0], in[1],
            static_cast<int>(launch.attrs.i(0)), launch.attrs.b(1), launch.attrs.b(2), adds},
           run);
}

}  // namespace

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
