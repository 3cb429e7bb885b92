// Walking several strided operands over one shape.
//
// make_iteration() drops axes of size 1, orders the rest by the first operand's strides (innermost first) and merges
// neighbours that every operand walks as one. What is left is a short nest whose inner loop is as long as it can be;
// positions in it are numbered 0 ... numel-1, so that work is cut by position alone.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "tensor/tensor.h"

namespace blutensor {

inline constexpr int kMaxOperands = 4;

struct Iteration {
  int num_operands = 0;
  int rank = 0;  // at least 1; axis 0 is the innermost
  int64_t numel = 0;
  std::array<int64_t, kMaxRank> extent{};
  std::array<std::array<int64_t, kMaxRank>, kMaxOperands> stride{};  // [operand][axis], in elements

  // The operand is read in order, without gaps, over the whole shape.
  bool linear(int operand) const;
  // One element serves the whole shape.
  bool scalar(int operand) const;
};

// Every operand is broadcast to `shape`; operand 0 decides the order of the axes.
Iteration make_iteration(const Shape& shape, std::span<const View* const> operands);

// Calls body(length, offsets, position) for the pieces of inner runs that cover positions [begin, end); offsets[k] is
// that of operand k's first element, in elements.
template <class Body>
void for_each_run(const Iteration& it, int64_t begin, int64_t end, const Body& body) {
  if (begin >= end) return;
  std::array<int64_t, kMaxRank> index{};
  std::array<int64_t, kMaxOperands> offset{};
  int64_t rest = begin;
  for (int axis = 0; axis < it.rank; ++axis) {
    const auto a = static_cast<size_t>(axis);
    index[a] = rest % it.extent[a];
    rest /= it.extent[a];
    for (int k = 0; k < it.num_operands; ++k)
      offset[static_cast<size_t>(k)] += index[a] * it.stride[static_cast<size_t>(k)][a];
  }
  for (int64_t position = begin;;) {
    const int64_t length = std::min(it.extent[0] - index[0], end - position);
    body(length, offset, position);
    position += length;
    if (position >= end) return;
    // length went to the end of the run: back to its start and one step along the next axes
    for (int k = 0; k < it.num_operands; ++k)
      offset[static_cast<size_t>(k)] -= index[0] * it.stride[static_cast<size_t>(k)][0];
    index[0] = 0;
    for (size_t a = 1; a < static_cast<size_t>(it.rank); ++a) {
      const bool wraps = ++index[a] == it.extent[a];
      for (int k = 0; k < it.num_operands; ++k)
        offset[static_cast<size_t>(k)] += it.stride[static_cast<size_t>(k)][a] * (wraps ? 1 - it.extent[a] : 1);
      if (!wraps) break;
      index[a] = 0;
    }
  }
}

}  // namespace blutensor
