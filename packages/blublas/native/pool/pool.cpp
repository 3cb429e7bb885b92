#include "pool/pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "common/cpu.h"
#include "common/status.h"

namespace blublas {
namespace {

inline void pause_cpu() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

static_assert(sizeof(std::atomic<uint32_t>) == 4, "the futex needs the bare word");

void futex_wait(std::atomic<uint32_t>& word, uint32_t seen) noexcept {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
}
void futex_wake(std::atomic<uint32_t>& word, int count) noexcept {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_PRIVATE, count, nullptr, nullptr, 0);
}

thread_local bool in_task = false;
thread_local int32_t current_thread_index = 0;

constexpr std::chrono::microseconds kSpin{60};

class Pool {
 public:
  explicit Pool(int32_t num_threads) : num_threads_(num_threads) {}

  int32_t num_threads() const noexcept { return num_threads_.load(std::memory_order_relaxed); }

  void resize(int32_t num_threads) {
    const std::lock_guard<std::mutex> lock(call_);
    stop();
    num_threads_.store(num_threads, std::memory_order_relaxed);
  }

  // False when another thread's call has the pool.
  bool try_run(int64_t num_tasks, blublas_task task, void* arg, int32_t max_threads) noexcept {
    const std::unique_lock<std::mutex> lock(call_, std::try_to_lock);
    if (!lock.owns_lock()) return false;
    start();
    task_ = task;
    arg_ = arg;
    num_tasks_ = num_tasks;
    max_threads_ = max_threads;
    next_.store(0, std::memory_order_relaxed);
    // Released: a worker that is late with an older epoch joins through state_ alone and must see the job.
    state_.store(kOpen, std::memory_order_release);
    // Ordered before the look at sleepers_: a worker either sees the new epoch or is counted as asleep.
    epoch_.fetch_add(1, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) > 0) futex_wake(epoch_, INT_MAX);
    work(0);
    state_.fetch_and(~kOpen, std::memory_order_acq_rel);
    Backoff backoff;
    while (state_.load(std::memory_order_acquire) != 0) backoff.wait();
    return true;
  }

 private:
  static constexpr uint32_t kOpen = 1U << 31;  // the low bits count the workers that joined

  void work(int32_t thread_index) noexcept {
    in_task = true;
    current_thread_index = thread_index;
    for (;;) {
      const int64_t index = next_.fetch_add(1, std::memory_order_relaxed);
      if (index >= num_tasks_) break;
      task_(arg_, index, thread_index);
    }
    in_task = false;
    current_thread_index = 0;
  }

  bool join() noexcept {
    uint32_t state = state_.load(std::memory_order_acquire);
    while (state & kOpen)
      if (state_.compare_exchange_weak(state, state + 1, std::memory_order_acq_rel)) return true;
    return false;
  }

  void serve(int32_t thread_index) noexcept {
    uint32_t seen = 0;
    for (;;) {
      seen = await_change(seen);
      if (stopping_.load(std::memory_order_acquire)) return;
      if (!join()) continue;
      // A job's limit is read only after joining: until then the fields may change.
      if (thread_index < max_threads_) work(thread_index);
      state_.fetch_sub(1, std::memory_order_acq_rel);
    }
  }

  uint32_t await_change(uint32_t seen) noexcept {
    const auto until = std::chrono::steady_clock::now() + kSpin;
    do {
      for (int turn = 0; turn < 64; ++turn) {
        const uint32_t now = epoch_.load(std::memory_order_acquire);
        if (now != seen) return now;
        pause_cpu();
      }
    } while (std::chrono::steady_clock::now() < until);
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    while (epoch_.load(std::memory_order_seq_cst) == seen) futex_wait(epoch_, seen);
    sleepers_.fetch_sub(1, std::memory_order_relaxed);
    return epoch_.load(std::memory_order_acquire);
  }

