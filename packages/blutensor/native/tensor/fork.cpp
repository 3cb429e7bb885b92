#include "tensor/fork.h"

#include <pthread.h>

#include <array>

#include "tensor/error.h"

namespace blutensor {

namespace {

constexpr size_t kNumPlaces = static_cast<size_t>(ForkMutex::Place::names) + 1;

std::array<std::atomic<ForkMutex*>, kNumPlaces> fork_mutexes{};
std::atomic<uint32_t> num_forks{0};
// Those that prepare() took: one may come into being meanwhile.
thread_local std::array<ForkMutex*, kNumPlaces> taken{};

void prepare() {
  for (size_t i = 0; i < kNumPlaces; ++i)
    if ((taken[i] = fork_mutexes[i].load(std::memory_order_acquire))) taken[i]->lock();
}
void release() {
  for (size_t i = kNumPlaces; i-- > 0;)
    if (taken[i]) taken[i]->unlock();
}
void release_in_child() {
  num_forks.fetch_add(1, std::memory_order_relaxed);
  release();
}

void install_handlers() {
  static std::once_flag once;
  std::call_once(once, [] { pthread_atfork(prepare, release, release_in_child); });
}

uint64_t this_thread() noexcept {
  static std::atomic<uint32_t> num_threads{0};
  thread_local const uint32_t number = num_threads.fetch_add(1, std::memory_order_relaxed) + 1;
  return static_cast<uint64_t>(num_forks.load(std::memory_order_relaxed)) << 32 | number;
}

bool same_process(uint64_t a, uint64_t b) noexcept { return a >> 32 == b >> 32; }

}  // namespace

ForkMutex::ForkMutex(Place place) {
  install_handlers();
  fork_mutexes[static_cast<size_t>(place)].store(this, std::memory_order_release);
}

void ForkLock::lock() {
  const uint64_t own = this_thread();
  for (uint64_t seen = 0; !holder_.compare_exchange_strong(seen, own, std::memory_order_acquire); seen = 0) {
    if (seen == own)
      fail(Status::runtime, "[lock] ", what_,
           " is in use by the very call that a callback or hook is running in; do this "
           "after that call");
    if (!same_process(seen, own))
      fail(
          Status::runtime, "[fork] another thread was using ", what_,
          " when this process was forked, and left it half done; make a new one here, fork while no thread uses it, or "
          "start processes with the method 'spawn'");
    holder_.wait(seen, std::memory_order_relaxed);
  }
}

bool ForkLock::try_lock() noexcept {
  uint64_t seen = 0;
  return holder_.compare_exchange_strong(seen, this_thread(), std::memory_order_acquire);
}

void ForkLock::unlock() noexcept {
  holder_.store(0, std::memory_order_release);
  holder_.notify_one();
}

bool ForkLock::left_behind() const noexcept {
  const uint64_t holder = holder_.load(std::memory_order_relaxed);
  return holder != 0 && !same_process(holder, this_thread());
}

}  // namespace blutensor
