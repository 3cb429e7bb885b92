#include "registry.h"

#include <pthread.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "device/cuda.h"
#include "error.h"
#include "hooks.h"
#include "pool/oom.h"
#include "pool/pool.h"
#include "tags.h"

namespace blualloc {
namespace {

using DeviceKey = std::pair<int32_t, int32_t>;  // type, index

struct Entry {
  Device device;
  blualloc_pool_options options{};
  std::string name;  // what options.name points at
  std::unique_ptr<blualloc_pool> pool;
};

struct Registry {
  std::mutex mutex;
  std::map<DeviceKey, Entry> entries;
  std::vector<blualloc_pool*> pools;  // default and private
};

void lock_everything();
void unlock_everything();
void unlock_everything_in_child();

// Never destroyed: blocks may be freed by statics of other libraries while the process exits.
Registry& registry() {
  static Registry* const instance = [] {
    auto* const made = new Registry();
    made->entries.emplace(DeviceKey{BLUALLOC_DEVICE_CPU, 0},
                          Entry{Device(*blualloc_host_device(), "host"), {}, {}, {}});
    // A child of fork must not find a mutex that a thread it does not have was holding.
    pthread_atfork(lock_everything, unlock_everything, unlock_everything_in_child);
    return made;
  }();
  return *instance;
}

void lock_everything() {
  registry().mutex.lock();
  for (blualloc_pool* pool : registry().pools) {
    pool->mutex().lock();
  }
  tag_mutex().lock();
  oom_hint_mutex().lock();
  lock_hooks();
}

void unlock_pools() {
  oom_hint_mutex().unlock();
  tag_mutex().unlock();
  for (blualloc_pool* pool : registry().pools) {
    pool->mutex().unlock();
  }
  registry().mutex.unlock();
}

void unlock_everything() {
  unlock_hooks();
  unlock_pools();
}

void unlock_everything_in_child() {
  unlock_hooks_in_child();
  unlock_pools();
}

std::string device_name(DeviceKey key) {
  const std::string type = key.first == BLUALLOC_DEVICE_CPU      ? "cpu"
                           : key.first == BLUALLOC_DEVICE_CUDA   ? "cuda"
                           : key.first == BLUALLOC_DEVICE_PINNED ? "pinned"
                                                                 : "type " + std::to_string(key.first);
  return type + ":" + std::to_string(key.second);
}

// Built-in CUDA devices come into being here, at the first use: a process that never asks for one never starts CUDA.
Entry& find_entry(Registry& all, DeviceKey key, const char* operation) {
  auto found = all.entries.find(key);
  if (found == all.entries.end() && (key.first == BLUALLOC_DEVICE_CUDA || key.first == BLUALLOC_DEVICE_PINNED)) {
    const blualloc_device_ops& ops = key.first == BLUALLOC_DEVICE_CUDA
                                         ? cuda_device(key.second, BLUALLOC_SEGMENTS_AUTO, operation)
                                         : pinned_device(key.second, operation);
    found = all.entries.emplace(key, Entry{Device(ops, operation), {}, {}, {}}).first;
  }
  if (found == all.entries.end()) {
    throw Error(BLUALLOC_UNSUPPORTED, "[" + std::string(operation) + "] expected a registered device, got " +
                                          device_name(key) + "; this build or machine has none, use cpu:0");
  }
  return found->second;
}

}  // namespace

void register_device(int32_t device_type, int32_t device_index, const blualloc_device_ops* ops) {
  require_not_null(ops, "register_device", "ops");
  Device device(*ops, "register_device");
  Registry& all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const DeviceKey key{device_type, device_index};
  if (!all.entries.emplace(key, Entry{std::move(device), {}, {}, {}}).second) {
    invalid("[register_device] expected a device that is not registered yet, got " + device_name(key));
  }
}

void device_memory(int32_t device_type, int32_t device_index, uint64_t& free_bytes, uint64_t& total_bytes) {
  Registry& all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const DeviceKey key{device_type, device_index};
  if (!find_entry(all, key, "device_memory").device.memory(free_bytes, total_bytes)) {
    throw Error(BLUALLOC_UNSUPPORTED,
                "[device_memory] expected a device that can tell how much memory it has, got " + device_name(key));
  }
}

void configure_default_pool(const blualloc_pool_options& options) {
  if (options.device != nullptr) {
    invalid("[configure] expected `device` to be NULL, since default pools use the registered device");
  }
  Registry& all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const DeviceKey key{options.device_type, options.device_index};
  Entry& entry = find_entry(all, key, "configure");
  if (entry.pool != nullptr) {
    invalid("[configure] expected to be called before the first use of the default pool of " + device_name(key) +
            ", got a pool that is in use");
  }
  const blualloc_pool check(options, entry.device);  // throws on nonsense now, not at first use
  entry.name = options.name != nullptr ? options.name : "";
  entry.options = options;
  entry.options.name = options.name != nullptr ? entry.name.c_str() : nullptr;
}

blualloc_pool* default_pool(int32_t device_type, int32_t device_index) {
  Registry& all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  Entry& entry = find_entry(all, {device_type, device_index}, "default_pool");
  if (entry.pool == nullptr) {
    entry.pool = std::make_unique<blualloc_pool>(entry.options, entry.device);
    all.pools.push_back(entry.pool.get());
  }
  return entry.pool.get();
}

blualloc_pool* create_pool(const blualloc_pool_options* options) {
  const blualloc_pool_options full = options != nullptr ? read_sized(options, "pool_create") : blualloc_pool_options{};
  Registry& all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const Device device = full.device != nullptr
                            ? Device(*full.device, "pool_create")
                            : find_entry(all, {full.device_type, full.device_index}, "pool_create").device;
  auto pool = std::make_unique<blualloc_pool>(full, device);
  all.pools.push_back(pool.get());
  return pool.release();
}

void destroy_pool(blualloc_pool* pool, bool force) {
  if (pool == nullptr) {
    return;
  }
  Registry& all = registry();
  {
    const std::lock_guard<std::mutex> lock(all.mutex);
    const auto found = std::find(all.pools.begin(), all.pools.end(), pool);
    if (found == all.pools.end()) {
      invalid("[pool_destroy] expected a pool of blualloc_pool_create, got something else or a destroyed one");
    }
    for (const auto& [key, entry] : all.entries) {
      if (entry.pool.get() == pool) {
        invalid("[pool_destroy] expected a private pool, got the default pool of " + device_name(key));
      }
    }
    pool->close(force);
    all.pools.erase(found);
  }
  delete pool;
}

}  // namespace blualloc
