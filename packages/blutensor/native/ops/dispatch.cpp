#include "ops/dispatch.h"

#include <array>
#include <atomic>
#include <deque>
#include <mutex>

#include "ops/registry.h"
#include "tensor/device.h"
#include "tensor/fork.h"

namespace blutensor {

namespace {

thread_local CallRecorder* recorder = nullptr;
std::atomic<Float32Math> math_mode{Float32Math::ieee};
AutogradHooks autograd_hooks;
std::atomic<const OpHooks*> op_hooks{nullptr};  // NULL when nobody listens

// Small vector of views on the stack; calls with long operand lists go to the heap.
class Views {
 public:
  explicit Views(size_t n) : size_(n) {
    if (n > inline_.size()) heap_.resize(n);
  }
  View& operator[](size_t i) { return heap_.empty() ? inline_[i] : heap_[i]; }
  std::span<const View> span() const { return {heap_.empty() ? inline_.data() : heap_.data(), size_}; }

 private:
  std::array<View, 8> inline_;
  std::vector<View> heap_;
  size_t size_;
};

void check_inputs(const Operator& op, std::span<const Tensor> inputs, const Attrs& attrs, int64_t list_length) {
  const int fixed = op.fixed_inputs(), lists = op.num_lists();
  const auto expected = static_cast<size_t>(fixed + lists * list_length);
  require(inputs.size() == expected, "[", op.name, "] expected ", expected, " tensors, got ", inputs.size());
  require(attrs.size() == op.attrs.size(), "[", op.name, "] expected ", op.attrs.size(), " attributes, got ",
          attrs.size());
  const Tensor* first = nullptr;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const bool is_fixed = i < static_cast<size_t>(fixed);
    const InputSpec& spec = op.inputs[is_fixed ? i
                                               : static_cast<size_t>(fixed) + (i - static_cast<size_t>(fixed)) /
                                                                                  static_cast<size_t>(list_length)];
    if (!inputs[i].defined()) {
      require_type(spec.is_optional(), "[", op.name, "] expected a tensor for '", spec.name, "', got none");
      continue;
    }
    const Storage& storage = inputs[i].storage();
    if (storage.captured_by())
      fail(Status::capture, "[", op.name, "] '", spec.name, "' was made inside the captured function '",
           storage.captured_by(), "' and not returned by it: its memory is reused. Return it from the function");
    if (!first) {
      first = &inputs[i];
    } else {
      require_type(inputs[i].device() == first->device(), "[", op.name, "] expected all tensors on one device, got ",
                   device_name(first->device()), " and ", device_name(inputs[i].device()), " ('", spec.name, "')");
    }
  }
}

Device device_of(std::span<const Tensor> inputs) {
  for (const Tensor& t : inputs)
    if (t.defined()) return t.device();
  return creation_device();
}

}  // namespace

Float32Math float32_math() { return math_mode.load(std::memory_order_relaxed); }
void set_float32_math(Float32Math math) { math_mode.store(math, std::memory_order_relaxed); }
CallRecorder* call_recorder() { return recorder; }
void set_call_recorder(CallRecorder* r) { recorder = r; }
void set_autograd_hooks(const AutogradHooks& hooks) { autograd_hooks = hooks; }
// Those that were set before stay: another thread may be in between begin and end.
void set_op_hooks(const OpHooks& hooks) {
  static ForkMutex& mutex = *new ForkMutex(ForkMutex::Place::op_hooks);
  static auto& kept = *new std::deque<OpHooks>;
  const std::lock_guard lock(mutex);
  op_hooks.store(hooks.begin || hooks.end ? &kept.emplace_back(hooks) : nullptr, std::memory_order_release);
}
bool has_op_hooks() { return op_hooks.load(std::memory_order_relaxed) != nullptr; }

const LaunchFn& launcher(const Operator& op, Device device) {
  const LaunchFn& fn = device.type == DeviceType::cpu ? op.launch_cpu : op.launch_cuda;
  if (!fn) fail(Status::unsupported, "[", op.name, "] has no kernel for ", device_name(device), " in this build");
  return fn;
}

