#include "ops/elementwise/iteration.h"

#include <cstdlib>

namespace blutensor {

bool Iteration::linear(int operand) const {
  int64_t expected = 1;
  for (size_t axis = 0; axis < static_cast<size_t>(rank); ++axis) {
    if (extent[axis] != 1 && stride[static_cast<size_t>(operand)][axis] != expected) return false;
    expected *= extent[axis];
  }
  return true;
}

bool Iteration::scalar(int operand) const {
  for (size_t axis = 0; axis < static_cast<size_t>(rank); ++axis)
    if (extent[axis] != 1 && stride[static_cast<size_t>(operand)][axis] != 0) return false;
  return true;
}

Iteration make_iteration(const Shape& shape, std::span<const View* const> operands) {
  Iteration it;
  it.num_operands = static_cast<int>(operands.size());
  it.numel = num_elements(shape);
  std::array<Strides, kMaxOperands> strides;
  for (size_t k = 0; k < operands.size(); ++k)
    strides[k] = broadcast_strides(operands[k]->shape, operands[k]->strides, shape);

  // Axes that matter, innermost first, by operand 0's strides (insertion sort: stable, and sorted already as a rule).
  std::array<int, kMaxRank> order{};
  int rank = 0;
  for (int axis = shape.size() - 1; axis >= 0; --axis) {
    if (shape[axis] == 1) continue;
    int at = rank++;
    while (at > 0 && std::llabs(strides[0][order[static_cast<size_t>(at - 1)]]) > std::llabs(strides[0][axis])) {
      order[static_cast<size_t>(at)] = order[static_cast<size_t>(at - 1)];
      --at;
    }
    order[static_cast<size_t>(at)] = axis;
  }

  for (int i = 0; i < rank; ++i) {
    const int axis = order[static_cast<size_t>(i)];
    bool merges = it.rank > 0;
    const size_t last = static_cast<size_t>(it.rank - 1);
    for (size_t k = 0; merges && k < operands.size(); ++k)
      merges = strides[k][axis] == it.stride[k][last] * it.extent[last];
    if (merges) {
      it.extent[last] *= shape[axis];
      continue;
    }
    const auto next = static_cast<size_t>(it.rank++);
    it.extent[next] = shape[axis];
    for (size_t k = 0; k < operands.size(); ++k) it.stride[k][next] = strides[k][axis];
  }
  if (it.rank == 0) {  // one element
    it.rank = 1;
    it.extent[0] = 1;
  }
  return it;
}

}  // namespace blutensor
