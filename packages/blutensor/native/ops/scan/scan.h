// Lines of a tensor along one axis: what scans and sorts walk.
#pragma once

#include "ops/operator.h"

namespace blutensor {

struct Lines {
  int64_t count = 0, length = 0;
  int axis = 0;

  Lines(const Shape& shape, int64_t requested, const char* op) : axis(normalize_axis(requested, shape.size(), op)) {
    length = shape[axis];
    count = length == 0 ? 0 : num_elements(shape) / length;
  }
  // Offset of the first element of a line, in elements.
  int64_t base(const View& x, int64_t line) const {
    int64_t offset = 0;
    for (int a = x.rank() - 1; a >= 0; --a) {
      if (a == axis) continue;
      offset += line % x.shape[a] * x.strides[a];
      line /= x.shape[a];
    }
    return offset;
  }
};

}  // namespace blutensor
