// cross_entropy: mean, sum or list of -log softmax(logits)[target], and its gradient.
//
// With label smoothing e the loss is the mean over all classes of -log softmax by a weight of e, and that of the target
// by 1 - e (Szegedy et al., 2016).
// Shapes: logits [..., V], targets [...] int32 or int64. A row is one position of the leading axes.
// log(sum(exp(row))) is kept in two parts, maximum and log_sum [...]: rounding their sum would cost the gradient up
// to |maximum| units in the last place.
#include <cmath>
#include <limits>

#include "ops/all_operators.h"
#include "ops/cross_entropy/cross_entropy_kernels.h"
#include "ops/elementwise/compose.h"
#include "ops/kernels.h"
#include "ops/parallel.h"
#include "ops/registry.h"
#include "ops/softmax/row_offsets.h"

namespace blutensor {

namespace {

enum class Reduction { none, mean, sum };

Reduction reduction_of(const Attrs& attrs) {
  return attrs.s(1) == "none" ? Reduction::none : attrs.s(1) == "sum" ? Reduction::sum : Reduction::mean;
}

double smoothing_of(const Attrs& attrs) { return attrs.f(2); }

DType stat_dtype(DType dtype) { return dtype == DType::float64 ? DType::float64 : DType::float32; }

Shape without_last(Shape shape) {
  shape.resize(shape.size() - 1);
  return shape;
}

// ---------------------------------------------------------------- targets

class Targets {
 public:
  Targets(const View& view, int64_t ignore_index) : view_(view), rows_(view, -1), ignore_(ignore_index) {}
  int64_t at(int64_t row) const {
    const int64_t offset = rows_(row);
    return view_.dtype == DType::int32 ? view_.ptr<int32_t>()[offset] : view_.ptr<int64_t>()[offset];
  }
  bool ignored(int64_t target) const { return target == ignore_; }
  // Number of rows that count; throws when a target names no class.
  int64_t check(int64_t num_classes) const {
    int64_t valid = 0;
    for (int64_t row = 0; row < rows_.count(); ++row) {
      const int64_t target = at(row);
      if (ignored(target)) continue;
      if (target < 0 || target >= num_classes)
        fail(Status::index, "[cross_entropy] expected targets in [0, ", num_classes, ") or ignore_index = ", ignore_,
             ", got ", target, " at row ", row);
      ++valid;
    }
    return valid;
  }

