// The devices of the process: what there is, the one compute stream of each, copies between them.
//
// Everything that touches a CUDA device goes to its compute stream (docs/decisions.md says why there is one). All
// functions work in a build without CUDA; there the cpu is the only device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "tensor/storage.h"

namespace blutensor {

// CUDA devices that can be used: 0 without driver, GPU or CUDA in the build.
int cuda_device_count();
// Why there is none, and what to do about it; empty when there is one.
const std::string& cuda_unavailable_reason();

// Throws Status::unsupported when the device cannot be used; the message says the fix. A few instructions when it can.
void check_device(Device device);
// Makes it the current device of the calling thread where there are several.
void use_device(Device device);
// The stream that all of the device's work goes to: a cudaStream_t that does not synchronize with the legacy stream;
// nullptr for the cpu. Made at the first call. While this thread records a graph (RecordedStream) it is the one that is
// recorded, which other threads know nothing of.
void* compute_stream(Device device);
// In whose order the device's memory is taken and given back: the compute stream, also while a graph is recorded.
void* memory_stream(Device device);
// Whether that stream exists: something was put on the device.
bool in_use(Device device);
// Waits for everything on the compute stream, then throws what kernels found (Status::index) or a lost device.
void synchronize(Device device);
// The same whatever became of the work, without looking at reports: for destructors.
void drain(Device device) noexcept;
// Called at the end of synchronize() and of copies to pageable host memory: throws what kernels reported. ops/ sets it.
void set_report_check(void (*check)());
void check_reports();

#ifdef BLUTENSOR_HAVE_CUDA
// Lifts the ban on allocating and waiting that a recording on this thread (or a global one of others) imposes.
class RelaxedCapture {
 public:
  RelaxedCapture();
  ~RelaxedCapture();
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  int mode_;
};

// A new stream of a device, to which the work of this thread goes as long as it lives.
class RecordedStream {
 public:
  explicit RecordedStream(Device device);
  ~RecordedStream();
  RecordedStream(const RecordedStream&) = delete;
  RecordedStream& operator=(const RecordedStream&) = delete;
  void* stream() const { return stream_; }

 private:
  void* stream_ = nullptr;
};
#endif

// Copies in the order of the compute streams of the devices involved. From or to host memory that is not pinned it
// returns when the host may use (to) or change (from) it; with pinned memory it only starts, and the caller keeps the
// memory until the stream has passed.
void copy_bytes(void* to, Device to_device, const void* from, Device from_device, size_t bytes);

// Host memory that copies overlap with; throws without CUDA. free_pinned waits for copies on all compute streams.
void* allocate_pinned(size_t bytes);
void free_pinned(void* memory);

// Work put on `stream` (a cudaStream_t of the same device) from now on waits for what the compute stream has; the
// reverse.
void stream_waits_for_compute(Device device, void* stream);
void compute_waits_for_stream(Device device, void* stream);

// {"name", "total_bytes", "free_bytes", "capability": [major, minor], "multiprocessors", "driver": "13.0", "runtime"}
std::string device_properties_json(Device device);

// Throws for an error code of the CUDA runtime: Status::device_lost when the process has lost the device, else
// Status::out_of_memory or Status::runtime with CUDA's text.
[[noreturn]] void cuda_failed(int error, const char* what);

// Where operators without tensor operands (full, arange) make their result: the thread's default device, or what the
// dispatcher set for the length of a gradient or a decomposition.
Device creation_device();
void set_creation_device(Device device);
class CreationDevice {
 public:
  explicit CreationDevice(Device device) : before_(creation_device()) { set_creation_device(device); }
  ~CreationDevice() { set_creation_device(before_); }
  CreationDevice(const CreationDevice&) = delete;
  CreationDevice& operator=(const CreationDevice&) = delete;

 private:
  Device before_;
};

}  // namespace blutensor
