// The C edge of pools: check pointers, call, convert. No logic lives here.
#include <blualloc/blualloc.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "device/cuda.h"
#include "error.h"
#include "pool/pool.h"
#include "registry.h"

using blualloc::guard;
using blualloc::read_sized;
using blualloc::require_not_null;
using blualloc::write_sized;

namespace {

template <class Item>
void write_items(const std::vector<Item>& items, Item* out, uint64_t capacity, uint64_t* count) {
  *count = items.size();
  std::copy_n(items.begin(), std::min<uint64_t>(capacity, items.size()), out);
}

void require_item_size(uint32_t item_size, const char* operation) {
  if (item_size != sizeof(blualloc_block_info)) {
    blualloc::invalid("[" + std::string(operation) + "] expected item_size = " +
                      std::to_string(sizeof(blualloc_block_info)) + ", got " + std::to_string(item_size));
  }
}

}  // namespace

int32_t blualloc_register_device(int32_t device_type, int32_t device_index, const blualloc_device_ops* ops) {
  return guard([&] { blualloc::register_device(device_type, device_index, ops); });
}

int32_t blualloc_cuda_device(int32_t device_index, int32_t segments, const blualloc_device_ops** out) {
  return guard([&] {
    require_not_null(out, "cuda_device", "out");
    *out = &blualloc::cuda_device(device_index, segments, "cuda_device");
  });
}

int32_t blualloc_device_count(int32_t device_type) {
  const bool uses_cuda = device_type == BLUALLOC_DEVICE_CUDA || device_type == BLUALLOC_DEVICE_PINNED;
  const int32_t num_cuda = uses_cuda ? blualloc::cuda_device_count() : 0;
  return device_type == BLUALLOC_DEVICE_CUDA     ? num_cuda
         : device_type == BLUALLOC_DEVICE_PINNED ? num_cuda > 0
                                                 : device_type == BLUALLOC_DEVICE_CPU;
}

int32_t blualloc_device_memory(int32_t device_type, int32_t device_index, uint64_t* free_bytes, uint64_t* total_bytes) {
  return guard([&] {
    uint64_t free_now = 0;
    uint64_t total = 0;
    blualloc::device_memory(device_type, device_index, free_now, total);
    if (free_bytes != nullptr) {
      *free_bytes = free_now;
    }
    if (total_bytes != nullptr) {
      *total_bytes = total;
    }
  });
}

const char* blualloc_cuda_reason(void) { return blualloc::cuda_reason().c_str(); }

int32_t blualloc_default_pool(int32_t device_type, int32_t device_index, blualloc_pool** out) {
  return guard([&] {
    require_not_null(out, "default_pool", "out");
    *out = blualloc::default_pool(device_type, device_index);
  });
}

int32_t blualloc_configure(const blualloc_pool_options* options) {
  return guard([&] { blualloc::configure_default_pool(read_sized(options, "configure")); });
}

int32_t blualloc_pool_create(const blualloc_pool_options* options, blualloc_pool** out) {
  return guard([&] {
    require_not_null(out, "pool_create", "out");
    *out = blualloc::create_pool(options);
  });
}

int32_t blualloc_pool_destroy(blualloc_pool* pool, int32_t force) {
  return guard([&] { blualloc::destroy_pool(pool, force != 0); });
}

int32_t blualloc_allocate(blualloc_pool* pool, uint64_t bytes, void* stream, const char* tag, void** out) {
  return guard([&] {
    require_not_null(pool, "allocate", "pool");
    require_not_null(out, "allocate", "out");
    *out = pool->allocate(bytes, stream, tag);
  });
}

int32_t blualloc_free(blualloc_pool* pool, void* ptr, void* stream) {
  return guard([&] {
    require_not_null(pool, "free", "pool");
    pool->free(ptr, stream);
  });
}

int32_t blualloc_record_use(blualloc_pool* pool, void* ptr, void* stream) {
  return guard([&] {
    require_not_null(pool, "record_use", "pool");
    pool->record_use(ptr, stream);
  });
}

int32_t blualloc_forget_stream(blualloc_pool* pool, void* stream) {
  return guard([&] {
    require_not_null(pool, "forget_stream", "pool");
    pool->forget_stream(stream);
  });
}

int32_t blualloc_set_tag(blualloc_pool* pool, void* ptr, const char* tag) {
  return guard([&] {
    require_not_null(pool, "set_tag", "pool");
    pool->set_tag(ptr, tag);
  });
}

int32_t blualloc_set_limit(blualloc_pool* pool, uint64_t bytes) {
  return guard([&] {
    require_not_null(pool, "set_limit", "pool");
    pool->set_limit(bytes);
  });
}

int32_t blualloc_trim(blualloc_pool* pool, uint64_t* returned) {
  return guard([&] {
    require_not_null(pool, "trim", "pool");
    const uint64_t bytes = pool->trim();
    if (returned != nullptr) {
      *returned = bytes;
    }
  });
}

int32_t blualloc_get_stats(blualloc_pool* pool, blualloc_stats* out) {
  return guard([&] {
    require_not_null(pool, "stats", "pool");
    write_sized(out, pool->stats(), "stats");
  });
}

int32_t blualloc_reset_peak(blualloc_pool* pool) {
  return guard([&] {
    require_not_null(pool, "reset_peak", "pool");
    pool->reset_peak();
  });
}

int32_t blualloc_histogram(blualloc_pool* pool, blualloc_size_count* out, uint64_t capacity, uint64_t* count) {
  return guard([&] {
    require_not_null(pool, "histogram", "pool");
    require_not_null(count, "histogram", "count");
    write_items(pool->histogram(), out, capacity, count);
  });
}

int32_t blualloc_snapshot(blualloc_pool* pool, blualloc_block_info* out, uint32_t item_size, uint64_t capacity,
                          uint64_t* count) {
  return guard([&] {
    require_not_null(pool, "snapshot", "pool");
    require_not_null(count, "snapshot", "count");
    require_item_size(item_size, "snapshot");
    write_items(pool->snapshot(), out, capacity, count);
  });
}

int32_t blualloc_find_block(blualloc_pool* pool, const void* address, blualloc_block_info* out, uint32_t item_size) {
  return guard([&] {
    require_not_null(pool, "find_block", "pool");
    require_not_null(out, "find_block", "out");
    require_item_size(item_size, "find_block");
    *out = pool->find_block(address);
  });
}

int32_t blualloc_end_of_step(blualloc_pool* pool, uint64_t step, blualloc_step_report* report) {
  return guard([&] {
    require_not_null(pool, "end_of_step", "pool");
    const blualloc_step_report full = pool->end_of_step(step);
    if (report != nullptr) {
      write_sized(report, full, "end_of_step");
    }
  });
}
