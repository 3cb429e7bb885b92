#include "runtime/generator.h"

#include <algorithm>
#include <mutex>

#include "autograd/node.h"
#include "ops/registry.h"
#include "program/recorder.h"
#include "tensor/device.h"

namespace blutensor {

namespace {
thread_local Ref<Generator> own_generator;
}  // namespace

Generator& Generator::current() {
  if (own_generator) return *own_generator;
  static auto& g = *new Generator;  // never destroyed: handles to its tensors live as long as the process
  return g;
}

void Generator::set_current(Ref<Generator> generator) { own_generator = std::move(generator); }

Generator::Generator() {
  Tensor state = Tensor::empty({2}, DType::int64, Device{}, "generator");
  std::fill_n(static_cast<int64_t*>(state.data()), 2, 0);
  copies_.push_back({state, state.storage().version(), true});
  host_storage_ = state.storage().id();
}

// Whoever wrote a state says so by its version.
void Generator::note_writes() {
  Copy* written = nullptr;
  for (Copy& copy : copies_)
    if (const uint64_t version = copy.state.storage().version(); version != copy.version) {
      copy.version = version;
      written = &copy;
    }
  if (!written) return;
  for (Copy& copy : copies_) copy.in_step = &copy == written;
}

void Generator::bring_up_to_date(Copy& copy) {
  if (copy.in_step) return;
  const auto newest = std::find_if(copies_.begin(), copies_.end(), [](const Copy& c) { return c.in_step; });
  copy_bytes(copy.state.data(), copy.state.device(), newest->state.data(), newest->state.device(), copy.state.nbytes());
  copy.state.storage().mark_written("generator");
  copy.version = copy.state.storage().version();
  copy.in_step = true;
}

Generator::Copy& Generator::on(Device device) {
  for (Copy& copy : copies_)
    if (copy.state.device() == device) return copy;
  Tensor state = Tensor::empty({2}, DType::int64, device, "generator");
  return copies_.emplace_back(Copy{state, state.storage().version(), false});
}

Tensor Generator::state(Device device) {
  const std::lock_guard lock(lock_);
  note_writes();
  Copy& copy = on(device);
  bring_up_to_date(copy);
  return copy.state;
}

void Generator::advance() {
  static const OpRef advance{"rng_advance_"};
  const std::lock_guard lock(lock_);
  note_writes();
  if (const Recorder* recorder = Recorder::active()) {
    Copy& copy = on(recorder->device());
    bring_up_to_date(copy);
    advance.many({copy.state});
  } else {
    for (Copy& copy : copies_) {
      if (!copy.in_step) continue;
      advance.many({copy.state});
      copy.version = copy.state.storage().version();
    }
  }
  begin_step();
}

void Generator::before_capture() {
  for (int i = 0; i < cuda_device_count(); ++i)
    if (const Device device{DeviceType::cuda, i}; in_use(device)) {
      const std::lock_guard lock(lock_);
      on(device);
    }
}

void Generator::begin_step() {
  op_id_.store(0);
  step_.fetch_add(1);
}

void Generator::before_run(const Program& program) {
  if (program.device.type == DeviceType::cpu && !program.reads(host_storage_)) return;
  const std::lock_guard lock(lock_);
  note_writes();
  for (Copy& copy : copies_)
    if (!copy.in_step && copy.state.device() == program.device && program.reads(copy.state.storage().id()))
      bring_up_to_date(copy);
}

void Generator::after_run(const Program& program) {
  if (program.random_end.step != program.random_begin.step || program.random_end.op_id != program.random_begin.op_id)
    op_id_.store(program.random_end.op_id);
}

}  // namespace blutensor
