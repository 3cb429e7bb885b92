// Optimizers as multi-tensor operators that write in place, gradient norm and clipping.
//
// Every operator makes one pass over all tensors of its lists. The work is cut into chunks of kChunk elements that
// never span two tensors, so that what is added to what depends on the sizes alone. Tensors that are not contiguous go
// through contiguous copies. Scalars that change from step to step (lr, step, grad_scale, skip) are 0-d tensors, so
// that a captured step reads them anew.
#include <algorithm>
#include <cmath>

#include "ops/all_operators.h"
#include "ops/copy/copy.h"
#include "ops/kernels.h"
#include "ops/matmul/operand.h"
#include "ops/optimizer/adamw.h"
#include "ops/optimizer/optimizer_kernels.h"
#include "ops/optimizer/reference.h"
#include "ops/parallel.h"
#include "ops/registry.h"

namespace blutensor {

namespace {

constexpr int64_t kChunk = 32768;

// ---------------------------------------------------------------- scalars and lists

double read_scalar(const View& view, double absent) {
  if (!view.defined()) return absent;
  return visit_dtype(view.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    return static_cast<double>(static_cast<compute_t<T>>(*view.ptr<T>()));
  });
}

void check_scalar(const char* op, const Tensor& tensor, const char* name) {
  if (tensor.defined())
    require(tensor.numel() == 1, "[", op, "] expected '", name, "' to be a 0-d tensor, got ", describe(tensor));
}

// The lists' tensors at position i: each of the shape of its parameter, and of `dtype`.
void check_position(const char* op, const OpCall& call, size_t fixed, size_t num_lists, const char* const* names,
                    size_t i, DType dtype) {
  const auto length = static_cast<size_t>(call.list_length);
  const Tensor& param = call.inputs[fixed + i];
  for (size_t list = 1; list < num_lists; ++list) {
    const Tensor& other = call.inputs[fixed + list * length + i];
    require(other.defined() && other.shape() == param.shape() && other.dtype() == dtype, "[", op, "] expected ",
            names[list], "[", i, "] like its parameter ", describe(param),
            dtype == param.dtype() ? "" : text(", but ", dtype_name(dtype)), ", got ",
            other.defined() ? describe(other) : "none");
  }
}

// All lists alike: float32 or float64.
void check_lists(const char* op, const OpCall& call, size_t fixed, size_t num_lists, const char* const* names) {
  for (size_t i = 0; i < static_cast<size_t>(call.list_length); ++i) {
    const Tensor& param = call.inputs[fixed + i];
    require_type(param.dtype() == DType::float32 || param.dtype() == DType::float64, "[", op,
                 "] expected float32 or float64 parameters, got ", describe(param), " at position ", i);
    check_position(op, call, fixed, num_lists, names, i, param.dtype());
  }
}

// Chunks of kChunk elements over a list of tensors.
class Chunks {
 public:
  Chunks(Execution& run, std::span<const View> tensors)
      : starts_(run.take<int64_t>(static_cast<int64_t>(tensors.size()) + 1)), tensors_(tensors) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (starts_) starts_[i] = count_;
      count_ += (tensors[i].numel() + kChunk - 1) / kChunk;
    }
    if (starts_) starts_[tensors.size()] = count_;
  }
  int64_t count() const { return count_; }

  // body(tensor, first element, number of elements, chunk) for all chunks, in parallel.
  template <class Body>
  void for_each(const Body& body) const {
    parallel_for(count_, 1, [&](int64_t begin, int64_t end) {
      for (int64_t chunk = begin; chunk < end; ++chunk) {
        const auto tensor =
            static_cast<size_t>(std::upper_bound(starts_, starts_ + tensors_.size(), chunk) - starts_ - 1);
        const int64_t first = (chunk - starts_[tensor]) * kChunk;
        body(tensor, first, std::min(kChunk, tensors_[tensor].numel() - first), chunk);
      }
    });
  }

 private:
  int64_t* starts_;  // of each tensor's chunks
  std::span<const View> tensors_;
  int64_t count_ = 0;
};

