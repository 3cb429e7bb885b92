// Which devices there are, their default pools, and all pools (for fork).
#pragma once

#include <blualloc/blualloc.h>

namespace blualloc {

void register_device(int32_t device_type, int32_t device_index, const blualloc_device_ops* ops);
// Throws BLUALLOC_UNSUPPORTED when there is no such device, or when it cannot tell.
void device_memory(int32_t device_type, int32_t device_index, uint64_t& free_bytes, uint64_t& total_bytes);
void configure_default_pool(const blualloc_pool_options& options);
blualloc_pool* default_pool(int32_t device_type, int32_t device_index);
blualloc_pool* create_pool(const blualloc_pool_options* options);
void destroy_pool(blualloc_pool* pool, bool force);

}  // namespace blualloc
