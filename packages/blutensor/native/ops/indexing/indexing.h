// Geometry of indexing by arrays of integers, for the launchers of all devices.
//
// k indices take the place of k neighbouring axes, from `axis` on: x [O..., N_1 .. N_k, I...] and indices that broadcast
// to a shape B give [O..., B..., I...]. Inside, these are O rows of B places of I elements.
#pragma once

#include "ops/operator.h"

namespace blutensor {

// Axes [begin, end) of a shape or of strides.
inline Dims axes_of(const Dims& dims, int begin, int end) {
  return Dims(std::span<const int64_t>(dims.begin() + begin, dims.begin() + end));
}

inline Shape joined(const Shape& a, const Shape& b, const Shape& c) {
  Shape shape = a;
  for (const Shape* rest : {&b, &c})
    for (const int64_t n : *rest) shape.push_back(n);
  return shape;
}

// The parts of a tensor that is indexed, as views without memory of their own.
struct IndexedParts {
  View outer, indexed, inner;
};
inline IndexedParts indexed_parts(const View& x, int axis, int num_indices) {
  const auto part = [&](int begin, int end) {
    View view = x;
    view.shape = axes_of(x.shape, begin, end);
    view.strides = axes_of(x.strides, begin, end);
    return view;
  };
  return {part(0, axis), part(axis, axis + num_indices), part(axis + num_indices, x.rank())};
}

// The shape that all indices broadcast to.
template <class Operands>
Shape index_shape(const Operands& indices, const char* op) {
  Shape shape;
  for (const auto& index : indices) {
    if constexpr (requires { index.shape(); })
      shape = broadcast_shapes(shape, index.shape(), op);
    else
      shape = broadcast_shapes(shape, index.shape, op);
  }
  return shape;
}

// An index as all positions of B see it.
inline View broadcast_index(const View& index, const Shape& shape) {
  View result = index;
  result.strides = broadcast_strides(index.shape, index.strides, shape);
  result.shape = shape;
  return result;
}

}  // namespace blutensor
