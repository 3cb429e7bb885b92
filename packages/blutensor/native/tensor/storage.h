// Storage: a block of memory that views share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "tensor/dtype.h"
#include "tensor/intrusive.h"

namespace blutensor {

enum class DeviceType : int32_t { cpu = 0, cuda = 1 };

struct Device {
  DeviceType type = DeviceType::cpu;
  int32_t index = 0;
  bool operator==(const Device&) const = default;
};
std::string device_name(Device device);  // "cpu", "cuda:0"

class Storage;
// The storages of a set that are still alive. A capture watches those it made, to learn which tensors outlive the captured
// function; they may die on any thread.
class StorageWatch final : public RefCounted {
 public:
  void add(Storage& storage);
  void remove(uint64_t storage_id);
  // Calls visit with every storage that is alive; none dies meanwhile.
  void for_each(const std::function<void(Storage&)>& visit);

 private:
  std::map<uint64_t, Storage*> alive_;  // one lock guards those of all sets
};

class Storage final : public RefCounted {
 public:
  // From blualloc's default pool of the device, in the order of its compute stream; `tag` names the owner in snapshots (a string literal or interned).
  Storage(size_t bytes, Device device, const char* tag);
  // Foreign memory; `release` runs when the last view dies.
  Storage(void* data, size_t bytes, Device device, std::function<void()> release);
  ~Storage() override;

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  Device device() const { return device_; }
  bool foreign() const { return static_cast<bool>(release_); }
  // Unique for the life of the process: identity of a buffer in captures.
  uint64_t id() const { return id_; }

  // Counts writes in place; a tensor saved for backward remembers the value it was saved at.
  uint64_t version() const { return version_; }
  const char* last_writer() const { return last_writer_; }
  void mark_written(const char* op) {
    ++version_;
    last_writer_ = op;
  }

  // Set on a tensor that a captured function left behind without returning it: its bytes live in the
  // capture's arena and mean nothing outside. Names the capture, or nullptr.
  const char* captured_by() const { return captured_by_; }
  void set_captured_by(const char* name) { captured_by_ = name; }

  // Told when this storage dies.
  void set_watch(Ref<StorageWatch> watch) { watch_ = std::move(watch); }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
  Device device_;
  std::function<void()> release_;
  uint64_t id_ = 0;
  uint64_t version_ = 0;
  const char* last_writer_ = "creation";
  const char* captured_by_ = nullptr;
  Ref<StorageWatch> watch_;
};

// Another library's stream reads or writes it too: its memory is used again only after what that stream has by then.
void record_use(const Storage& storage, void* stream);
// Gives what the device's pool holds and nobody uses back to the device.
void trim_pool(Device device);

// Keeps a string alive for the life of the process (operator and capture names used as tags).
const char* intern(const std::string& text);

}  // namespace blutensor