  // Starts workers that are missing; fewer than asked for when the system has no more threads to give.
  void start() noexcept {
    const int32_t wanted = num_threads() - 1;
    if (static_cast<int32_t>(workers_.size()) == wanted) return;
    try {
      workers_.reserve(static_cast<size_t>(wanted));
      while (static_cast<int32_t>(workers_.size()) < wanted) {
        const int32_t thread_index = static_cast<int32_t>(workers_.size()) + 1;
        workers_.emplace_back([this, thread_index] { serve(thread_index); });
      }
    } catch (const std::exception&) {
      num_threads_.store(static_cast<int32_t>(workers_.size()) + 1, std::memory_order_relaxed);
    }
  }

  void stop() {
    stopping_.store(true, std::memory_order_release);
    epoch_.fetch_add(1, std::memory_order_seq_cst);
    futex_wake(epoch_, INT_MAX);
    for (std::thread& worker : workers_) worker.join();
    workers_.clear();
    stopping_.store(false, std::memory_order_release);
    epoch_.store(0, std::memory_order_relaxed);
  }

  std::mutex call_;  // held during one parallel call
  std::vector<std::thread> workers_;
  std::atomic<int32_t> num_threads_;

  // The job; written while nobody has joined.
  blublas_task task_ = nullptr;
  void* arg_ = nullptr;
  int64_t num_tasks_ = 0;
  int32_t max_threads_ = 0;

  alignas(64) std::atomic<int64_t> next_{0};
  alignas(64) std::atomic<uint32_t> state_{0};
  alignas(64) std::atomic<uint32_t> epoch_{0};  // grows with every job
  std::atomic<int32_t> sleepers_{0};
  std::atomic<bool> stopping_{false};
};

// Never destroyed: workers may still sleep in it when the process ends. A forked child abandons its parent's pool,
// whose workers it does not have.
std::atomic<Pool*> the_pool{nullptr};
std::atomic<int32_t> inherited_num_threads{0};
std::once_flag fork_handler;

void abandon_pool_in_child() noexcept {
  if (Pool* pool = the_pool.exchange(nullptr)) inherited_num_threads.store(pool->num_threads());
  in_task = false;
  current_thread_index = 0;
}

Pool& pool() {
  Pool* current = the_pool.load(std::memory_order_acquire);
  if (current != nullptr) return *current;
  std::call_once(fork_handler, [] { pthread_atfork(nullptr, nullptr, abandon_pool_in_child); });
  const int32_t inherited = inherited_num_threads.load();
  auto fresh = std::make_unique<Pool>(inherited > 0 ? inherited : physical_cores());
  if (the_pool.compare_exchange_strong(current, fresh.get(), std::memory_order_acq_rel)) return *fresh.release();
  return *current;
}

void run_inline(int64_t num_tasks, blublas_task task, void* arg) noexcept {
  const bool outer = in_task;
  in_task = true;
  for (int64_t index = 0; index < num_tasks; ++index) task(arg, index, current_thread_index);
  in_task = outer;
}

}  // namespace

void Backoff::wait() noexcept {
  if (++turns_ < 500)
    pause_cpu();
  else
    sched_yield();
}

int32_t pool_num_threads() noexcept {
  try {
    return pool().num_threads();
  } catch (...) {
    return 1;
  }
}

void pool_set_num_threads(int32_t num_threads) {
  if (num_threads < 0 || num_threads > kMaxThreads)
    fail_value("[set_num_threads] expected 1 to " + std::to_string(kMaxThreads) +
               " threads, or 0 for the default, got " + std::to_string(num_threads));
  if (in_task)
    fail_value(
        "[set_num_threads] expected a call from outside parallel tasks: change the number of threads between parallel "
        "calls");
  if (num_threads == 0) num_threads = std::min(kMaxThreads, physical_cores());
  pool().resize(num_threads);
}

void pool_run(int64_t num_tasks, blublas_task task, void* arg, int32_t max_threads) noexcept {
  if (num_tasks <= 0) return;
  if (!in_task && num_tasks > 1 && max_threads != 1) {
    const int32_t limit = max_threads > 0 ? max_threads : kMaxThreads;
    try {
      Pool& workers = pool();
      if (workers.num_threads() > 1 && workers.try_run(num_tasks, task, arg, limit)) return;
    } catch (...) {
      // No memory for a pool: the work is done here.
    }
  }
  run_inline(num_tasks, task, arg);
}

bool pool_in_parallel() noexcept { return in_task; }

}  // namespace blublas
