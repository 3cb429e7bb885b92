// Which devices there are, their default pools, and all pools (for fork).
#pragma once

#include <blualloc/blualloc.h>

namespace blualloc {

void register_device(int32_t device_type, int32_t device_index, const blualloc_device_ops* ops);
void configure_default_pool(const blualloc_pool_options& options);
blualloc_pool* default_pool(int32_t device_type, int32_t device_index);
blualloc_pool* create_pool(const blualloc_pool_options* options);
void destroy_pool(blualloc_pool* pool, bool force);

}  // namespace blualloc
