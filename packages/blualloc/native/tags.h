// Owners' names, kept once per process and never freed: snapshots and events may point at them.
#pragma once

#include <mutex>

namespace blualloc {

// The kept copy of `tag` (NULL is "untagged"). Takes a process-wide mutex: pools keep a cache in front of it.
const char* intern_tag(const char* tag);

// For the fork handlers alone.
std::mutex& tag_mutex();

}  // namespace blualloc
