#include "pool/oom.h"

#include <mutex>
#include <string>

#include "error.h"
#include "units.h"

namespace blualloc {

namespace {

constexpr const char* kDefaultHint =
    "Lower the micro-batch size or the context length, turn on recompute, or raise the limit (blualloc.set_limit).";

thread_local blualloc_oom_info last_oom{};
thread_local bool has_oom = false;

struct Hint {
  std::mutex mutex;
  std::string text = kDefaultHint;
};

Hint& hint() {
  static Hint* const instance = new Hint();
  return *instance;
}

}  // namespace

std::mutex& oom_hint_mutex() { return hint().mutex; }

void throw_out_of_memory(const blualloc_oom_info& info, const char* tag) {
  last_oom = info;
  has_oom = true;
  std::string text = "[allocate] out of memory in pool " + std::string(info.pool_name) + ": asked for " +
                     describe_bytes(info.requested_bytes) + " for '" + tag + "'; live " +
                     describe_bytes(info.live_bytes) + ", cached " + describe_bytes(info.cached_bytes) +
                     " (given back before the last attempt), limit " +
                     (info.limit_bytes != 0 ? describe_bytes(info.limit_bytes) : "none");
  if (info.device_total_bytes != 0) {
    text += "; the device has " + describe_bytes(info.device_free_bytes) + " free of " +
            describe_bytes(info.device_total_bytes);
  }
  text += ".";
  if (info.num_holders != 0) {
    text += " Largest holders:";
    for (uint32_t i = 0; i < info.num_holders; ++i) {
      const blualloc_holder& holder = info.holders[i];
      text += std::string(i == 0 ? " " : ", ") + holder.tag + " " + describe_bytes(holder.bytes) + " in " +
              std::to_string(holder.count) + (holder.count == 1 ? " block" : " blocks");
    }
    text += ".";
  }
  {
    const std::lock_guard<std::mutex> lock(hint().mutex);
    text += " " + hint().text;
  }
  throw Error(BLUALLOC_OUT_OF_MEMORY, text);
}

}  // namespace blualloc

int32_t blualloc_last_oom(blualloc_oom_info* out) {
  return blualloc::guard([&] {
    if (!blualloc::has_oom) {
      blualloc::invalid("[last_oom] expected a failed allocation on this thread, got none");
    }
    blualloc::write_sized(out, blualloc::last_oom, "last_oom");
  });
}

int32_t blualloc_set_oom_hint(const char* text) {
  return blualloc::guard([&] {
    const std::lock_guard<std::mutex> lock(blualloc::hint().mutex);
    blualloc::hint().text = text != nullptr ? text : blualloc::kDefaultHint;
  });
}
