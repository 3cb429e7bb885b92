#include "runtime/staging.h"

#include <map>
#include <mutex>

namespace blutensor {

namespace {

constexpr size_t kAlignment = 256;  // of a slot's part

// The stream that copies beside the compute stream, one per device and process.
cudaStream_t copy_stream_of(Device device) {
  static std::mutex mutex;
  static auto& streams = *new std::map<int32_t, cudaStream_t>;  // never destroyed, like the compute streams
  const std::lock_guard lock(mutex);
  cudaStream_t& stream = streams[device.index];
  if (!stream)
    if (const cudaError_t error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking))
      cuda_failed(error, "batch");
  return stream;
}

}  // namespace

Staging::Staging(const Program& program) : program_(program), copies_(copy_stream_of(program.device)) {
  for (const Tensor& slot : program.slot_tensors) {
    offsets_.push_back(bytes_);
    bytes_ += (slot.nbytes() + kAlignment - 1) / kAlignment * kAlignment;
  }
  for (Buffer& buffer : buffers_) {
    buffer.pinned = static_cast<char*>(allocate_pinned(bytes_));
    buffer.device = make_ref<Storage>(bytes_, program.device, "staging");
    for (size_t i = 0; i < offsets_.size(); ++i) {
      const Tensor& slot = program.slot_tensors[i];
      buffer.addresses.push_back(buffer.pinned + offsets_[i]);
      const char* staged = static_cast<const char*>(buffer.device->data()) + offsets_[i];
      buffer.to_slots.push_back({slot.data(), staged, slot.nbytes()});
    }
    buffer.consumed.record(compute_stream(program.device));
  }
}

Staging::~Staging() {
  static_cast<void>(cudaStreamSynchronize(copies_));
  for (Buffer& buffer : buffers_) free_pinned(buffer.pinned);
}

const std::vector<void*>& Staging::begin_fill() {
  Buffer& buffer = buffers_[num_filled_ % 2];
  buffer.copied.wait();
  return buffer.addresses;
}

void Staging::start_copy() {
  Buffer& buffer = buffers_[num_filled_ % 2];
  buffer.consumed.hold(copies_);
  if (const cudaError_t error =
          bytes_ ? cudaMemcpyAsync(buffer.device->data(), buffer.pinned, bytes_, cudaMemcpyHostToDevice, copies_)
                 : cudaSuccess)
    cuda_failed(error, "batch");
  buffer.copied.record(copies_);
  ++num_filled_;
}

void Staging::deliver() {
  Buffer& buffer = buffers_[num_delivered_ % 2];
  void* stream = compute_stream(program_.device);
  buffer.copied.hold(stream);
  copy_ranges(buffer.to_slots, stream);
  buffer.consumed.record(stream);
  ++num_delivered_;
}

}  // namespace blutensor