// The memory of list tensors, contiguous; copies of those that are not go back with write_back().
class ContiguousLists {
 public:
  ContiguousLists(Execution& run, std::span<const View> tensors)
      : tensors_(tensors), data_(run.take<void*>(static_cast<int64_t>(tensors.size()))) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      void* data = run.contiguous(tensors[i], tensors[i].dtype);
      if (data_) data_[i] = data;
    }
  }
  template <class T>
  T* ptr(size_t i) const {
    return static_cast<T*>(data_[i]);
  }
  void write_back(size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i)
      if (data_[i] != tensors_[i].data) {
        View copy = tensors_[i];
        copy.data = data_[i];
        copy.strides = contiguous_strides(copy.shape);
        copy_view(tensors_[i], copy);
      }
  }

 private:
  std::span<const View> tensors_;
  void** data_;
};

// ---------------------------------------------------------------- AdamW

std::vector<TensorSpec> infer_adamw(const OpCall& call) {
  static constexpr const char* kNames[] = {"params", "grads", "exp_avgs", "exp_avg_sqs", "masters"};
  static constexpr const char* kSettings[] = {"beta1", "beta2", "eps", "weight_decay"};
  check_scalar("adamw_", call.inputs[kStep], "step");
  check_scalar("adamw_", call.inputs[kGradScale], "grad_scale");
  check_scalar("adamw_", call.inputs[kSkip], "skip");
  const auto length = static_cast<size_t>(call.list_length);
  for (size_t k = 0; k < std::size(kSettings); ++k) {
    const std::vector<double>& values = call.attrs.floats(k);
    require(values.size() == 1 || values.size() == length, "[adamw_] expected one ", kSettings[k],
            ", or one for each of ", length, " parameters, got ", values.size());
    for (const double value : values) {
      if (k == kBeta1 || k == kBeta2)
        require(value >= 0 && value < 1, "[adamw_] expected betas from 0 to below 1, got ", kSettings[k], " = ", value);
      else if (k == kEps)
        require(value >= 0, "[adamw_] expected eps of at least 0, got ", value);
    }
  }
  for (size_t i = 0; i < length; ++i) {
    check_scalar("adamw_", call.inputs[kAdamwFixed + kLrs * length + i], "lr");
    const Tensor &param = call.inputs[kAdamwFixed + i], &master = call.inputs[kAdamwFixed + kMasters * length + i];
    if (param.dtype() == DType::bfloat16) {
      check_position("adamw_", call, kAdamwFixed, kLrs, kNames, i, DType::float32);
      continue;
    }
    require_type(param.dtype() == DType::float32 || param.dtype() == DType::float64,
                 "[adamw_] expected float32, float64 or (with masters) bfloat16 parameters, got ", describe(param),
                 " at position ", i);
    check_position("adamw_", call, kAdamwFixed, kMasters, kNames, i, param.dtype());
    require(!master.defined(), "[adamw_] expected no master for parameter ", i, ", which is ", describe(param),
            ": masters are for bfloat16");
  }
  return {};
}

AdamwStep<double> adamw_step(const Launch& launch, const AdamwSettings& settings) {
  const double lr = read_scalar(*settings.lr, 0), step = read_scalar(launch.inputs[kStep], 1);
  const double bias1 = 1 - std::pow(settings.beta1, step), bias2 = 1 - std::pow(settings.beta2, step);
  return {read_scalar(launch.inputs[kGradScale], 1),
          1 - lr * settings.weight_decay,
          1 - settings.beta1,
          settings.beta2,
          1 - settings.beta2,
          std::sqrt(bias2),
          settings.eps,
          lr / bias1};
}

