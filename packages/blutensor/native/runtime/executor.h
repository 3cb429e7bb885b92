// Runs Programs: bound to an arena in a native loop, or operator by operator.
#pragma once

#include <functional>
#include <mutex>

#include "program/program.h"

namespace blutensor {

class Family;

// A Program whose operands have addresses.
class BoundProgram final : public RefCounted {
 public:
  explicit BoundProgram(Ref<Program> program);
  const Program& program() const { return *program_; }

  // Resolves all addresses; arena: program().arena_bytes() bytes.
  void bind(void* arena);
  void unbind() { bound_ = false; }
  // The native loop.
  void run() const;
  // Every internal buffer from the pool at its first use, back after its last. Checks the planner, serves debuggers and profilers.
  void run_operator_by_operator(const std::function<void(int64_t, const char*)>& before_op) const;
  const std::vector<void*>& slot_addresses() const { return slot_addresses_; }

  Family* family = nullptr;  // owns the arena; not owned

 private:
  struct BoundCall {
    const Operator* op;
    Device device;
    size_t first_view, num_inputs, num_outputs;
    int64_t list_length;
    const Attrs* attrs;
    void* workspace;
    size_t workspace_bytes;
  };
  Launch launch_of(const BoundCall& call, const std::vector<View>& views, void* workspace) const;
  void before_run() const;
  void after_run() const;

  Ref<Program> program_;
  bool bound_ = false;
  void* stream_ = nullptr;
  std::vector<BoundCall> calls_;
  std::vector<View> views_;
  std::vector<void*> slot_addresses_;
};

// Programs that share one arena: their temporaries are dead between runs. All runs of a family exclude each other.
class Family final : public RefCounted {
 public:
  explicit Family(std::string name) : name_(std::move(name)) {}
  // Grows the arena when needed (and binds the others anew), binds the program.
  void add(const Ref<BoundProgram>& program);
  void remove(const BoundProgram* program);

  const std::string& name() const { return name_; }
  uint64_t arena_bytes() const { return arena_ ? arena_->bytes() : 0; }
  uint64_t peak_live_bytes() const;
  size_t num_programs() const { return programs_.size(); }
  std::mutex& mutex() { return mutex_; }
  // Before every run, under the mutex: allocates the arena again where growing it failed.
  void ensure_arena();

 private:
  std::string name_;
  std::mutex mutex_;
  Device device_;  // of its programs
  Ref<Storage> arena_;
  uint64_t needed_bytes_ = 0;
  std::vector<BoundProgram*> programs_;  // removed by their owners before they die
};

}  // namespace blutensor
