// Event hooks: who listens, and the collector that delivers a call's events after its pool is unlocked.
#pragma once

#include <blualloc/blualloc.h>

#include <atomic>
#include <cstdint>
#include <vector>

namespace blualloc {

extern std::atomic<uint32_t> num_hooks;

uint64_t add_hook(blualloc_hook hook, void* ctx);
void remove_hook(uint64_t id);

// For the fork handlers alone: nobody changes the list meanwhile, and a child forgets deliveries that it has no threads for.
void lock_hooks();
void unlock_hooks();
void unlock_hooks_in_child() noexcept;

// Declared before the lock of a pool, so that it is destroyed after: it then delivers what was put into it.
class EventCollector {
 public:
  EventCollector() : active_(num_hooks.load(std::memory_order_relaxed) != 0 && !inside_hook()) {}
  ~EventCollector() {
    if (active_) [[unlikely]] {
      deliver();
    }
  }
  EventCollector(const EventCollector&) = delete;
  EventCollector& operator=(const EventCollector&) = delete;

  bool active() const { return active_; }
  void add(const blualloc_event& event) { events_.push_back(event); }

 private:
  static bool inside_hook() noexcept;
  void deliver() noexcept;

  bool active_;
  std::vector<blualloc_event> events_;
};

}  // namespace blualloc
