// The out-of-memory report: kept per thread, and put into words.
#pragma once

#include <blualloc/blualloc.h>

#include <mutex>

namespace blualloc {

// Remembers `info` for blualloc_last_oom and throws the error that describes it.
[[noreturn]] void throw_out_of_memory(const blualloc_oom_info& info, const char* tag);

// For the fork handlers alone.
std::mutex& oom_hint_mutex();

}  // namespace blualloc