 private:
  const View& view_;
  RowOffsets rows_;
  int64_t ignore_;
};

void check_operands(const char* op, const Tensor& logits, const Tensor& targets) {
  require_type(is_floating(logits.dtype()), "[", op, "] expected floating-point logits, got ", describe(logits));
  require_type(targets.dtype() == DType::int32 || targets.dtype() == DType::int64, "[", op,
               "] expected int32 or int64 targets, got ", describe(targets));
  require(logits.rank() >= 1, "[", op, "] expected logits [..., V], got a 0-d tensor");
  require(targets.shape() == without_last(logits.shape()), "[", op, "] expected targets of shape ",
          without_last(logits.shape()), " for logits ", logits.shape(), ", got ", targets.shape());
}

void check_smoothing(const char* op, const Attrs& attrs) {
  require(smoothing_of(attrs) >= 0 && smoothing_of(attrs) <= 1, "[", op, "] expected label_smoothing from 0 to 1, got ",
          smoothing_of(attrs));
}

// Mean of maximum - logit over a row. The sums of eight columns do not wait for each other.
template <class T, class Stat>
double mean_below(const T* x, int64_t stride, int64_t n, Stat maximum) {
  double sums[8] = {};
  for (int64_t j = 0; j < n; ++j)
    sums[j % 8] += static_cast<double>(maximum) - static_cast<double>(static_cast<Stat>(x[j * stride]));
  double sum = 0;
  for (const double s : sums) sum += s;
  return sum / static_cast<double>(n);
}

int64_t rows_per_task(int64_t num_classes) {
  return std::max<int64_t>(1, kElementwiseGrain / std::max<int64_t>(num_classes, 1));
}

// ---------------------------------------------------------------- forward

std::vector<TensorSpec> infer_forward(const OpCall& call) {
  const Tensor &logits = call.inputs[0], &targets = call.inputs[1];
  check_operands("cross_entropy", logits, targets);
  check_smoothing("cross_entropy", call.attrs);
  const DType dtype = stat_dtype(logits.dtype());
  const bool scalar = reduction_of(call.attrs) != Reduction::none;
  return {{dtype, scalar ? Shape{} : targets.shape(), {}, false},
          {dtype, targets.shape(), {}, false},
          {dtype, targets.shape(), {}, false}};
}

size_t workspace_forward(const Launch& launch) {
  if (reduction_of(launch.attrs) == Reduction::none) return 0;
  return static_cast<size_t>(launch.outputs[1].numel()) * sizeof(double);  // losses of the rows
}

void launch_forward(const Launch& launch) {
  const View &logits = launch.inputs[0], &loss = launch.outputs[0], &maximum = launch.outputs[1],
             &log_sum = launch.outputs[2];
  const Targets targets(launch.inputs[1], launch.attrs.i(0));
  const Reduction reduction = reduction_of(launch.attrs);
  const double smoothing = smoothing_of(launch.attrs);
  const int64_t num_classes = logits.shape.back(), stride = logits.strides.back(), num_rows = maximum.numel();
  const int64_t num_valid = targets.check(num_classes);
  const RowOffsets logits_rows(logits, logits.rank() - 1);
  visit_floating(logits.dtype, "cross_entropy", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using Stat = compute_t<T>;
    double* losses = static_cast<double*>(launch.workspace);
    parallel_for(num_rows, rows_per_task(num_classes), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const T* x = logits.ptr<T>() + logits_rows(row);
        RowSum<Stat> parts;
        if constexpr (std::is_same_v<T, float>) {
          parts = stride == 1 ? kernels().cross_entropy.row_sum(x, num_classes)
                              : row_sum_reference<T, Stat>(x, stride, num_classes);
        } else {
          parts = row_sum_reference<T, Stat>(x, stride, num_classes);
        }
        maximum.ptr<Stat>()[row] = parts.maximum;
        const double log = std::log(parts.sum);
        log_sum.ptr<Stat>()[row] = static_cast<Stat>(log);
        const int64_t target = targets.at(row);
        double value = 0;
        if (!targets.ignored(target)) {
          const auto logit = static_cast<double>(static_cast<Stat>(x[target * stride]));
          value = (static_cast<double>(parts.maximum) - logit) + log;
          if (smoothing > 0)
            value = (1 - smoothing) * (static_cast<double>(parts.maximum) - logit) + log +
                    smoothing * mean_below<T, Stat>(x, stride, num_classes, parts.maximum);
        }
        if (reduction == Reduction::none)
          loss.ptr<Stat>()[row] = static_cast<Stat>(value);
        else
          losses[row] = value;
      }
    });
    if (reduction == Reduction::none) return;
    double sum = 0;
    for (int64_t row = 0; row < num_rows; ++row) sum += losses[row];
    if (reduction == Reduction::mean)
      sum = num_valid > 0 ? sum / static_cast<double>(num_valid) : std::numeric_limits<double>::quiet_NaN();
    *loss.ptr<Stat>() = static_cast<Stat>(sum);
  });
}

Tensors forward_gradient(GradContext& ctx) {
  static const OpRef backward{"cross_entropy_backward"};
  if (ctx.grad_output(1).defined() || ctx.grad_output(2).defined())
    fail(
        Status::unsupported,
        "[cross_entropy] only the loss has a gradient; take logsumexp from max, exp and sum where one is needed of it");
  const Tensor grad = ctx.grad_output(0);
  if (!ctx.needs(0) || !grad.defined()) return Tensors(2);
  return {backward({grad, ctx.input(0), ctx.input(1), ctx.output(1), ctx.output(2)}, ctx.attrs()), Tensor{}};
}

