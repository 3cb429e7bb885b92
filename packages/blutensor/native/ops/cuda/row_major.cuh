// Walking operands in row-major order of a shape, whatever their strides.
#pragma once

#include <array>

#include "ops/cuda/vector.cuh"

namespace blutensor::cuda {

// Positions counted in row-major order of `shape`, in operands of these strides.
template <int K>
StridedIndex<K> row_major_index(const Shape& shape, const std::array<Strides, static_cast<size_t>(K)>& strides) {
  Iteration it;
  it.num_operands = K;
  it.rank = std::max(shape.size(), 1);
  it.extent[0] = 1;
  for (int axis = 0; axis < shape.size(); ++axis) {
    const auto from = static_cast<size_t>(shape.size() - 1 - axis), to = static_cast<size_t>(axis);
    it.extent[to] = shape[static_cast<int>(from)];
    for (size_t k = 0; k < static_cast<size_t>(K); ++k) it.stride[k][to] = strides[k][static_cast<int>(from)];
  }
  return StridedIndex<K>(it);
}

}  // namespace blutensor::cuda
