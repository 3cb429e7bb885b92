// Locks in a process that forks.
//
// The child of a fork() has one thread and a copy of every lock as it was, so a lock that another thread held stays taken for
// ever. Locks over a few instructions are made free in the child by taking them around fork() (ForkMutex). Locks over whole
// runs and user callbacks cannot be waited for, since their holders may wait for what the forking thread holds (the
// interpreter's lock); a ForkLock notices instead that its holder was left behind, and says so.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

namespace blutensor {

// A process-wide mutex that is free in a child. One for each place of the list, in whose order several are taken at a time.
class ForkMutex {
 public:
  enum class Place { operators, op_hooks, storage_watch, graph_arena, names };
  explicit ForkMutex(Place place);
  ForkMutex(const ForkMutex&) = delete;
  ForkMutex& operator=(const ForkMutex&) = delete;
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  std::mutex mutex_;
};

// A lock of one word that may be held while user callbacks run. It throws Status::runtime where waiting would be for ever: in a
// child, when a thread of the parent held it (what it guards is half done), and when this thread holds it already.
class ForkLock {
 public:
  // `what` is guarded, for the message: "the gradient of a tensor".
  explicit ForkLock(const char* what) : what_(what) {}
  ForkLock(const ForkLock&) = delete;
  ForkLock& operator=(const ForkLock&) = delete;
  void lock();
  bool try_lock() noexcept;
  void unlock() noexcept;
  // Whether a thread of the parent holds it.
  bool left_behind() const noexcept;

 private:
  const char* what_;
  std::atomic<uint64_t> holder_{0};  // the number of forks before the holder's process, then of the thread; 0: nobody
};

}  // namespace blutensor