Tensors decompose_forward(std::span<const Tensor> inputs, const Attrs& attrs) {
  static const OpRef maximum{"max"}, subtract{"subtract"}, exponential{"exp"}, sum{"sum"}, divide{"divide"},
      logarithm{"log"};
  static const OpRef arange{"arange"}, expand{"expand_dims"}, squeeze{"squeeze"}, equal{"equal"},
      not_equal{"not_equal"}, where{"where"};
  const DType dtype = stat_dtype(inputs[0].dtype());
  const Tensor logits = cast_to(inputs[0], dtype), targets = cast_to(inputs[1], DType::int64);
  const Attr last = Attr::of_axes({logits.rank() - 1}), keepdims = Attr::of_bool(true);
  const Tensor top = maximum({logits}, {last, keepdims});
  const Tensor shifted = subtract({logits, top});
  const Tensor log_sum = logarithm({sum({exponential({shifted})}, {last, keepdims})});
  const Tensor classes = arange({}, {Attr::of_float(0), Attr::of_float(static_cast<double>(logits.size(-1))),
                                     Attr::of_float(1), Attr::of_dtype(DType::int64)});
  const Tensor hit = equal({expand({targets}, {Attr::of_int(-1)}), classes}), zero = constant(0, dtype);
  const Tensor chosen = sum({where({hit, shifted, zero})}, {last, Attr::of_bool(false)});
  const Tensor valid = not_equal({targets, constant(static_cast<double>(attrs.i(0)), DType::int64)});
  Tensor below = chosen;
  if (const double smoothing = smoothing_of(attrs); smoothing > 0) {
    static const OpRef mean{"mean"}, add{"add"};
    below = add({scaled(chosen, 1 - smoothing), scaled(mean({shifted}, {last, Attr::of_bool(false)}), smoothing)});
  }
  Tensor loss = where({valid, subtract({squeeze({log_sum}, {last}), below}), zero});
  const auto sum_all = [&](const Tensor& t) {
    return t.rank() == 0 ? t : sum({t}, {Attr::of_all_axes(), Attr::of_bool(false)});
  };
  if (reduction_of(attrs) == Reduction::mean) loss = divide({sum_all(loss), sum_all(cast_to(valid, dtype))});
  if (reduction_of(attrs) == Reduction::sum) loss = sum_all(loss);
  return {loss, squeeze({top}, {last}), squeeze({log_sum}, {last})};
}

// ---------------------------------------------------------------- backward

std::vector<TensorSpec> infer_backward(const OpCall& call) {
  const char* op = "cross_entropy_backward";
  const Tensor &grad = call.inputs[0], &logits = call.inputs[1], &targets = call.inputs[2];
  check_operands(op, logits, targets);
  check_smoothing(op, call.attrs);
  const DType dtype = stat_dtype(logits.dtype());
  const Shape expected = reduction_of(call.attrs) == Reduction::none ? targets.shape() : Shape{};
  require(grad.shape() == expected && grad.dtype() == dtype, "[", op, "] expected grad_output ", dtype_name(dtype),
          expected, ", got ", describe(grad));
  for (const Tensor& t : {call.inputs[3], call.inputs[4]})
    require(t.shape() == targets.shape() && t.dtype() == dtype && t.contiguous(), "[", op, "] expected row statistics ",
            dtype_name(dtype), targets.shape(), ", got ", describe(t));
  return {{logits.dtype(), logits.shape(), {}, false}};
}