// Of a bfloat16 parameter the float32 master is updated, and the parameter is the master rounded to nearest even.
void execute_adamw(const Launch& launch, Execution& run) {
  const auto length = static_cast<size_t>(launch.list_length);
  const auto lists = launch.inputs.subspan(kAdamwFixed);
  const auto params = lists.first(length);
  const Chunks chunks(run, params);
  // A skipped step leaves everything as it is, the step count (increment_step_) included.
  if (!run.dry() && read_scalar(launch.inputs[kSkip], 0) != 0) return;
  ContiguousLists data(run, lists.first(kLrs * length));
  auto* steps = run.take<AdamwStep<double>>(launch.list_length);
  if (run.dry()) return;
  for (size_t i = 0; i < length; ++i) {
    const AdamwSettings settings = adamw_settings(launch, i);
    steps[i] = i && settings == adamw_settings(launch, i - 1) ? steps[i - 1] : adamw_step(launch, settings);
  }
  const auto round = kernels().copy.from_to(DType::float32, DType::bfloat16);
  chunks.for_each([&](size_t i, int64_t first, int64_t count, int64_t) {
    const size_t grad = kGrads * length + i, avg = kExpAvgs * length + i, avg_sq = kExpAvgSqs * length + i,
                 master = kMasters * length + i;
    if (params[i].dtype == DType::float64)
      return adamw_reference<double>(data.ptr<double>(i) + first, data.ptr<double>(grad) + first,
                                     data.ptr<double>(avg) + first, data.ptr<double>(avg_sq) + first, count, steps[i]);
    float* weights = data.ptr<float>(params[i].dtype == DType::bfloat16 ? master : i) + first;
    kernels().optimizer.adamw_f32(weights, data.ptr<float>(grad) + first, data.ptr<float>(avg) + first,
                                  data.ptr<float>(avg_sq) + first, count, rounded<float>(steps[i]));
    if (params[i].dtype == DType::bfloat16) round(count, data.ptr<bfloat16>(i) + first, 1, weights, 1);
  });
  data.write_back(0, length);
  data.write_back(kExpAvgs * length, kLrs * length);
}

// ---------------------------------------------------------------- SGD

enum SgdInput : size_t { kSgdLr, kSgdGradScale, kSgdSkip, kSgdFixed };
enum SgdAttr { kMomentum, kNesterov, kSgdWeightDecay };

std::vector<TensorSpec> infer_sgd(const OpCall& call, const char* op, size_t num_lists) {
  static constexpr const char* kNames[] = {"params", "grads", "momentum_buffers"};
  check_scalar(op, call.inputs[kSgdLr], "lr");
  check_scalar(op, call.inputs[kSgdGradScale], "grad_scale");
  check_scalar(op, call.inputs[kSgdSkip], "skip");
  check_lists(op, call, kSgdFixed, num_lists, kNames);
  return {};
}

template <class T>
SgdStep<T> sgd_step(const Launch& launch, double momentum, bool nesterov, double weight_decay) {
  return {static_cast<T>(read_scalar(launch.inputs[kSgdGradScale], 1)), static_cast<T>(weight_decay),
          static_cast<T>(momentum), static_cast<T>(read_scalar(launch.inputs[kSgdLr], 0)), nesterov};
}

void sgd_pass(const Launch& launch, Execution& run, bool has_momentum, double momentum, bool nesterov,
              double weight_decay) {
  const auto length = static_cast<size_t>(launch.list_length);
  const auto lists = launch.inputs.subspan(kSgdFixed);
  const auto params = lists.first(length);
  const Chunks chunks(run, params);
  if (!run.dry() && read_scalar(launch.inputs[kSgdSkip], 0) != 0) return;
  ContiguousLists data(run, lists);
  if (run.dry()) return;
  const auto step = sgd_step<float>(launch, momentum, nesterov, weight_decay);
  const auto step64 = sgd_step<double>(launch, momentum, nesterov, weight_decay);
  chunks.for_each([&](size_t i, int64_t first, int64_t count, int64_t) {
    if (params[i].dtype == DType::float32)
      kernels().optimizer.sgd_f32(data.ptr<float>(i) + first, data.ptr<float>(length + i) + first,
                                  has_momentum ? data.ptr<float>(2 * length + i) + first : nullptr, count, step);
    else
      sgd_reference<double>(data.ptr<double>(i) + first, data.ptr<double>(length + i) + first,
                            has_momentum ? data.ptr<double>(2 * length + i) + first : nullptr, count, step64);
  });
  data.write_back(0, length);
  if (has_momentum) data.write_back(2 * length, 3 * length);
}

void execute_sgd(const Launch& launch, Execution& run) { sgd_pass(launch, run, false, 0, false, launch.attrs.f(0)); }
void execute_sgd_momentum(const Launch& launch, Execution& run) {
  sgd_pass(launch, run, true, launch.attrs.f(kMomentum), launch.attrs.b(kNesterov), launch.attrs.f(kSgdWeightDecay));
}

// ---------------------------------------------------------------- step count

std::vector<TensorSpec> infer_increment_step(const OpCall& call) {
  require(call.inputs[0].numel() == 1 && call.inputs[0].dtype() == DType::int64,
          "[increment_step_] expected step to be a 0-d int64 tensor, got ", describe(call.inputs[0]));
  check_scalar("increment_step_", call.inputs[1], "skip");
  return {};
}

