// The native training loop: source, programs and metrics of n steps, without the interpreter.
#pragma once

#include <functional>

#include "runtime/executor.h"

namespace blutensor {

struct Phase {
  BoundProgram* program = nullptr;
  int64_t repeats = 1;
};

struct RunLoop {
  std::vector<Phase> phases;  // of one step
  int64_t steps = 0;
  std::function<void(void* const* slots, int32_t num_slots)> source;  // throws; may be empty
  Tensors feeds;                                                      // 0-d, written at the start of each step
  const double* feed_values = nullptr;                                // [steps, feeds]
  Tensors metrics;                                                    // 0-d, read at the end of each step
  double* metric_values = nullptr;                                    // [steps, metrics]
  std::function<bool()> interrupted;                                  // asked between steps, at most every 50 ms

  double slice_seconds = 0;  // above 0: ends after about this time, between steps
  bool prefetch = true;      // on a device: the source fills the next batch while a step runs

  int64_t steps_done = 0;
  double host_seconds = 0;  // outside programs and source, and not waiting for the device

  void run(Family& family);

 private:
  void run_on_host();
#ifdef BLUTENSOR_HAVE_CUDA
  void run_on_device(Device device);
#endif
};

// The value of an element, and its place in memory, as a double.
void write_element(DType dtype, void* to, double value);
double read_element(DType dtype, const void* from);

}  // namespace blutensor
