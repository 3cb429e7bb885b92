// Placing buffers one after the other, each into a gap between those it conflicts with.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/order.h"

namespace blualloc::plan {

enum class Fit { first, best };

// The buffers that need room, their sizes in units of the alignment, and which of them conflict.
class Problem {
 public:
  Problem(const blualloc_plan_request& request, const Order& order, uint64_t alignment);

  uint64_t size() const { return buffers_.size(); }
  uint64_t buffer(uint64_t i) const { return buffers_[i]; }  // index in the request
  uint64_t units(uint64_t i) const { return units_[i]; }
  double start(uint64_t i) const { return order_.start(buffers_[i]); }
  double end(uint64_t i) const { return order_.end(buffers_[i]); }
  bool conflict(uint64_t i, uint64_t j) const {
    return rows_.empty() ? order_.conflict(buffers_[i], buffers_[j])
                         : (rows_[i * words_ + j / 64] >> (j % 64) & 1) != 0;
  }
  // Lower bounds for any plan: in bytes as asked for, and in units.
  uint64_t peak_bytes() const { return peak_bytes_; }
  uint64_t peak_units() const { return peak_units_; }

 private:
  void find_peaks(const blualloc_plan_request& request);

  const Order& order_;
  std::vector<uint64_t> buffers_;
  std::vector<uint64_t> units_;
  uint64_t words_ = 0;
  std::vector<uint64_t> rows_;  // bit j of row i: they conflict; empty when it would be too large
  uint64_t peak_bytes_ = 0;
  uint64_t peak_units_ = 0;
};

struct Placement {
  std::vector<uint64_t> offsets;  // in units, by index in the problem
  uint64_t height = 0;            // units
};

// Places in the given sequence (a permutation of the problem's buffers). Gives up, with height = limit, as soon as the
// height reaches `limit`.
Placement place(const Problem& problem, const std::vector<uint32_t>& sequence, Fit fit, uint64_t limit);

}  // namespace blualloc::plan