void launch_backward(const Launch& launch) {
  const View &grad = launch.inputs[0], &logits = launch.inputs[1], &maximum = launch.inputs[3],
             &log_sum = launch.inputs[4];
  const Targets targets(launch.inputs[2], launch.attrs.i(0));
  const RowOffsets grad_rows(grad, -1);
  const Reduction reduction = reduction_of(launch.attrs);
  const double smoothing = smoothing_of(launch.attrs);
  const int64_t num_classes = logits.shape.back(), stride = logits.strides.back(), num_rows = maximum.numel();
  const int64_t num_valid = targets.check(num_classes);
  const RowOffsets logits_rows(logits, logits.rank() - 1);
  visit_floating(logits.dtype, "cross_entropy", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using Stat = compute_t<T>;
    parallel_for(num_rows, rows_per_task(num_classes), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const T* x = logits.ptr<T>() + logits_rows(row);
        T* out = launch.outputs[0].ptr<T>() + row * num_classes;
        const int64_t target = targets.at(row);
        if (targets.ignored(target)) {
          for (int64_t j = 0; j < num_classes; ++j) out[j] = T(0.0f);
          continue;
        }
        Stat scale = grad.ptr<Stat>()[reduction == Reduction::none ? grad_rows(row) : 0];
        if (reduction == Reduction::mean) scale /= static_cast<Stat>(num_valid);
        const LogSumExp<Stat> parts{maximum.ptr<Stat>()[row], log_sum.ptr<Stat>()[row]};
        const Stat share = static_cast<Stat>(smoothing / static_cast<double>(num_classes)), offset = share * scale;
        if constexpr (std::is_same_v<T, float>) {
          if (stride == 1)
            kernels().cross_entropy.probabilities(x, out, num_classes, parts, scale, offset);
          else
            probabilities_reference<T, Stat>(x, stride, out, num_classes, parts, scale, offset);
        } else {
          probabilities_reference<T, Stat>(x, stride, out, num_classes, parts, scale, offset);
        }
        const Stat logit = static_cast<Stat>(x[target * stride]), hit = static_cast<Stat>(1 - smoothing) + share;
        out[target] = static_cast<T>((std::exp((logit - parts.maximum) - parts.log_sum) - hit) * scale);
      }
    });
  });
}

}  // namespace

void register_cross_entropy(OperatorRegistry& registry) {
  using Kind = InputSpec::Kind;
  const std::vector<AttrSpec> attrs = {
      {"ignore_index", AttrKind::integer, Attr::of_int(-100), false, {}},
      {"reduction", AttrKind::string, Attr::of_string("mean"), false, {"mean", "sum", "none"}},
      {"label_smoothing", AttrKind::floating, Attr::of_float(0), false, {}}};
  {
    Operator op;
    op.name = "cross_entropy";
    op.doc =
        "-log(softmax(logits)[target]) of every row. logits: [..., V], any floating dtype; targets: [...], int32 or "
        "int64, in [0, V) or ignore_index (IndexError otherwise, before anything is written). Results: loss, float32 "
        "(float64 for float64 logits): 0-d for reduction 'mean' (over the rows that are not ignored; NaN when all "
        "are) and 'sum', [...] for 'none' (0 where ignored); label_smoothing e gives every class a share e / V of the "
        "target's weight; and, without a gradient, maximum and log_sum [...] of "
        "the rows: logsumexp is their sum.";
    op.category = "Neural network";
    op.inputs = {{"logits", Kind::required}, {"targets", Kind::required}};
    op.attrs = attrs;
    op.num_outputs = 3;
    op.output_names = {"loss", "maximum", "log_sum"};
    op.infer = infer_forward;
    op.workspace = workspace_forward;
    op.launch_cpu = launch_forward;
    op.gradient = forward_gradient;
    op.save_inputs = 0b11;
    op.save_outputs = 0b110;
    op.decompose = decompose_forward;
    registry.add(std::move(op));
  }
  {
    Operator op;
    op.name = "cross_entropy_backward";
    op.doc =
        "Gradient of cross_entropy with respect to logits: (softmax(logits) - smoothed onehot(targets)) * grad_output, "
        "divided by the number of rows that count for reduction 'mean'; maximum and log_sum [...] are "
        "cross_entropy's. Ignored rows get 0.";
    op.category = "Gradients";
    op.inputs = {{"grad_output", Kind::required},
                 {"logits", Kind::required},
                 {"targets", Kind::required},
                 {"maximum", Kind::required},
                 {"log_sum", Kind::required}};
    op.attrs = attrs;
    op.output_names = {"grad_logits"};
    op.infer = infer_backward;
    op.launch_cpu = launch_backward;
    op.is_public = false;
    registry.add(std::move(op));
  }
}

}  // namespace blutensor
