// The training loop on a CUDA device: the host runs at most two steps ahead and never waits for the step it has started.
//
// Feeds go to the device from pinned memory, metrics come back to it, each as one launch on the compute stream; the two
// steps that may be under way have a row of it each. Before the host reuses a row it waits for that step and takes its
// metrics. Batches come through a Staging per program: while a step runs, the source fills the next one.
#include <array>
#include <chrono>
#include <exception>

#include "runtime/copy_ranges.h"
#include "runtime/run_loop.h"
#include "runtime/staging.h"
#include "tensor/device.h"

namespace blutensor {

namespace {

using Clock = std::chrono::steady_clock;
double seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

// Adds the time of a block to a total.
class Stopwatch {
 public:
  explicit Stopwatch(double& total) : total_(total) {}
  ~Stopwatch() { total_ += seconds(Clock::now() - start_); }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  double& total_;
  Clock::time_point start_ = Clock::now();
};

constexpr int64_t kAhead = 2;   // steps under way
constexpr size_t kElement = 8;  // room for a scalar of any dtype
constexpr auto kAskEvery = std::chrono::milliseconds(50);

class DeviceLoop {
 public:
  DeviceLoop(RunLoop& loop, Device device)
      : loop_(loop), device_(device), row_bytes_((loop.feeds.size() + loop.metrics.size()) * kElement) {
    if (row_bytes_) rows_ = static_cast<char*>(allocate_pinned(kAhead * row_bytes_));
    for (int64_t step = 0; step < kAhead; ++step) {
      Row& r = row(step);
      r.values = rows_ + static_cast<size_t>(step) * row_bytes_;
      char* value = r.values;
      for (const Tensor& t : loop.feeds) {
        r.feeds.push_back({t.data(), value, dtype_size(t.dtype())});
        value += kElement;
      }
      for (const Tensor& t : loop.metrics) {
        r.metrics.push_back({value, t.data(), dtype_size(t.dtype())});
        value += kElement;
      }
    }
  }
  ~DeviceLoop() { free_pinned(rows_); }
  DeviceLoop(const DeviceLoop&) = delete;
  DeviceLoop& operator=(const DeviceLoop&) = delete;

  void run() {
    const auto begin = Clock::now();
    const auto note_host_time = [&] { loop_.host_seconds = seconds(Clock::now() - begin) - waiting_ - filling_; };
    try {
      run_steps(begin);
      finish_steps(started_);
    } catch (...) {
      const std::exception_ptr failure = std::current_exception();
      try {
        finish_steps(started_);
      } catch (...) {  // the first failure is the one to tell
      }
      note_host_time();
      std::rethrow_exception(failure);
    }
    note_host_time();
    check_reports();
  }

 private:
  // What goes between host and device in a step: values in pinned memory, feeds before metrics.
  struct Row {
    char* values = nullptr;
    std::vector<CopyRange> feeds, metrics;
    Event done;
  };

  // One run of a program in a step.
  struct Place {
    size_t phase = 0;
    int64_t repeat = 0;
  };

  void run_steps(Clock::time_point begin) {
    auto asked = begin;
    for (bool more = loop_.steps > 0; more;) {
      finish_steps(started_ - kAhead + 1);
      feed();
      Place at = first_place();
      while (at.phase < loop_.phases.size()) {
        run_program(*loop_.phases[at.phase].program);
        at = next_place(at);
        if (at.phase < loop_.phases.size()) fill_ahead(*loop_.phases[at.phase].program);
      }
      collect();
      const auto now = Clock::now();
      more = started_ < loop_.steps && !(loop_.slice_seconds > 0 && seconds(now - begin) >= loop_.slice_seconds);
      // A batch that is taken from the source is always trained on, so none is taken for a step that may not follow.
      if (loop_.interrupted && (!more || now - asked >= kAskEvery)) {
        asked = now;
        if (loop_.interrupted()) {
          finish_steps(started_);
          fail(Status::interrupted, "[run] interrupted after ", loop_.steps_done, " of ", loop_.steps, " steps");
        }
      }
      if (const Place first = first_place(); more && first.phase < loop_.phases.size())
        fill_ahead(*loop_.phases[first.phase].program);
    }
  }

  Place first_place() const { return skip_empty({0, 0}); }
  Place next_place(Place at) const { return skip_empty({at.phase, at.repeat + 1}); }
  Place skip_empty(Place at) const {
    while (at.phase < loop_.phases.size() && at.repeat >= loop_.phases[at.phase].repeats) at = {at.phase + 1, 0};
    return at;
  }

  void run_program(BoundProgram& program) {
    if (loop_.source) {
      Staging& staging = program.staging();
      if (!staging.filled()) fill(staging);
      if (failure_) std::rethrow_exception(failure_);
      staging.deliver();
    }
    program.run();
    if (loop_.source && !loop_.prefetch) wait_for_device();
  }

  void fill_ahead(BoundProgram& program) {
    if (loop_.source && loop_.prefetch) fill(program.staging());
  }

  // A failure is told when the batch is needed: the step that runs is complete by then.
  void fill(Staging& staging) {
    const std::vector<void*>* slots = nullptr;
    {
      const Stopwatch watch(waiting_);
      slots = &staging.begin_fill();
    }
    try {
      const Stopwatch watch(filling_);
      loop_.source(slots->data(), static_cast<int32_t>(slots->size()));
    } catch (...) {
      failure_ = std::current_exception();
      return;
    }
    staging.start_copy();
  }

  void wait_for_device() {
    const Stopwatch watch(waiting_);
    synchronize(device_);
  }

  Row& row(int64_t step) { return ring_[static_cast<size_t>(step % kAhead)]; }

  void feed() {
    const Row& r = row(started_);
    for (size_t i = 0; i < loop_.feeds.size(); ++i) {
      const double value = loop_.feed_values[static_cast<size_t>(started_) * loop_.feeds.size() + i];
      write_element(loop_.feeds[i].dtype(), r.values + i * kElement, value);
    }
    copy_ranges(r.feeds, compute_stream(device_));
    for (const Tensor& t : loop_.feeds) t.storage().mark_written("run feed");
  }

  // The step is started; its metrics are on their way.
  void collect() {
    Row& r = row(started_);
    copy_ranges(r.metrics, compute_stream(device_));
    r.done.record(compute_stream(device_));
    ++started_;
  }

  // Waits until `count` steps are complete.
  void finish_steps(int64_t count) {
    for (; loop_.steps_done < count; ++loop_.steps_done) {
      const int64_t step = loop_.steps_done;
      {
        const Stopwatch watch(waiting_);
        row(step).done.wait();
      }
      const char* from = row(step).values + loop_.feeds.size() * kElement;
      for (size_t i = 0; i < loop_.metrics.size(); ++i)
        loop_.metric_values[static_cast<size_t>(step) * loop_.metrics.size() + i] =
            read_element(loop_.metrics[i].dtype(), from + i * kElement);
    }
  }

  RunLoop& loop_;
  Device device_;
  size_t row_bytes_;      // feeds, then metrics
  char* rows_ = nullptr;  // pinned [kAhead, row_bytes_]
  std::array<Row, kAhead> ring_;
  int64_t started_ = 0;
  double waiting_ = 0, filling_ = 0;
  std::exception_ptr failure_;  // of the source
};

}  // namespace

void RunLoop::run_on_device(Device device) {
  use_device(device);
  DeviceLoop(*this, device).run();
}

}  // namespace blutensor
