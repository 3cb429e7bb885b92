// Program: what a capture records. A flat list of operator calls over numbered buffers with known lifetimes, on lanes.
//
// It is the one intermediate form of the system: the planner packs it, replays run it, the compiler will transform it.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "ops/operator.h"

namespace blutensor {

enum class BufferKind : int32_t {
  external,   // existed before the capture: parameters, optimizer states, gradient buffers, constants
  slot,       // filled by the caller before every run
  internal,   // lives in the arena between its first write and its last use
  workspace,  // scratch of a single call, in the arena
  output,     // returned by the captured function: memory of its own, overwritten by every run
};
const char* buffer_kind_name(BufferKind kind);

struct Buffer {
  BufferKind kind = BufferKind::internal;
  uint64_t bytes = 0;
  Ref<Storage> storage;  // external, slot, output
  uint64_t storage_id = 0;
  int64_t first_call = -1;  // first and last call that use it
  int64_t last_call = -1;
  uint64_t arena_offset = 0;  // internal, workspace: after planning
};

// A view of a buffer, as an operand. buffer < 0: an optional operand that was not given.
struct Operand {
  int32_t buffer = -1;
  DType dtype = DType::float32;
  Shape shape;
  Strides strides;
  int64_t offset = 0;  // in elements
  bool operator==(const Operand&) const = default;
};

struct ProgramCall {
  const Operator* op = nullptr;
  Attrs attrs;
  int64_t list_length = 0;
  std::vector<Operand> inputs, outputs;
  int32_t workspace_buffer = -1;
  uint64_t workspace_bytes = 0;
};

// What a run finds and leaves in the host's note on a gradient buffer: whether the next backward overwrites it.
struct GradFlag {
  Tensor leaf;
  uint64_t storage_id = 0;  // of the buffer
  bool stale_before = false, stale_after = false;
};

// Where the host's count of random operators stands.
struct RandomPosition {
  int64_t step = 0;   // steps begun so far
  int64_t op_id = 0;  // of the next random operator
};

// Call `to` on its lane starts after call `from` on another lane is done.
struct LaneEvent {
  int64_t from = 0, to = 0;
};

class Program final : public RefCounted {
 public:
  explicit Program(std::string name) : name_(std::move(name)) {}

  const std::string& name() const { return name_; }
  bool reads(uint64_t storage_id) const;  // or writes: a storage from outside
  std::string to_text() const;
  // Throws Status::capture and names the first operator that differs between two recordings of one function.
  void check_same(const Program& second) const;

  // Lifetimes to offsets. Afterwards the program can be bound to an arena of arena_bytes().
  void plan();
  bool planned() const { return planned_; }
  // From now on reading what the function left behind is an error: runs keep those values in the arena.
  void mark_left_behind();
  uint64_t arena_bytes() const { return arena_bytes_; }
  uint64_t peak_live_bytes() const { return peak_live_bytes_; }
  uint64_t workspace_peak_bytes() const;
  uint64_t bytes_of(BufferKind kind) const;

  Device device;                         // all calls run on it
  Float32Math math = Float32Math::ieee;  // what the recording ran with
  std::vector<Buffer> buffers;
  std::vector<ProgramCall> calls;
  std::vector<LaneEvent> events;  // computed by plan()
  std::vector<int32_t> slots;     // buffers, in the order of the function's arguments
  Tensors slot_tensors, output_tensors;
  std::vector<Ref<Storage>> written;  // external, slot and output storages that a run writes
  std::vector<GradFlag> grad_flags;   // of the leaves whose gradients a run writes or marks stale
  RandomPosition random_begin, random_end;
  Ref<StorageWatch> left_behind = make_ref<StorageWatch>();  // internal buffers whose storage still exists

 private:
  void find_events();

  std::string name_;
  bool planned_ = false;
  uint64_t arena_bytes_ = 0, peak_live_bytes_ = 0;
};

}  // namespace blutensor