void launch_increment_step(const Launch& launch) {
  if (read_scalar(launch.inputs[1], 0) == 0) ++*launch.inputs[0].ptr<int64_t>();
}

// ---------------------------------------------------------------- gradient norm and clipping

std::vector<TensorSpec> infer_grad_norm(const OpCall& call) {
  for (const Tensor& grad : call.inputs)
    require_type(is_floating(grad.dtype()), "[grad_norm] expected floating-point gradients, got ", describe(grad));
  return {{DType::float32, {}, {}, false}};
}

template <class T>
double sum_squares(const T* x, int64_t n) {
  if constexpr (std::is_same_v<T, float>) return kernels().optimizer.sum_squares_f32(x, n);
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    const auto value = static_cast<double>(static_cast<compute_t<T>>(x[i]));
    sum += value * value;
  }
  return sum;
}

void execute_grad_norm(const Launch& launch, Execution& run) {
  const Chunks chunks(run, launch.inputs);
  auto* partial = run.take<double>(chunks.count());
  ContiguousLists data(run, launch.inputs);
  if (run.dry()) return;
  chunks.for_each([&](size_t i, int64_t first, int64_t count, int64_t chunk) {
    partial[chunk] = visit_floating(launch.inputs[i].dtype, "grad_norm", [&](auto tag) {
      using T = typename decltype(tag)::type;
      return sum_squares<T>(data.ptr<T>(i) + first, count);
    });
  });
  double sum = 0;
  for (int64_t chunk = 0; chunk < chunks.count(); ++chunk) sum += partial[chunk];
  *launch.outputs[0].ptr<float>() = static_cast<float>(std::sqrt(sum));
}

std::vector<TensorSpec> infer_clip_scale(const OpCall& call) {
  check_scalar("clip_scale", call.inputs[0], "norm");
  check_scalar("clip_scale", call.inputs[1], "count");
  require(call.attrs.f(0) > 0, "[clip_scale] expected max_norm above 0, got ", call.attrs.f(0),
          ": use infinity for no clipping");
  return {{DType::float32, {}, {}, false}, {DType::float32, {}, {}, false}};
}

void launch_clip_scale(const Launch& launch) {
  const double count = read_scalar(launch.inputs[1], 1), norm = read_scalar(launch.inputs[0], 0) / count;
  const bool skip = !std::isfinite(norm);
  // PyTorch's clip_grad_norm_ adds the same 1e-6.
  const double scale = skip ? 0 : std::min(1.0, launch.attrs.f(0) / (norm + 1e-6)) / count;
  *launch.outputs[0].ptr<float>() = static_cast<float>(scale);
  *launch.outputs[1].ptr<float>() = skip ? 1.0F : 0.0F;
}

}  // namespace

