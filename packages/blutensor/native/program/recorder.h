// Builds a Program from the calls that one thread makes.
#pragma once

#include <unordered_map>

#include "ops/dispatch.h"
#include "program/program.h"

namespace blutensor {

class Recorder final : public CallRecorder {
 public:
  Recorder(std::string name, bool decompose);
  ~Recorder();

  // Ends the recording. The program knows which tensors the function left behind (neither returned nor part of state that
  // existed before); see Program::mark_left_behind.
  Ref<Program> finish(const Tensors& slots, const Tensors& outputs);

  bool decompose() const override { return decompose_; }
  void on_call(const Operator& op, std::span<const Tensor> inputs, std::span<const Tensor> outputs, const Attrs& attrs,
               int64_t list_length, size_t workspace_bytes) override;
  void on_grad_flag(const Tensor& leaf, bool stale_before, bool stale_after) override;

  // Where the calls so far ran; before the first one, where it would.
  Device device() const;

  static Recorder* active();  // of this thread

 private:
  void check_device_of(const Operator& op, std::span<const Tensor> inputs, std::span<const Tensor> outputs);
  Operand operand(const Tensor& tensor, bool produced, const Operator& op);

  Ref<Program> program_;
  bool decompose_;
  uint64_t first_new_storage_;  // storages with ids from here on were made during the capture
  std::unordered_map<uint64_t, int32_t> buffer_of_;
  std::unordered_map<TensorImpl*, size_t> flag_of_;  // place in Program::grad_flags
};

}  // namespace blutensor
