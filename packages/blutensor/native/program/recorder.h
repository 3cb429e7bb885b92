// Builds a Program from the calls that one thread makes.
#pragma once

#include <unordered_map>

#include "ops/dispatch.h"
#include "program/program.h"

namespace blutensor {

class Recorder final : public CallRecorder, public StorageObserver {
 public:
  Recorder(std::string name, bool decompose);
  ~Recorder();

  // Ends the recording. Tensors that the function left behind (neither returned nor part of state that existed before) are marked:
  // reading them is an error once the program runs.
  Ref<Program> finish(const Tensors& slots, const Tensors& outputs);

  bool decompose() const override { return decompose_; }
  void on_call(const Operator& op, std::span<const Tensor> inputs, std::span<const Tensor> outputs, const Attrs& attrs,
               int64_t list_length, size_t workspace_bytes) override;
  void on_storage_destroyed(uint64_t storage_id) override;

  static Recorder* active();  // of this thread

 private:
  Operand operand(const Tensor& tensor, bool produced, const Operator& op);

  Ref<Program> program_;
  bool decompose_;
  uint64_t first_new_storage_;  // storages with ids from here on were made during the capture
  std::unordered_map<uint64_t, int32_t> buffer_of_;
  std::unordered_map<int32_t, Storage*> alive_;  // internal buffers whose storage still exists
};

}  // namespace blutensor
