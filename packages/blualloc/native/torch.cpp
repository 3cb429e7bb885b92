// What PyTorch's pluggable allocator calls. PyTorch hands the size, device and stream of the allocation back with the
// free, so a block is always freed on the stream that it was allocated for; other uses come through record_stream.
#include <blualloc/blualloc.h>

#include <array>
#include <atomic>
#include <stdexcept>
#include <string>

#include "device/cuda.h"

namespace {

constexpr int kMaxDevices = 64;

// Pools that PyTorch has used, by device.
std::array<std::atomic<blualloc_pool*>, kMaxDevices> used_pools{};

// NULL, with blualloc_last_error, when there is no such device.
blualloc_pool* pool_of(int device_index) {
  if (device_index < 0 || device_index >= kMaxDevices) {
    return nullptr;
  }
  std::atomic<blualloc_pool*>& known = used_pools[static_cast<size_t>(device_index)];
  blualloc_pool* pool = known.load(std::memory_order_acquire);
  if (pool == nullptr && blualloc_default_pool(BLUALLOC_DEVICE_CUDA, device_index, &pool) == BLUALLOC_OK) {
    known.store(pool, std::memory_order_release);
  }
  return pool;
}

}  // namespace

void* blualloc_torch_malloc(ptrdiff_t bytes, int device_index, void* stream) {
  blualloc_pool* const pool = pool_of(device_index);
  void* block = nullptr;
  // A graph uses its memory at every replay, also where PyTorch has freed it long since.
  if (pool != nullptr && blualloc::is_captured(stream)) {
    throw std::runtime_error("[torch] expected an allocation outside of a CUDA graph, got " + std::to_string(bytes) +
                             " bytes while PyTorch captures: graphs need private pools, which PyTorch has for its own "
                             "allocator only; train without torch.cuda.graph, or without blualloc.torch.install()");
  }
  if (pool == nullptr || bytes < 0 ||
      blualloc_allocate(pool, static_cast<uint64_t>(bytes), stream, "torch", &block) != BLUALLOC_OK) {
    throw std::runtime_error(blualloc_last_error());
  }
  return block;
}

void blualloc_torch_free(void* ptr, ptrdiff_t, int device_index, void* stream) {
  if (blualloc_pool* const pool = pool_of(device_index)) {
    (void)blualloc_free(pool, ptr, stream);  // called from destructors: nobody could be told of a failure
  }
}

void blualloc_torch_record_stream(void* ptr, void* stream) {
  for (const auto& pool : used_pools) {
    blualloc_pool* const used = pool.load(std::memory_order_acquire);
    if (used != nullptr && blualloc_record_use(used, ptr, stream) == BLUALLOC_OK) {
      return;
    }
  }
}

void blualloc_torch_empty_cache(void) {
  for (const auto& pool : used_pools) {
    blualloc_pool* const used = pool.load(std::memory_order_acquire);
    if (used != nullptr && blualloc_trim(used, nullptr) != BLUALLOC_OK) {
      throw std::runtime_error(blualloc_last_error());
    }
  }
}

void blualloc_torch_set_memory_fraction(double fraction, int device_index) {
  blualloc_pool* const pool = pool_of(device_index);
  uint64_t total = 0;
  if (pool == nullptr || blualloc_device_memory(BLUALLOC_DEVICE_CUDA, device_index, nullptr, &total) != BLUALLOC_OK ||
      blualloc_set_limit(pool, static_cast<uint64_t>(fraction * static_cast<double>(total))) != BLUALLOC_OK) {
    throw std::runtime_error(blualloc_last_error());
  }
}