void register_optimizer(OperatorRegistry& registry) {
  using Kind = InputSpec::Kind;
  const auto floating = [](const char* name, double value) {
    return AttrSpec{name, AttrKind::floating, Attr::of_float(value), false, {}};
  };
  const auto floats = [](const char* name, double value) {
    return AttrSpec{name, AttrKind::floats, Attr::of_floats({value}), false, {}};
  };
  const auto add = [&](Operator op) {
    op.category = "Optimizers";
    op.is_public = false;
    registry.add(std::move(op));
  };
  {
    Operator op;
    op.name = "adamw_";
    op.doc =
        "One AdamW step in place, as torch.optim.AdamW: param *= 1 - lr * weight_decay; g = grad * grad_scale; exp_avg "
        "+= (1 - beta1) (g - exp_avg); "
        "exp_avg_sq = beta2 exp_avg_sq + (1 - beta2) g^2; param -= lr / (1 - beta1^step) * exp_avg / (sqrt(exp_avg_sq "
        "/ (1 - beta2^step)) + eps). "
        "Every parameter has its lr; of the other settings there is one for all or one for each. lr, step (from 1), "
        "grad_scale and skip are 0-d; with skip non-zero nothing is written. Lists of float32 or "
        "float64 tensors, each position of one dtype; or a bfloat16 parameter whose other tensors are float32, its "
        "master among them: the master is updated, and the parameter is the master rounded to nearest even.";
    op.inputs = {{"step", Kind::required},
                 {"grad_scale", Kind::optional},
                 {"skip", Kind::optional},
                 {"params", Kind::list, true},
                 {"grads", Kind::list},
                 {"exp_avgs", Kind::list, true},
                 {"exp_avg_sqs", Kind::list, true},
                 {"masters", Kind::optional_list, true},
                 {"lrs", Kind::list}};
    op.attrs = {floats("beta1", 0.9), floats("beta2", 0.999), floats("eps", 1e-8), floats("weight_decay", 0)};
    op.num_outputs = 0;
    op.infer = infer_adamw;
    op.workspace = workspace_of<execute_adamw>;
    op.launch_cpu = launch_of<execute_adamw>;
    op.effect = Effect::writes;
    add(std::move(op));
  }
  {
    Operator op;
    op.name = "sgd_";
    op.doc =
        "One step of plain gradient descent in place: param -= lr * (grad * grad_scale + weight_decay * param). lr, "
        "grad_scale and skip as in adamw_.";
    op.inputs = {{"lr", Kind::required},
                 {"grad_scale", Kind::optional},
                 {"skip", Kind::optional},
                 {"params", Kind::list, true},
                 {"grads", Kind::list}};
    op.attrs = {floating("weight_decay", 0)};
    op.num_outputs = 0;
    op.infer = [](const OpCall& call) { return infer_sgd(call, "sgd_", 2); };
    op.workspace = workspace_of<execute_sgd>;
    op.launch_cpu = launch_of<execute_sgd>;
    op.effect = Effect::writes;
    add(std::move(op));
  }
  {
    Operator op;
    op.name = "sgd_momentum_";
    op.doc =
        "One step of gradient descent with momentum in place, as torch.optim.SGD without dampening: g = grad * "
        "grad_scale + weight_decay * param; buffer = "
        "momentum * buffer + g; param -= lr * (nesterov ? g + momentum * buffer : buffer). Buffers start at zero.";
    op.inputs = {{"lr", Kind::required},       {"grad_scale", Kind::optional}, {"skip", Kind::optional},
                 {"params", Kind::list, true}, {"grads", Kind::list},          {"momentum_buffers", Kind::list, true}};
    op.attrs = {floating("momentum", 0.9),
                {"nesterov", AttrKind::boolean, Attr::of_bool(false), false, {}},
                floating("weight_decay", 0)};
    op.num_outputs = 0;
    op.infer = [](const OpCall& call) { return infer_sgd(call, "sgd_momentum_", 3); };
    op.workspace = workspace_of<execute_sgd_momentum>;
    op.launch_cpu = launch_of<execute_sgd_momentum>;
    op.effect = Effect::writes;
    add(std::move(op));
  }
  {
    Operator op;
    op.name = "increment_step_";
    op.doc = "step += 1 unless skip is non-zero. step: 0-d int64. Comes before adamw_, once for all of its groups.";
    op.inputs = {{"step", Kind::required, true}, {"skip", Kind::optional}};
    op.num_outputs = 0;
    op.infer = infer_increment_step;
    op.launch_cpu = launch_increment_step;
    op.effect = Effect::writes;
    add(std::move(op));
  }
  {
    Operator op;
    op.name = "grad_norm";
    op.doc =
        "Euclidean norm of all gradients together, 0-d float32: squares are added in double, in chunks and an order "
        "that the sizes alone decide.";
    op.inputs = {{"grads", Kind::list}};
    op.output_names = {"norm"};
    op.infer = infer_grad_norm;
    op.workspace = workspace_of<execute_grad_norm>;
    op.launch_cpu = launch_of<execute_grad_norm>;
    add(std::move(op));
  }
  {
    Operator op;
    op.name = "clip_scale";
    op.doc =
        "(scale, skip) for gradients of a loss summed over `count` tokens: scale = min(1, max_norm / (norm / count + "
        "1e-6)) / count, skip = 0; where "
        "norm / count is not finite, scale = 0 and skip = 1. norm and count: 0-d, of any dtype; results: 0-d float32.";
    op.inputs = {{"norm", Kind::required}, {"count", Kind::optional}};
    op.attrs = {{"max_norm", AttrKind::floating, Attr::of_float(1.0), true, {}}};
    op.num_outputs = 2;
    op.output_names = {"scale", "skip"};
    op.infer = infer_clip_scale;
    op.launch_cpu = launch_clip_scale;
    add(std::move(op));
  }
}

}  // namespace blutensor
