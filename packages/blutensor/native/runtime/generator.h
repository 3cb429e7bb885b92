// Random generators: seed and step in a tensor per device, the number of the operator in its step on the host. The process has
// one; a thread may draw from another.
#pragma once

#include <atomic>
#include <vector>

#include "program/program.h"
#include "tensor/fork.h"

namespace blutensor {

// A device's state tensor, int64 [2] = {seed, step}, is what random operators on that device read. They are kept in step:
// whoever writes one (a step that ends, a checkpoint that is restored, a replay) makes the others old, and an old one is
// brought up to date before it is used.
class Generator final : public RefCounted {
 public:
  Generator();
  // What this thread draws from: the process's, unless it was given another.
  static Generator& current();
  static void set_current(Ref<Generator> generator);  // empty: the process's

  // The state on a device, in step.
  Tensor state(Device device);
  // Ends a step: on the device of the running capture, else on all devices whose state is in step.
  void advance();

  int64_t next_op_id() { return op_id_.fetch_add(1); }
  int64_t op_id() const { return op_id_.load(); }
  void set_op_id(int64_t op_id) { op_id_.store(op_id); }
  void begin_step();
  RandomPosition position() const { return {step_.load(), op_id_.load()}; }

  // Makes the states of all devices in use: what a capture reads has to exist before it.
  void before_capture();
  // Brings the states that a program reads up to date. Where it reads none, nobody waits for who draws meanwhile.
  void before_run(const Program& program);
  // A run draws what the second recording drew; the host's count goes on where that one ended.
  void after_run(const Program& program);

 private:
  struct Copy {
    Tensor state;
    uint64_t version = 0;  // of the storage when it was last known to be in step or old
    bool in_step = true;
  };
  void note_writes();
  Copy& on(Device device);
  void bring_up_to_date(Copy& copy);

  ForkLock lock_{"the random generator"};
  std::vector<Copy> copies_;  // the host's first
  uint64_t host_storage_;     // of the host's state, which is there from the beginning
  std::atomic<int64_t> op_id_{0}, step_{0};
};

}  // namespace blutensor
