#include "hooks.h"

#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "error.h"

namespace blualloc {

std::atomic<uint32_t> num_hooks{0};

namespace {

struct Hook {
  uint64_t id;
  blualloc_hook call;
  void* ctx;
};
using HookList = std::vector<Hook>;

struct HookTable {
  std::mutex mutex;
  std::shared_ptr<const HookList> hooks = std::make_shared<HookList>();
  uint64_t next_id = 1;
};

// Never destroyed: memory may be freed while the process exits.
HookTable& table() {
  static HookTable* const instance = new HookTable();
  return *instance;
}

thread_local int hook_depth = 0;

void publish(HookTable& all, std::shared_ptr<const HookList> hooks) {
  all.hooks = std::move(hooks);
  num_hooks.store(static_cast<uint32_t>(all.hooks->size()), std::memory_order_relaxed);
}

}  // namespace

uint64_t add_hook(blualloc_hook hook, void* ctx) {
  require_not_null(hook, "add_hook", "hook");
  HookTable& all = table();
  const std::lock_guard<std::mutex> lock(all.mutex);
  auto hooks = std::make_shared<HookList>(*all.hooks);
  hooks->push_back({all.next_id, hook, ctx});
  publish(all, std::move(hooks));
  return all.next_id++;
}

void remove_hook(uint64_t id) {
  HookTable& all = table();
  std::shared_ptr<const HookList> before;
  {
    const std::lock_guard<std::mutex> lock(all.mutex);
    auto hooks = std::make_shared<HookList>(*all.hooks);
    if (std::erase_if(*hooks, [id](const Hook& hook) { return hook.id == id; }) == 0) {
      invalid("[remove_hook] expected the id of a registered hook, got " + std::to_string(id));
    }
    before = all.hooks;
    publish(all, std::move(hooks));
  }
  // Deliveries under way hold the old list; a hook that removes itself is one of them and cannot be waited for.
  while (hook_depth == 0 && before.use_count() > 1) {
    std::this_thread::yield();
  }
}

void lock_hooks() { table().mutex.lock(); }
void unlock_hooks() { table().mutex.unlock(); }

void unlock_hooks_in_child() noexcept {
  try {
    // remove_hook() waits for those who hold a list: let that be nobody.
    table().hooks = std::make_shared<HookList>(*table().hooks);
  } catch (...) {
    // No memory: then remove_hook() may wait for ever, where a thread of the parent was delivering.
  }
  unlock_hooks();
}

bool EventCollector::inside_hook() noexcept { return hook_depth != 0; }

void EventCollector::deliver() noexcept {
  if (events_.empty()) {
    return;
  }
  std::shared_ptr<const HookList> hooks;
  {
    const std::lock_guard<std::mutex> lock(table().mutex);
    hooks = table().hooks;
  }
  ++hook_depth;
  for (const blualloc_event& event : events_) {
    for (const Hook& hook : *hooks) {
      hook.call(hook.ctx, &event);
    }
  }
  --hook_depth;
}

}  // namespace blualloc

int32_t blualloc_add_hook(blualloc_hook hook, void* ctx, uint64_t* id) {
  return blualloc::guard([&] {
    blualloc::require_not_null(id, "add_hook", "id");
    *id = blualloc::add_hook(hook, ctx);
  });
}

int32_t blualloc_remove_hook(uint64_t id) {
  return blualloc::guard([&] { blualloc::remove_hook(id); });
}
