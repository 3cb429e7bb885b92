// A device as a pool sees it: a copy of its table of callbacks, with every status checked.
#pragma once

#include <blualloc/blualloc.h>

#include <cstdint>
#include <memory>
#include <string>

namespace blualloc {

class Device {
 public:
  // Checks the table: all callbacks present, sizes powers of two. `operation` names the caller in messages.
  Device(const blualloc_device_ops& ops, const char* operation);

  const std::string& name() const { return name_; }
  uint64_t granularity() const { return ops_.granularity; }
  uint64_t min_alignment() const { return ops_.min_alignment; }
  // True when the device gives and takes back memory in whole reservations only.
  bool has_whole_segments() const { return (ops_.flags & BLUALLOC_WHOLE_SEGMENTS) != 0; }
  // True when work may still be running after the call that started it: streams and events then matter.
  bool is_asynchronous() const { return ops_.record_event != nullptr; }

  // NULL when there is no such room.
  void* reserve(uint64_t bytes);
  void release(void* address, uint64_t bytes);
  // False when the device is out of memory; other failures throw.
  bool map(void* address, uint64_t bytes);
  void unmap(void* address, uint64_t bytes);
  // The largest part of a mapped range that can be unmapped; its size may become 0.
  void shrink_to_pieces(char*& address, uint64_t& bytes) const;

  // False when the device cannot tell.
  bool memory(uint64_t& free_bytes, uint64_t& total_bytes) const;

  void* record_event(void* stream);
  void wait_event(void* stream, void* event);
  bool is_done(void* event);
  void synchronize_event(void* event);
  void destroy_event(void* event) noexcept;

 private:
  void check(int32_t status, const char* call) const;

  blualloc_device_ops ops_;
  std::string name_;
};

// An event that destroys itself. `order` grows with every event of the pool: of two events of one stream, the later
// one covers the earlier.
struct Event {
  Event(Device& device_, void* stream_, uint64_t order_)
      : device(device_), stream(stream_), order(order_), handle(device_.record_event(stream_)) {}
  ~Event() { device.destroy_event(handle); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  Device& device;
  void* stream;
  uint64_t order;
  void* handle;
};
using EventRef = std::shared_ptr<Event>;

}  // namespace blualloc
