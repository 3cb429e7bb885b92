// The seams of the dispatcher: who listens when an operator is called.
//
// ops/ knows neither autograd nor Programs; both register here, on the calling thread.
#pragma once

#include "ops/operator.h"

namespace blutensor {

// Records executed calls: a capture implements it.
class CallRecorder {
 public:
  // Composite operators are to be called in their decomposed form.
  virtual bool decompose() const = 0;
  // After the launch. `workspace_bytes`: what the call used beside its operands.
  virtual void on_call(const Operator& op, std::span<const Tensor> inputs, std::span<const Tensor> outputs,
                       const Attrs& attrs, int64_t list_length, size_t workspace_bytes) = 0;
  // The gradient buffer of a leaf became stale (the next backward overwrites it) or was written.
  virtual void on_grad_flag(const Tensor& leaf, bool stale_before, bool stale_after) = 0;

 protected:
  ~CallRecorder() = default;
};
CallRecorder* call_recorder();  // of this thread, or nullptr
void set_call_recorder(CallRecorder* recorder);

// Records calls for backward: autograd/ installs it once.
struct AutogradHooks {
  // Whether this call will be recorded for backward.
  bool (*wanted)(const Operator& op, std::span<const Tensor> inputs) = nullptr;
  void (*record)(const Operator& op, std::span<const Tensor> inputs, std::span<const Tensor> outputs,
                 const Attrs& attrs, int64_t list_length) = nullptr;
  // Throws when writing this input in place would break the graph.
  void (*check_write)(const Operator& op, const Tensor& written) = nullptr;
  // Throws when what is written would need a gradient from what is read.
  void (*check_sources)(const Operator& op, std::span<const Tensor> inputs, int64_t list_length) = nullptr;
};
void set_autograd_hooks(const AutogradHooks& hooks);

// Observers around every operator, eager or replayed (profilers). One predictable branch when there is none.
struct OpHooks {
  void (*begin)(void* context, const char* name) = nullptr;
  void (*end)(void* context, const char* name) = nullptr;
  void* context = nullptr;
};
void set_op_hooks(const OpHooks& hooks);
bool has_op_hooks();

// How float32 matrix products run on CUDA from now on, process-wide; a capture keeps what it was recorded with.
Float32Math float32_math();
void set_float32_math(Float32Math math);
constexpr const char* float32_math_name(Float32Math math) { return math == Float32Math::tf32 ? "tf32" : "ieee"; }

// Launches on the device of the first defined operand, between the op hooks. Throws for a device without a kernel.
void launch(const Operator& op, Device device, const Launch& args);
const LaunchFn& launcher(const Operator& op, Device device);

}  // namespace blutensor