void launch(const Operator& op, Device device, const Launch& args) {
  const LaunchFn& fn = launcher(op, device);
  use_device(device);
  const OpHooks* hooks = op_hooks.load(std::memory_order_acquire);
  if (hooks && hooks->begin) [[unlikely]]
    hooks->begin(hooks->context, op.tag);
  fn(args);
  if (hooks && hooks->end) [[unlikely]]
    hooks->end(hooks->context, op.tag);
}

Tensors call(const Operator& op, std::span<const Tensor> inputs, const Attrs& attrs, int64_t list_length) {
  check_inputs(op, inputs, attrs, list_length);
  if (recorder && op.decompose && recorder->decompose()) {
    const CreationDevice guard(device_of(inputs));
    return op.decompose(inputs, attrs);
  }

  const bool wants_grad = autograd_hooks.wanted && autograd_hooks.wanted(op, inputs);
  const OpCall op_call{inputs, attrs, list_length};
  Tensors outputs;

  if (op.view) {
    const std::vector<ViewSpec> specs = op.view(op_call);
    if (specs.empty()) {  // the strides allow no view (reshape): take one of a copy
      static const OpRef contiguous{"contiguous"};
      const Tensor copy = contiguous({inputs[0]});
      return call(op, std::span(&copy, 1), attrs, list_length);
    }
    for (const ViewSpec& spec : specs) outputs.push_back(inputs[0].view(spec.shape, spec.strides, spec.offset));
  } else {
    if (op.effect == Effect::writes && autograd_hooks.check_write) {
      for (size_t i = 0; i < inputs.size(); ++i)
        if (inputs[i].defined() && op.is_written(static_cast<int>(i), list_length))
          autograd_hooks.check_write(op, inputs[i]);
      autograd_hooks.check_sources(op, inputs, list_length);
    }
    const Device device = device_of(inputs);
    if (op.infer) {
      for (const TensorSpec& spec : op.infer(op_call))
        outputs.push_back(Tensor::empty_strided(
            spec.shape, spec.has_strides ? spec.strides : contiguous_strides(spec.shape), spec.dtype, device, op.tag));
    }
    Views in(inputs.size()), out(outputs.size());
    for (size_t i = 0; i < inputs.size(); ++i)
      if (inputs[i].defined()) in[i] = inputs[i].as_view();
    for (size_t i = 0; i < outputs.size(); ++i) out[i] = outputs[i].as_view();

    Launch args{in.span(), out.span(), attrs, list_length, nullptr, 0, compute_stream(device), device, float32_math()};
    Ref<Storage> workspace;
    if (const WorkspaceFn& workspace_bytes = device.type == DeviceType::cpu ? op.workspace : op.workspace_cuda) {
      args.workspace_bytes = workspace_bytes(args);
      if (args.workspace_bytes) {
        workspace = make_ref<Storage>(args.workspace_bytes, device, intern("workspace"));
        args.workspace = workspace->data();
      }
    }
    launch(op, device, args);
    if (op.effect == Effect::writes) {
      for (size_t i = 0; i < inputs.size(); ++i)
        if (inputs[i].defined() && op.is_written(static_cast<int>(i), list_length))
          inputs[i].storage().mark_written(op.tag);
    }
    if (recorder) recorder->on_call(op, inputs, outputs, attrs, list_length, args.workspace_bytes);
  }

  if (wants_grad) autograd_hooks.record(op, inputs, outputs, attrs, list_length);
  return outputs;
}

const Operator& OpRef::op() const {
  const Operator* found = op_.load(std::memory_order_acquire);
  if (!found) {
    found = OperatorRegistry::instance().find(name_);
    if (!found) fail(Status::runtime, "operator '", name_, "' is not registered");
    op_.store(found, std::memory_order_release);
  }
  return *found;
}

Tensor OpRef::operator()(std::initializer_list<Tensor> inputs, Attrs attrs) const {
  return call(op(), std::span(inputs.begin(), inputs.size()), attrs).at(0);
}
Tensors OpRef::many(std::initializer_list<Tensor> inputs, Attrs attrs) const {
  return call(op(), std::span(inputs.begin(), inputs.size()), attrs);
}
Tensors OpRef::lists(std::span<const Tensor> flat_inputs, int64_t list_length, Attrs attrs) const {
  return call(op(), flat_inputs, attrs, list_length);
}

}  // namespace blutensor
