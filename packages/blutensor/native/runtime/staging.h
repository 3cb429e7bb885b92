// Batches on their way into the slots of a program on a CUDA device. Only in builds with CUDA.
//
// The source fills pinned memory, the copy stream takes that to the device while the step before runs, and the compute
// stream moves it into the slots between two runs. Two buffers, and two events for each: `copied` (the copy stream is done,
// the pinned memory may be filled again) and `consumed` (the slots have it, the device's memory may be written again).
#pragma once

#include <array>
#include <vector>

#include "program/program.h"
#include "runtime/copy_ranges.h"
#include "runtime/graph.h"

namespace blutensor {

class Staging {
 public:
  explicit Staging(const Program& program);
  // Waits until no copy is under way.
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // Where the next batch goes, one address per slot; waits until the copy before last is done. Then start_copy().
  const std::vector<void*>& begin_fill();
  void start_copy();
  // Whether a batch is ready for the slots.
  bool filled() const { return num_filled_ > num_delivered_; }
  void deliver();

 private:
  struct Buffer {
    char* pinned = nullptr;
    Ref<Storage> device;
    std::vector<void*> addresses;  // in pinned memory
    std::vector<CopyRange> to_slots;
    Event copied, consumed;
  };

  const Program& program_;
  cudaStream_t copies_;
  std::vector<size_t> offsets_;  // of the slots in a buffer
  size_t bytes_ = 0;
  std::array<Buffer, 2> buffers_;
  uint64_t num_filled_ = 0, num_delivered_ = 0;
};

}  // namespace blutensor
