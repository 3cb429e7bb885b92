// CUDA graphs: a program's launches, recorded once and started as one. Only in builds with CUDA.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "program/program.h"
#include "tensor/device.h"

namespace blutensor {

// A CUDA event for order, not for time.
class Event {
 public:
  Event();
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record(void* stream);
  // Later work on `stream` waits for what was recorded; nothing recorded is nothing to wait for.
  void hold(void* stream) const;
  // The host waits.
  void wait() const;

 private:
  cudaEvent_t event_ = nullptr;
};

// Streams for the lanes that a program uses beside the compute lane, and the events that its calls wait for.
class Lanes {
 public:
  explicit Lanes(const Program& program);
  ~Lanes();
  Lanes(const Lanes&) = delete;
  Lanes& operator=(const Lanes&) = delete;

  static bool needed(const Program& program);
  void begin();               // the lanes start after what the compute stream has
  void* before(size_t call);  // the call's stream, which waits for what the call needs
  void after(size_t call);
  void end();  // the compute stream waits for the lanes

 private:
  const Program& program_;
  std::array<void*, kNumLanes> streams_{};  // nullptr: unused
  Event begun_;
  std::array<Event, kNumLanes> ended_;
  std::map<size_t, Event> marks_;                      // by the call that is waited for
  std::map<size_t, std::vector<const Event*>> waits_;  // by the call that waits
};

class Graph {
 public:
  // Records what this thread's `enqueue` puts on the device's compute stream, and on streams that wait for it and that it
  // waits for in the end. Nothing of it runs; what other threads do meanwhile is not recorded, and runs. Throws what enqueue throws, or Status::capture when CUDA cannot record it.
  Graph(Device device, const std::function<void()>& enqueue);
  // Waits until no run is under way.
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void launch() const;  // on the compute stream
  size_t num_nodes() const { return num_nodes_; }

 private:
  Device device_;
  cudaGraphExec_t exec_ = nullptr;
  size_t num_nodes_ = 0;
};

}  // namespace blutensor
