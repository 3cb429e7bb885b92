#include "ops/views/views.h"

namespace blutensor {

Shape resolve_shape(const Shape& from, const Shape& requested) {
  const int64_t total = num_elements(from);
  Shape shape = requested;
  int unknown = -1;
  int64_t known = 1;
  for (int i = 0; i < shape.size(); ++i) {
    if (shape[i] == -1) {
      require(unknown < 0, "[reshape] expected at most one -1, got ", requested);
      unknown = i;
    } else {
      require(shape[i] >= 0, "[reshape] expected sizes of at least 0, or one -1, got ", requested);
      require(!__builtin_mul_overflow(known, shape[i], &known), "[reshape] expected ", total, " elements, got shape ",
              requested);
    }
  }
  if (unknown >= 0) {
    require(known > 0 && total % known == 0, "[reshape] expected a shape of ", total, " elements (", from, "), got ",
            requested);
    shape[unknown] = total / known;
    return shape;
  }
  require(known == total, "[reshape] expected a shape of ", total, " elements (", from, "), got ", requested);
  return shape;
}

std::optional<Strides> reshape_strides(const Shape& from, const Strides& strides, const Shape& shape) {
  if (num_elements(from) == 0 || is_contiguous(from, strides)) return contiguous_strides(shape);
  // Axes of the old shape are walked in groups within which one stride serves; every group must be a whole group of
  // new axes.
  Strides result = Dims::filled(shape.size(), 1);
  int next = shape.size() - 1;
  for (int axis = from.size() - 1; axis >= 0;) {
    if (from[axis] == 1) {
      --axis;
      continue;
    }
    const int64_t inner = strides[axis];
    int64_t group = from[axis];
    int outer = axis - 1;
    for (; outer >= 0 && (from[outer] == 1 || strides[outer] == inner * group); --outer) group *= from[outer];
    int64_t covered = 1;
    while (next >= 0 && covered < group) {
      result[next] = inner * covered;
      covered *= shape[next--];
    }
    if (covered != group) return std::nullopt;
    axis = outer;
  }
  for (; next >= 0; --next) result[next] = 1;  // axes of size 1
  return result;
}

bool broadcasts_to(const Shape& from, const Shape& to) {
  const int added = to.size() - from.size();
  for (int i = 0; i < from.size(); ++i)
    if (added < 0 || (from[i] != 1 && from[i] != to[added + i])) return false;
  return true;
}

}  // namespace blutensor
