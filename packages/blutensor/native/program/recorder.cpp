#include "program/recorder.h"

#include <algorithm>

#include "autograd/node.h"
#include "tensor/device.h"

namespace blutensor {

namespace {
thread_local Recorder* active_recorder = nullptr;
}  // namespace

Recorder* Recorder::active() { return active_recorder; }

Recorder::Recorder(std::string name, bool decompose)
    : program_(make_ref<Program>(std::move(name))), decompose_(decompose) {
  if (active_recorder)
    fail(Status::capture, "[capture ", program_->name(),
         "] a capture is already running on this thread; captures do not nest");
  program_->math = float32_math();
  // A fresh storage tells where the ids stand.
  first_new_storage_ = make_ref<Storage>(size_t{0}, Device{}, "capture")->id() + 1;
  active_recorder = this;
  set_call_recorder(this);
}

Recorder::~Recorder() {
  active_recorder = nullptr;
  set_call_recorder(nullptr);
}

Device Recorder::device() const { return program_->calls.empty() ? creation_device() : program_->device; }

void Recorder::check_device_of(const Operator& op, std::span<const Tensor> inputs, std::span<const Tensor> outputs) {
  const auto given = std::find_if(inputs.begin(), inputs.end(), [](const Tensor& t) { return t.defined(); });
  if (given == inputs.end() && outputs.empty()) return;
  const Device device = given != inputs.end() ? given->device() : outputs[0].device();
  if (program_->calls.empty()) program_->device = device;
  if (!(device == program_->device))
    fail(Status::capture, "[capture ", program_->name(), "] '", op.name, "' runs on ", device_name(device),
         ", and the operators before it on ", device_name(program_->device),
         ": a captured function works on one device; move what it reads with .to() before the capture, and make "
         "constants on that device (device=, set_default_device)");
}

Operand Recorder::operand(const Tensor& tensor, bool produced, const Operator& op) {
  if (!tensor.defined()) return {};
  Storage& storage = tensor.storage();
  const auto [it, is_new] = buffer_of_.emplace(storage.id(), static_cast<int32_t>(program_->buffers.size()));
  if (is_new) {
    Buffer buffer;
    buffer.bytes = storage.bytes();
    buffer.storage_id = storage.id();
    if (storage.id() < first_new_storage_) {
      buffer.kind = BufferKind::external;
      buffer.storage = tensor.impl()->storage;
    } else {
      if (!produced)
        fail(Status::capture, "[capture ", program_->name(), "] '", op.name, "' reads a tensor (", describe(tensor),
             ") that was filled from the host inside the captured function; make constants outside of it, or pass them "
             "as arguments");
      buffer.kind = BufferKind::internal;
      program_->left_behind->add(storage);
    }
    program_->buffers.push_back(std::move(buffer));
  }
  return {it->second, tensor.dtype(), tensor.shape(), tensor.strides(), tensor.offset()};
}

void Recorder::on_call(const Operator& op, std::span<const Tensor> inputs, std::span<const Tensor> outputs,
                       const Attrs& attrs, int64_t list_length, size_t workspace_bytes) {
  check_device_of(op, inputs, outputs);
  ProgramCall call;
  call.op = &op;
  call.attrs = attrs;
  call.list_length = list_length;
  call.workspace_bytes = workspace_bytes;
  for (size_t i = 0; i < inputs.size(); ++i)
    call.inputs.push_back(operand(
        inputs[i],
        inputs[i].defined() && op.effect == Effect::writes && op.is_written(static_cast<int>(i), list_length), op));
  for (const Tensor& t : outputs) call.outputs.push_back(operand(t, true, op));
  if (workspace_bytes) {
    Buffer workspace;
    workspace.kind = BufferKind::workspace;
    workspace.bytes = workspace_bytes;
    call.workspace_buffer = static_cast<int32_t>(program_->buffers.size());
    program_->buffers.push_back(std::move(workspace));
  }
  program_->calls.push_back(std::move(call));
}

void Recorder::on_grad_flag(const Tensor& leaf, bool stale_before, bool stale_after) {
  std::vector<GradFlag>& flags = program_->grad_flags;
  const auto [it, is_new] = flag_of_.emplace(leaf.impl(), flags.size());
  if (is_new) flags.push_back({leaf, grad_meta(leaf)->grad.storage().id(), stale_before, stale_after});
  flags[it->second].stale_after = stale_after;
}

Ref<Program> Recorder::finish(const Tensors& slots, const Tensors& outputs) {
  Program& program = *program_;
  for (const Tensor& t : slots) {
    const auto it = buffer_of_.find(t.storage().id());
    int32_t index = -1;
    if (it != buffer_of_.end()) {
      index = it->second;
      program.buffers[static_cast<size_t>(index)].kind = BufferKind::slot;
    }
    program.slots.push_back(index);  // -1: the function ignores this argument
    program.slot_tensors.push_back(t);
  }
  for (const Tensor& t : outputs) {
    const auto it = buffer_of_.find(t.storage().id());
    if (it != buffer_of_.end()) {
      Buffer& buffer = program.buffers[static_cast<size_t>(it->second)];
      if (buffer.kind == BufferKind::internal) {
        buffer.kind = BufferKind::output;
        buffer.storage = t.impl()->storage;
        program.left_behind->remove(t.storage().id());
      }
    }
    program.output_tensors.push_back(t);
  }
  // A gradient buffer that the function made itself is not state.
  std::erase_if(program.grad_flags, [&](const GradFlag& flag) { return flag.storage_id >= first_new_storage_; });

  for (size_t c = 0; c < program.calls.size(); ++c) {
    const ProgramCall& call = program.calls[c];
    const auto use = [&](int32_t b) {
      if (b < 0) return;
      Buffer& buffer = program.buffers[static_cast<size_t>(b)];
      if (buffer.first_call < 0) buffer.first_call = static_cast<int64_t>(c);
      buffer.last_call = static_cast<int64_t>(c);
    };
    for (const Operand& o : call.inputs) use(o.buffer);
    for (const Operand& o : call.outputs) use(o.buffer);
    use(call.workspace_buffer);
  }
  std::vector<bool> seen(program.buffers.size());
  const auto note_written = [&](int32_t b) {
    const auto i = static_cast<size_t>(b);
    if (b < 0 || seen[i] || !program.buffers[i].storage) return;
    seen[i] = true;
    program.written.push_back(program.buffers[i].storage);
  };
  for (const ProgramCall& call : program.calls) {
    for (const Operand& o : call.outputs) note_written(o.buffer);
    if (call.op->effect == Effect::writes)
      for (size_t i = 0; i < call.inputs.size(); ++i)
        if (call.op->is_written(static_cast<int>(i), call.list_length)) note_written(call.inputs[i].buffer);
  }
  return program_;
}

}  // namespace blutensor
