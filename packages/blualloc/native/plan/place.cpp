#include "plan/place.h"

#include <algorithm>
#include <string>

#include "error.h"

namespace blualloc::plan {
namespace {

// 32 MiB of conflict bits; beyond that, conflicts are computed each time.
constexpr uint64_t kMaxMatrixBuffers = 16384;

}  // namespace

Problem::Problem(const blualloc_plan_request& request, const Order& order, uint64_t alignment) : order_(order) {
  uint64_t total = 0;
  for (uint64_t b = 0; b < order.num_buffers(); ++b) {
    const uint64_t bytes = request.bytes[b];
    if (bytes > UINT64_MAX / 2 - total - alignment) {
      invalid("[plan] expected buffers of less than 2^63 bytes together, got more at buffer " + std::to_string(b) +
              " of " + std::to_string(bytes) + " bytes");
    }
    total += bytes + alignment;
    if (bytes != 0 && order.is_used(b)) {
      buffers_.push_back(b);
      units_.push_back((bytes + alignment - 1) / alignment);
    }
  }
  const uint64_t n = buffers_.size();
  if (n <= kMaxMatrixBuffers) {
    words_ = (n + 63) / 64;
    rows_.assign(n * words_, 0);
    for (uint64_t i = 0; i < n; ++i) {
      for (uint64_t j = 0; j < i; ++j) {
        if (order.conflict(buffers_[i], buffers_[j])) {
          rows_[i * words_ + j / 64] |= 1ull << (j % 64);
          rows_[j * words_ + i / 64] |= 1ull << (i % 64);
        }
      }
    }
  }
  find_peaks(request);
}

void Problem::find_peaks(const blualloc_plan_request& request) {
  for (uint64_t i = 0; i < size(); ++i) {
    uint64_t bytes = 0;
    uint64_t units = 0;
    for (uint64_t j = 0; j < size(); ++j) {
      if (order_.alive_at_first_write(buffers_[j], buffers_[i])) {
        bytes += request.bytes[buffers_[j]];
        units += units_[j];
      }
    }
    peak_bytes_ = std::max(peak_bytes_, bytes);
    peak_units_ = std::max(peak_units_, units);
  }
}

Placement place(const Problem& problem, const std::vector<uint32_t>& sequence, Fit fit, uint64_t limit) {
  struct Placed {
    uint64_t offset;
    uint64_t end;
    uint32_t index;
  };
  Placement result;
  result.offsets.assign(problem.size(), 0);
  std::vector<Placed> placed;  // ascending offset
  placed.reserve(problem.size());
  for (const uint32_t index : sequence) {
    const uint64_t units = problem.units(index);
    uint64_t cursor = 0;  // end of the conflicting buffers so far
    uint64_t chosen = UINT64_MAX;
    uint64_t chosen_gap = UINT64_MAX;
    for (const Placed& other : placed) {
      if (!problem.conflict(index, other.index)) {
        continue;
      }
      if (other.offset > cursor) {
        const uint64_t gap = other.offset - cursor;
        if (gap >= units && gap < chosen_gap) {
          chosen = cursor;
          chosen_gap = gap;
          if (fit == Fit::first || gap == units) {
            break;
          }
        }
      }
      cursor = std::max(cursor, other.end);
    }
    if (chosen == UINT64_MAX) {
      chosen = cursor;
    }
    result.offsets[index] = chosen;
    result.height = std::max(result.height, chosen + units);
    if (result.height >= limit) {
      result.height = limit;
      return result;
    }
    const Placed item{chosen, chosen + units, index};
    placed.insert(std::upper_bound(placed.begin(), placed.end(), item,
                                   [](const Placed& a, const Placed& b) { return a.offset < b.offset; }),
                  item);
  }
  return result;
}

}  // namespace blualloc::plan
