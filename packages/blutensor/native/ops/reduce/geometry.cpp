#include "ops/reduce/geometry.h"

#include <cstdlib>

namespace blutensor {

namespace {

// Adds the next axis outwards: merged into the last one where one stride serves both.
void append(Iteration& it, int64_t extent, int64_t stride) {
  if (extent == 1) return;
  if (it.rank > 0) {
    const auto last = static_cast<size_t>(it.rank - 1);
    if (stride == it.stride[0][last] * it.extent[last]) {
      it.extent[last] *= extent;
      return;
    }
  }
  const auto next = static_cast<size_t>(it.rank++);
  it.extent[next] = extent;
  it.stride[0][next] = stride;
}

void finish(Iteration& it, int64_t numel) {
  it.num_operands = 1;
  it.numel = numel;
  if (it.rank > 0) return;
  it.rank = 1;
  it.extent[0] = 1;
}

}  // namespace

int64_t ReduceGeometry::base(int64_t output) const {
  int64_t offset = 0;
  for (size_t a = 0; a < static_cast<size_t>(kept.rank) && output != 0; ++a) {
    offset += output % kept.extent[a] * kept.stride[0][a];
    output /= kept.extent[a];
  }
  return offset;
}

ReduceGeometry make_geometry(const Shape& shape, const Strides& strides, unsigned axes, ReduceOrder order) {
  ReduceGeometry g;
  std::array<int, kMaxRank> reduced{};
  size_t count = 0;
  for (int axis = shape.size() - 1; axis >= 0; --axis) {
    if (!(axes >> axis & 1u)) {
      g.num_outputs *= shape[axis];
      append(g.kept, shape[axis], strides[axis]);
      continue;
    }
    g.length *= shape[axis];
    size_t at = count++;
    while (order == ReduceOrder::by_stride && at > 0 &&
           std::llabs(strides[reduced[at - 1]]) > std::llabs(strides[axis])) {
      reduced[at] = reduced[at - 1];
      --at;
    }
    reduced[at] = axis;
  }
  for (size_t i = 0; i < count; ++i) append(g.reduced, shape[reduced[i]], strides[reduced[i]]);
  finish(g.kept, g.num_outputs);
  finish(g.reduced, g.length);
  return g;
}

unsigned reduced_axes(const Attr& axes, int rank, const char* op) {
  if (axes.all_axes()) return (1u << rank) - 1u;
  unsigned bits = 0;
  for (int64_t requested : axes.ints) {
    const int axis = normalize_axis(requested, rank, op);
    require(!(bits >> axis & 1u), "[", op, "] expected every axis once, got ", axes.ints);
    bits |= 1u << axis;
  }
  return bits;
}

Shape reduced_shape(const Shape& shape, unsigned axes, bool keepdims) {
  Shape result;
  for (int axis = 0; axis < shape.size(); ++axis) {
    if (!(axes >> axis & 1u))
      result.push_back(shape[axis]);
    else if (keepdims)
      result.push_back(1);
  }
  return result;
}

unsigned broadcast_axes(const Shape& from, const Shape& to) {
  const int added = from.size() - to.size();
  unsigned axes = 0;
  for (int axis = 0; axis < from.size(); ++axis)
    if (axis < added || (to[axis - added] == 1 && from[axis] != 1)) axes |= 1u << axis;
  return axes;
}

}  // namespace blutensor
