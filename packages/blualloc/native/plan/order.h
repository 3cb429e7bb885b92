// What happens before what: vector clocks over lanes and events, condensed to two vectors per buffer.
#pragma once

#include <blualloc/blualloc.h>

#include <cstdint>
#include <vector>

namespace blualloc::plan {

// Checks the request and condenses its order.
//
// For each buffer b and lane l:
//   last_use(b, l)  the greatest index of a use of b on lane l, -1 without one;
//   known(b, l)     the greatest index on lane l that is complete before b's first write starts, -1 without one.
// Every use of a happens before the first write of b exactly if last_use(a, l) <= known(b, l) for all l: within a
// lane the last use covers the earlier ones.
class Order {
 public:
  explicit Order(const blualloc_plan_request& request);

  uint64_t num_buffers() const { return static_cast<uint64_t>(first_.size()); }
  bool is_used(uint64_t b) const { return first_[b].lane >= 0; }

  bool before(uint64_t a, uint64_t b) const {
    const int64_t* last = &last_use_[a * lanes_];
    const int64_t* known = &known_[b * lanes_];
    for (uint64_t lane = 0; lane < lanes_; ++lane) {
      if (last[lane] > known[lane]) {
        return false;
      }
    }
    return true;
  }
  // Two used buffers that may exist at the same time.
  bool conflict(uint64_t a, uint64_t b) const { return !before(a, b) && !before(b, a); }

  // True when a exists at the moment b is first written: a's first write is at or before b's, and not all of a's uses
  // are over. All buffers alive at one such moment conflict with each other, so their sum bounds any plan from below.
  bool alive_at_first_write(uint64_t a, uint64_t b) const;

  // Numbers that respect the order: when x happens before y, time(x) < time(y).
  double start(uint64_t b) const { return start_[b]; }
  double end(uint64_t b) const { return end_[b]; }

 private:
  using Clock = std::vector<int64_t>;  // per lane: the greatest index known to be complete
  struct Arrival {                     // an event as its target lane sees it
    int64_t to_index;
    int32_t from_lane;
    int64_t from_index;
    Clock clock;  // of the lane from to_index on, this and all earlier arrivals included
  };

  void check_sizes(const blualloc_plan_request& request) const;
  void order_events(const blualloc_plan_request& request);
  void condense(const blualloc_plan_request& request);
  // What is complete before the operation starts; its own lane's entry is index - 1.
  Clock clock_before(int32_t lane, int64_t index) const;

  uint64_t lanes_;
  std::vector<std::vector<Arrival>> arrivals_;  // per lane, ascending to_index
  std::vector<blualloc_use> first_;             // lane -1: no uses
  std::vector<int64_t> last_use_;               // [num_buffers, lanes]
  std::vector<int64_t> known_;                  // [num_buffers, lanes]
  std::vector<double> start_;
  std::vector<double> end_;
};

}  // namespace blualloc::plan
