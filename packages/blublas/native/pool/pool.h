// The thread pool of the process.
//
// One call runs at a time. The caller posts a job and works on it; workers join while it is open and leave when no task
// is left; the caller closes it and waits for those who joined. A worker that wakes late finds the job closed and
// delays nobody, which matters when the machine is shared. Tasks are handed out by one atomic counter, in order of
// index.
#pragma once

#include <cstdint>

#include "blublas/blublas.h"

namespace blublas {

constexpr int32_t kMaxThreads = 256;

int32_t pool_num_threads() noexcept;
void pool_set_num_threads(int32_t num_threads);  // throws Error
void pool_run(int64_t num_tasks, blublas_task task, void* arg, int32_t max_threads) noexcept;
bool pool_in_parallel() noexcept;

// One polite turn of a waiting loop: a pause instruction at first, the processor given away after about 20
// microseconds.
class Backoff {
 public:
  void wait() noexcept;

 private:
  int turns_ = 0;
};

}  // namespace blublas
