// Parallel loops over blublas's thread pool, the only one of the process.
//
// Work is cut by size alone, never by the number of threads, so results are the same for any number of threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>

#include <blublas/blublas.h>

namespace blutensor {

// Calls body(begin, end) for consecutive chunks of `grain` indices that cover [0, n). The first exception is rethrown.
template <class Body>
void parallel_for(int64_t n, int64_t grain, const Body& body) {
  if (n <= 0) return;
  grain = std::max<int64_t>(grain, 1);
  if (n <= grain) return body(int64_t{0}, n);
  struct Context {
    const Body& body;
    int64_t n, grain;
    std::atomic<bool> failed{false};
    std::exception_ptr error;
  } context{body, n, grain, {}, {}};
  blublas_parallel((n + grain - 1) / grain,
                   [](void* arg, int64_t task, int32_t) {
                     auto& c = *static_cast<Context*>(arg);
                     try {
                       c.body(task * c.grain, std::min(c.n, (task + 1) * c.grain));
                     } catch (...) {
                       if (!c.failed.exchange(true)) c.error = std::current_exception();
                     }
                   },
                   &context);
  if (context.error) std::rethrow_exception(context.error);
}

// The same, with the index of the thread for scratch space: body(begin, end, thread), thread below max_threads where that is given, else below
// blublas_max_threads().
template <class Body>
void parallel_for_threads(int64_t n, int64_t grain, const Body& body, int32_t max_threads = 0) {
  if (n <= 0) return;
  grain = std::max<int64_t>(grain, 1);
  struct Context {
    const Body& body;
    int64_t n, grain;
    std::atomic<bool> failed{false};
    std::exception_ptr error;
  } context{body, n, grain, {}, {}};
  blublas_parallel_limited((n + grain - 1) / grain,
                           [](void* arg, int64_t task, int32_t thread) {
                             auto& c = *static_cast<Context*>(arg);
                             try {
                               c.body(task * c.grain, std::min(c.n, (task + 1) * c.grain), thread);
                             } catch (...) {
                               if (!c.failed.exchange(true)) c.error = std::current_exception();
                             }
                           },
                           &context, max_threads);
  if (context.error) std::rethrow_exception(context.error);
}

// Elements per task at which handing out a task costs little beside a memory-bound loop.
inline constexpr int64_t kElementwiseGrain = 16384;

}  // namespace blutensor
