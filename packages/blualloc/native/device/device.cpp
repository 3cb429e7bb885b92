#include "device/device.h"

#include <string>

#include "error.h"
#include "units.h"

namespace blualloc {

Device::Device(const blualloc_device_ops& ops, const char* operation) : ops_(read_sized(&ops, operation)) {
  const std::string prefix = "[" + std::string(operation) + "] ";
  name_ = ops_.name != nullptr ? ops_.name : "unnamed device";
  ops_.name = nullptr;  // the copy in name_ is what lives on
  if (ops_.reserve == nullptr || ops_.release == nullptr ||
      (!has_whole_segments() && (ops_.map == nullptr || ops_.unmap == nullptr))) {
    invalid(prefix + "expected reserve, release, map and unmap of device " + name_ + ", got NULL");
  }
  if ((ops_.flags & ~uint32_t{BLUALLOC_WHOLE_SEGMENTS}) != 0) {
    invalid(prefix + "expected flags of BLUALLOC_WHOLE_SEGMENTS or 0 of device " + name_ + ", got " +
            std::to_string(ops_.flags));
  }
  const int given = (ops_.record_event != nullptr) + (ops_.wait_event != nullptr) + (ops_.query_event != nullptr) +
                    (ops_.synchronize_event != nullptr) + (ops_.destroy_event != nullptr);
  if (given != 0 && given != 5) {
    invalid(prefix + "expected all five event callbacks of device " + name_ + " or none, got " + std::to_string(given));
  }
  if (ops_.min_alignment < 64 || !is_power_of_two(ops_.min_alignment)) {
    invalid(prefix + "expected min_alignment to be a power of two of at least 64, got " +
            std::to_string(ops_.min_alignment));
  }
  if (ops_.granularity < ops_.min_alignment || !is_power_of_two(ops_.granularity)) {
    invalid(prefix + "expected granularity to be a power of two of at least min_alignment, got " +
            std::to_string(ops_.granularity));
  }
}

void Device::check(int32_t status, const char* call) const {
  if (status != BLUALLOC_OK) {
    const std::string failure = take_device_failure();
    throw Error(BLUALLOC_RUNTIME_FAILURE, "[blualloc] device " + name_ + ": " + call + " failed with status " +
                                              std::to_string(status) + (failure.empty() ? "" : ": " + failure));
  }
}

void* Device::reserve(uint64_t bytes) {
  void* address = nullptr;
  return ops_.reserve(ops_.ctx, bytes, &address) == BLUALLOC_OK ? address : nullptr;
}

void Device::release(void* address, uint64_t bytes) { check(ops_.release(ops_.ctx, address, bytes), "release"); }

bool Device::map(void* address, uint64_t bytes) {
  if (has_whole_segments()) {
    return true;  // the memory came with the reservation
  }
  const int32_t status = ops_.map(ops_.ctx, address, bytes);
  if (status == BLUALLOC_OUT_OF_MEMORY) {
    return false;
  }
  check(status, "map");
  return true;
}

void Device::unmap(void* address, uint64_t bytes) { check(ops_.unmap(ops_.ctx, address, bytes), "unmap"); }

bool Device::memory(uint64_t& free_bytes, uint64_t& total_bytes) const {
  return ops_.memory != nullptr && ops_.memory(ops_.ctx, &free_bytes, &total_bytes) == BLUALLOC_OK;
}

void Device::shrink_to_pieces(char*& address, uint64_t& bytes) const {
  if (ops_.piece == nullptr || bytes == 0) {
    return;
  }
  char* const end = address + bytes;
  void* start = nullptr;
  uint64_t size = 0;
  check(ops_.piece(ops_.ctx, address, &start, &size), "piece");
  char* const first = start == address ? address : static_cast<char*>(start) + size;
  check(ops_.piece(ops_.ctx, end - 1, &start, &size), "piece");
  char* const last = static_cast<char*>(start) + size == end ? end : static_cast<char*>(start);
  address = first;
  bytes = last > first ? static_cast<uint64_t>(last - first) : 0;
}

void* Device::record_event(void* stream) {
  void* event = nullptr;
  check(ops_.record_event(ops_.ctx, stream, &event), "record_event");
  return event;
}

void Device::wait_event(void* stream, void* event) { check(ops_.wait_event(ops_.ctx, stream, event), "wait_event"); }

bool Device::is_done(void* event) {
  int32_t done = 0;
  check(ops_.query_event(ops_.ctx, event, &done), "query_event");
  return done != 0;
}

void Device::synchronize_event(void* event) { check(ops_.synchronize_event(ops_.ctx, event), "synchronize_event"); }

void Device::destroy_event(void* event) noexcept {
  // Nothing can be done about a failure here, and nothing depends on it.
  (void)ops_.destroy_event(ops_.ctx, event);
}

}  // namespace blualloc
