#include "plan/order.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "error.h"

namespace blualloc::plan {
namespace {

constexpr int32_t kMaxLanes = 64;

std::string place(int32_t lane, int64_t index) {
  return "(lane " + std::to_string(lane) + ", index " + std::to_string(index) + ")";
}

void check_place(int32_t lane, int64_t index, int32_t num_lanes, const std::string& what) {
  if (lane < 0 || lane >= num_lanes || index < 0 || index == INT64_MAX) {
    invalid("[plan] expected lanes 0 to " + std::to_string(num_lanes - 1) + " and indices from 0, got " +
            place(lane, index) + " in " + what);
  }
}

double sum(const std::vector<int64_t>& clock) {
  double total = 0.0;
  for (const int64_t index : clock) {
    total += static_cast<double>(index + 1);
  }
  return total;
}

}  // namespace

Order::Order(const blualloc_plan_request& request) : lanes_(0) {
  check_sizes(request);
  lanes_ = static_cast<uint64_t>(request.num_lanes);
  order_events(request);
  condense(request);
}

void Order::check_sizes(const blualloc_plan_request& request) const {
  if (request.num_lanes < 1 || request.num_lanes > kMaxLanes) {
    invalid("[plan] expected 1 to 64 lanes, got " + std::to_string(request.num_lanes));
  }
  if (request.num_buffers > UINT32_MAX) {
    invalid("[plan] expected fewer than 2^32 buffers, got " + std::to_string(request.num_buffers));
  }
  require_not_null(request.use_offsets, "plan", "use_offsets");
  if (request.num_buffers != 0) {
    require_not_null(request.bytes, "plan", "bytes");
  }
  if (request.num_events != 0) {
    require_not_null(request.events, "plan", "events");
  }
  if (request.use_offsets[0] != 0) {
    invalid("[plan] expected use_offsets to start with 0, got " + std::to_string(request.use_offsets[0]));
  }
  for (uint64_t b = 0; b < request.num_buffers; ++b) {
    if (request.use_offsets[b + 1] < request.use_offsets[b]) {
      invalid("[plan] expected ascending use_offsets, got a smaller one after buffer " + std::to_string(b));
    }
  }
  if (request.use_offsets[request.num_buffers] != 0) {
    require_not_null(request.uses, "plan", "uses");
  }
}

Order::Clock Order::clock_before(int32_t lane, int64_t index) const {
  const std::vector<Arrival>& arrivals = arrivals_[static_cast<uint64_t>(lane)];
  const auto after = std::upper_bound(arrivals.begin(), arrivals.end(), index,
                                      [](int64_t i, const Arrival& arrival) { return i < arrival.to_index; });
  Clock clock = after == arrivals.begin() ? Clock(lanes_, -1) : std::prev(after)->clock;
  clock[static_cast<uint64_t>(lane)] = index - 1;
  return clock;
}

// Takes events in an order in which the clock of each one's source is final; what cannot be taken is a cycle.
void Order::order_events(const blualloc_plan_request& request) {
  arrivals_.resize(lanes_);
  for (uint64_t e = 0; e < request.num_events; ++e) {
    const blualloc_plan_event& event = request.events[e];
    check_place(event.from_lane, event.from_index, request.num_lanes, "event " + std::to_string(e));
    check_place(event.to_lane, event.to_index, request.num_lanes, "event " + std::to_string(e));
    if (event.from_lane != event.to_lane) {
      arrivals_[static_cast<uint64_t>(event.to_lane)].push_back(
          {event.to_index, event.from_lane, event.from_index, {}});
    } else if (event.from_index >= event.to_index) {
      invalid("[plan] expected an event within a lane to go forward, got event " + std::to_string(e) + " from " +
              place(event.from_lane, event.from_index) + " to " + place(event.to_lane, event.to_index));
    }
  }
  for (std::vector<Arrival>& arrivals : arrivals_) {
    std::stable_sort(arrivals.begin(), arrivals.end(),
                     [](const Arrival& a, const Arrival& b) { return a.to_index < b.to_index; });
  }
  std::vector<uint64_t> taken(lanes_, 0);
  const auto is_final = [&](int32_t lane, int64_t index) {
    const auto l = static_cast<uint64_t>(lane);
    return taken[l] == arrivals_[l].size() || arrivals_[l][taken[l]].to_index > index;
  };
  bool progress = true;
  while (progress) {
    progress = false;
    for (uint64_t lane = 0; lane < lanes_; ++lane) {
      std::vector<Arrival>& arrivals = arrivals_[lane];
      while (taken[lane] < arrivals.size() &&
             is_final(arrivals[taken[lane]].from_lane, arrivals[taken[lane]].from_index)) {
        Arrival& arrival = arrivals[taken[lane]];
        arrival.clock = clock_before(arrival.from_lane, arrival.from_index);
        arrival.clock[static_cast<uint64_t>(arrival.from_lane)] = arrival.from_index;
        if (taken[lane] > 0) {
          const Clock& previous = arrivals[taken[lane] - 1].clock;
          for (uint64_t l = 0; l < lanes_; ++l) {
            arrival.clock[l] = std::max(arrival.clock[l], previous[l]);
          }
        }
        ++taken[lane];
        progress = true;
      }
    }
  }
  for (uint64_t lane = 0; lane < lanes_; ++lane) {
    if (taken[lane] < arrivals_[lane].size()) {
      const Arrival& stuck = arrivals_[lane][taken[lane]];
      invalid("[plan] expected events without cycles, got one through the event from " +
              place(stuck.from_lane, stuck.from_index) + " to " + place(static_cast<int32_t>(lane), stuck.to_index));
    }
  }
}

void Order::condense(const blualloc_plan_request& request) {
  const uint64_t n = request.num_buffers;
  first_.assign(n, blualloc_use{-1, 0, 0});
  last_use_.assign(n * lanes_, -1);
  known_.assign(n * lanes_, -1);
  start_.assign(n, 0.0);
  end_.assign(n, 0.0);
  for (uint64_t b = 0; b < n; ++b) {
    for (uint64_t u = request.use_offsets[b]; u < request.use_offsets[b + 1]; ++u) {
      const blualloc_use& use = request.uses[u];
      check_place(use.lane, use.index, request.num_lanes, "buffer " + std::to_string(b));
      const Clock clock = clock_before(use.lane, use.index);
      if (u == request.use_offsets[b]) {
        first_[b] = use;
        start_[b] = sum(clock);
        std::copy(clock.begin(), clock.end(), known_.begin() + static_cast<int64_t>(b * lanes_));
      }
      const blualloc_use& first = first_[b];
      const bool is_first_operation = use.lane == first.lane && use.index == first.index;
      if (!is_first_operation && clock[static_cast<uint64_t>(first.lane)] < first.index) {
        invalid("[plan] expected every use of buffer " + std::to_string(b) + " to come after its first write at " +
                place(first.lane, first.index) + ", got a use at " + place(use.lane, use.index) +
                "; add an event between the lanes");
      }
      int64_t& last = last_use_[b * lanes_ + static_cast<uint64_t>(use.lane)];
      last = std::max(last, use.index);
      end_[b] = std::max(end_[b], sum(clock));
    }
  }
}

bool Order::alive_at_first_write(uint64_t a, uint64_t b) const {
  if (before(a, b)) {
    return false;
  }
  const blualloc_use& write = first_[a];
  const int64_t known = known_[b * lanes_ + static_cast<uint64_t>(write.lane)];
  const bool same_operation = write.lane == first_[b].lane && write.index == first_[b].index;
  return same_operation || write.index <= known;
}

}  // namespace blualloc::plan
