#include "tensor/storage.h"

#include <atomic>
#include <set>

#include <blualloc/blualloc.h>

#include "tensor/device.h"
#include "tensor/fork.h"

namespace blutensor {

namespace {

std::atomic<uint64_t> next_storage_id{1};

ForkMutex& watch_mutex() {
  static auto& mutex = *new ForkMutex(ForkMutex::Place::storage_watch);
  return mutex;
}

blualloc_pool* default_pool(Device device) {
  check_device(device);
  blualloc_pool* pool = nullptr;
  if (const int32_t status = blualloc_default_pool(static_cast<int32_t>(device.type), device.index, &pool))
    throw Error(static_cast<Status>(status), blualloc_last_error());
  return pool;
}

}  // namespace

std::string device_name(Device device) { return device.type == DeviceType::cpu ? "cpu" : text("cuda:", device.index); }

void record_use(const Storage& storage, void* stream) {
  if (storage.foreign() || !storage.data()) return;
  if (const int32_t status = blualloc_record_use(default_pool(storage.device()), storage.data(), stream))
    throw Error(static_cast<Status>(status), blualloc_last_error());
}

void trim_pool(Device device) {
  if (const int32_t status = blualloc_trim(default_pool(device), nullptr))
    throw Error(static_cast<Status>(status), blualloc_last_error());
}

const char* intern(const std::string& name) {
  static auto& mutex = *new ForkMutex(ForkMutex::Place::names);
  static auto& names = *new std::set<std::string>;  // never destroyed: tags outlive static destruction
  const std::lock_guard lock(mutex);
  return names.insert(name).first->c_str();
}

Storage::Storage(size_t bytes, Device device, const char* tag)
    : bytes_(bytes), device_(device), id_(next_storage_id.fetch_add(1, std::memory_order_relaxed)) {
  if (const int32_t status = blualloc_allocate(default_pool(device), bytes, memory_stream(device), tag, &data_))
    throw Error(static_cast<Status>(status), blualloc_last_error());
}

Storage::Storage(void* data, size_t bytes, Device device, std::function<void()> release)
    : data_(data),
      bytes_(bytes),
      device_(device),
      release_(std::move(release)),
      id_(next_storage_id.fetch_add(1, std::memory_order_relaxed)) {}

Storage::~Storage() {
  if (watch_) watch_->remove(id_);
  if (release_) {
    release_();
  } else if (data_) {
    // A failure here means that the pool's bookkeeping is broken; a destructor cannot report it.
    static_cast<void>(blualloc_free(default_pool(device_), data_, memory_stream(device_)));
  }
}

void StorageWatch::add(Storage& storage) {
  const std::lock_guard lock(watch_mutex());
  alive_.emplace(storage.id(), &storage);
  storage.set_watch(Ref<StorageWatch>(this));
}

void StorageWatch::remove(uint64_t storage_id) {
  const std::lock_guard lock(watch_mutex());
  alive_.erase(storage_id);
}

void StorageWatch::for_each(const std::function<void(Storage&)>& visit) {
  const std::lock_guard lock(watch_mutex());
  for (const auto& [id, storage] : alive_) visit(*storage);
}

}  // namespace blutensor
