// Runs Programs: bound to an arena in a native loop, or operator by operator.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "program/program.h"
#include "tensor/fork.h"
#ifdef BLUTENSOR_HAVE_CUDA
#include "runtime/graph.h"
#include "runtime/staging.h"
#endif

namespace blutensor {

class Family;

// A Program whose operands have addresses.
class BoundProgram final : public RefCounted {
 public:
  explicit BoundProgram(Ref<Program> program);
  const Program& program() const { return *program_; }

  // Resolves all addresses; arena: program().arena_bytes() bytes. On a CUDA device it records the calls as a graph.
  void bind(void* arena);
  void unbind();
  // The native loop, or one launch of the graph. Profilers' hooks see the calls of a loop.
  void run() const;
  // What run() does: "native loop", "one graph of 412 nodes", "launches one by one: <why there is no graph>".
  std::string execution() const;
  // Every internal buffer from the pool at its first use, back after its last. Checks the planner, serves debuggers and profilers.
  void run_operator_by_operator(const std::function<void(int64_t, const char*)>& before_op) const;
  const std::vector<void*>& slot_addresses() const { return slot_addresses_; }

#ifdef BLUTENSOR_HAVE_CUDA
  Staging& staging();  // of batches that a source fills; made at the first call
#endif

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
  Launch launch_of(const BoundCall& call, const std::vector<View>& views, void* workspace, void* stream) const;
  void enqueue() const;  // all calls
  void before_run() const;
  void after_run() const;

  Ref<Program> program_;
  bool bound_ = false;
  std::vector<BoundCall> calls_;
  std::vector<View> views_;
  std::vector<void*> slot_addresses_;
#ifdef BLUTENSOR_HAVE_CUDA
  void record_graph();
  std::unique_ptr<Staging> staging_;
  std::unique_ptr<Lanes> lanes_;  // where the program uses several
  std::unique_ptr<Graph> graph_;
  std::string no_graph_;  // why there is none
#endif
};

// Programs that share one arena: their temporaries are dead between runs. All runs of a family exclude each other.
class Family final : public RefCounted {
 public:
  explicit Family(std::string name) : name_(std::move(name)) {}
  // Grows the arena when needed (and binds the others anew), binds the program.
  void add(const Ref<BoundProgram>& program);
  void remove(const BoundProgram* program);

  const std::string& name() const { return name_; }
  uint64_t arena_bytes() const { return needed_bytes_; }  // also while it is given back
  uint64_t peak_live_bytes() const;
  Device device() const { return device_; }
  size_t num_programs() const { return programs_.size(); }
  ForkLock& lock() { return lock_; }
  // Before every run, under the lock: allocates the arena again where growing it failed or it was given back.
  void ensure_arena();
  // Until the next run or program the arena is the pool's: what is recorded meanwhile, operator by operator, need not find
  // memory beside it.
  void give_back_arena();

 private:
  void drop_arena();

  std::string name_;
  ForkLock lock_{"the arena of a captured program"};
  Device device_;  // of its programs
  Ref<Storage> arena_;
  uint64_t needed_bytes_ = 0;
  std::vector<BoundProgram*> programs_;  // removed by their owners before they die
};

}  // namespace blutensor
