// The planner: several sequences times two ways to choose a gap, then a local search on the best of them.
//
// Packing lifetimes is the dynamic storage allocation problem (NP-hard). Greedy placement by size or by lifetime is
// within a few percent on training steps, whose activations nest like a stack; the local search moves what sticks out
// at the top to an earlier turn, which is what closes most of the rest. All of it depends on the request alone: the
// effort is counted in placements, never in time.
#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "error.h"
#include "plan/order.h"
#include "plan/place.h"
#include "units.h"

namespace blualloc::plan {
namespace {

constexpr uint64_t kDefaultAlignment = 64;
// One placement costs about n^2 / 2 steps of about a nanosecond: this is half a second at most.
constexpr uint64_t kDefaultSteps = 400'000'000;
constexpr uint64_t kMaxDefaultEffort = 1000;
constexpr uint64_t kSeed = 0x626C75;

struct Attempt {
  std::vector<uint32_t> sequence;
  Placement placement;
  Fit fit = Fit::best;
  const char* name = "nothing to place";
};

class Planner {
 public:
  explicit Planner(const Problem& problem) : problem_(problem) { best_.placement.height = UINT64_MAX; }

  void run_heuristics();
  void search(uint64_t effort);
  const Attempt& best() const { return best_; }
  uint64_t num_placements() const { return num_placements_; }

 private:
  template <class Less>
  void try_sequence(const char* name_best, const char* name_first, Less less);
  bool is_optimal() const { return best_.placement.height <= problem_.peak_units(); }

  const Problem& problem_;
  Attempt best_;
  uint64_t num_placements_ = 0;
};

template <class Less>
void Planner::try_sequence(const char* name_best, const char* name_first, Less less) {
  std::vector<uint32_t> sequence(problem_.size());
  std::iota(sequence.begin(), sequence.end(), 0u);
  std::stable_sort(sequence.begin(), sequence.end(), less);
  for (const auto& [fit, name] : {std::pair{Fit::best, name_best}, std::pair{Fit::first, name_first}}) {
    if (is_optimal()) {
      return;
    }
    Placement placement = place(problem_, sequence, fit, best_.placement.height);
    ++num_placements_;
    if (placement.height < best_.placement.height) {
      best_ = {sequence, std::move(placement), fit, name};
    }
  }
}

void Planner::run_heuristics() {
  const Problem& p = problem_;
  const auto length = [&p](uint32_t i) { return p.end(i) - p.start(i); };
  const auto area = [&](uint32_t i) { return (length(i) + 1.0) * static_cast<double>(p.units(i)); };
  try_sequence("size descending, best fit", "size descending, first fit", [&](uint32_t a, uint32_t b) {
    return p.units(a) != p.units(b) ? p.units(a) > p.units(b) : length(a) > length(b);
  });
  try_sequence("lifetime order, best fit", "lifetime order, first fit", [&](uint32_t a, uint32_t b) {
    return p.start(a) != p.start(b) ? p.start(a) < p.start(b) : p.units(a) > p.units(b);
  });
  // A buffer that encloses others in time goes below them, as on a stack: last in, first out.
  try_sequence("nested lifetimes, best fit", "nested lifetimes, first fit", [&](uint32_t a, uint32_t b) {
    return length(a) != length(b) ? length(a) > length(b) : p.units(a) > p.units(b);
  });
  try_sequence("area descending, best fit", "area descending, first fit",
               [&](uint32_t a, uint32_t b) { return area(a) > area(b); });
  try_sequence("end of lifetime, best fit", "end of lifetime, first fit", [&](uint32_t a, uint32_t b) {
    return p.end(a) != p.end(b) ? p.end(a) > p.end(b) : p.units(a) > p.units(b);
  });
}

void Planner::search(uint64_t effort) {
  Random random(kSeed);
  Attempt current = best_;
  for (uint64_t i = 0; i < effort && !is_optimal(); ++i) {
    std::vector<uint32_t> at_top;  // turns of the buffers that reach the top
    for (uint32_t turn = 0; turn < current.sequence.size(); ++turn) {
      const uint32_t index = current.sequence[turn];
      if (current.placement.offsets[index] + problem_.units(index) == current.placement.height) {
        at_top.push_back(turn);
      }
    }
    const uint32_t turn = at_top[random.below(at_top.size())];
    // The top one, or what lies below it, takes an earlier turn.
    const uint32_t from = random.below(4) != 0 ? turn : static_cast<uint32_t>(random.below(turn + 1ull));
    const auto to = static_cast<uint32_t>(random.below(from + 1ull));
    Attempt next{current.sequence, {}, random.below(8) != 0 ? current.fit : Fit::first, "local search"};
    std::rotate(next.sequence.begin() + to, next.sequence.begin() + from, next.sequence.begin() + from + 1);
    // Sideways moves are taken too, so one unit above the present height is where to give up.
    next.placement = place(problem_, next.sequence, next.fit, current.placement.height + 1);
    ++num_placements_;
    if (next.placement.height <= current.placement.height) {
      current = std::move(next);
      if (current.placement.height < best_.placement.height) {
        best_ = current;
      }
    }
  }
}

void make_plan(const blualloc_plan_request& request, blualloc_plan_result& result) {
  const uint64_t alignment = request.alignment != 0 ? request.alignment : kDefaultAlignment;
  if (!is_power_of_two(alignment) || alignment > (1ull << 40)) {
    invalid("[plan] expected alignment to be a power of two of at most 2^40, got " + std::to_string(alignment));
  }
  if (request.num_buffers != 0) {
    require_not_null(result.offsets, "plan", "result->offsets");
  }
  const Order order(request);
  const Problem problem(request, order, alignment);
  result.arena_bytes = 0;
  result.peak_live_bytes = problem.peak_bytes();
  result.total_bytes = 0;
  result.num_placements = 0;
  result.heuristic = "nothing to place";
  for (uint64_t b = 0; b < request.num_buffers; ++b) {
    result.offsets[b] = 0;
    result.total_bytes += request.bytes[b];
  }
  if (problem.size() == 0) {
    return;
  }
  Planner planner(problem);
  planner.run_heuristics();
  const uint64_t pairs = problem.size() * problem.size();
  planner.search(request.search_effort != 0 ? request.search_effort
                                            : std::min(kMaxDefaultEffort, kDefaultSteps / pairs));
  const Attempt& best = planner.best();
  for (uint64_t i = 0; i < problem.size(); ++i) {
    result.offsets[problem.buffer(i)] = best.placement.offsets[i] * alignment;
  }
  result.arena_bytes = best.placement.height * alignment;
  result.num_placements = planner.num_placements();
  result.heuristic = best.name;
}

}  // namespace
}  // namespace blualloc::plan

int32_t blualloc_plan(const blualloc_plan_request* request, blualloc_plan_result* result) {
  return blualloc::guard([&] {
    const blualloc_plan_request full = blualloc::read_sized(request, "plan");
    blualloc_plan_result out = blualloc::read_sized(result, "plan");
    blualloc::plan::make_plan(full, out);
    blualloc::write_sized(result, out, "plan");
  });
}
