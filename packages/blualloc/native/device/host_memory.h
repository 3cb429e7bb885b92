// How much memory the host has for this process.
#pragma once

#include <cstdint>

namespace blualloc {

// Physical memory in bytes, or the control group's limit where one can be read and is smaller; read once.
// UINT64_MAX when nothing can be learnt.
uint64_t host_memory_bytes();

}  // namespace blualloc
