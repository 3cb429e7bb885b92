// Where the rows of a strided tensor start: a row is the elements along one axis, and rows are numbered in row-major order of
// the other axes.
#pragma once

#include "tensor/tensor.h"

namespace blutensor {

class RowOffsets {
 public:
  // Rows along `axis` of a view; axis -1: every element is a row (per-row operands, such as targets). 0-d: one row.
  RowOffsets(const View& view, int axis) : shape_(view.shape), strides_(view.strides) {
    if (axis >= 0 && shape_.size() > 0) {
      shape_.erase(axis);
      strides_.erase(axis);
    }
    count_ = num_elements(shape_);
    // Neighbours that are walked as one axis are merged; what is left of a contiguous tensor is one axis.
    int kept = 0;
    for (int i = 0; i < shape_.size(); ++i) {
      if (shape_[i] == 1) continue;
      if (kept > 0 && strides_[kept - 1] == strides_[i] * shape_[i]) {
        shape_[kept - 1] *= shape_[i];
        strides_[kept - 1] = strides_[i];
      } else {
        shape_[kept] = shape_[i];
        strides_[kept++] = strides_[i];
      }
    }
    rank_ = kept;
  }

  int64_t count() const { return count_; }

  // Of the first element of a row, in elements.
  int64_t operator()(int64_t row) const {
    if (rank_ == 1) return row * strides_[0];
    int64_t sum = 0;
    for (int i = rank_ - 1; i >= 0; --i) {
      sum += row % shape_[i] * strides_[i];
      row /= shape_[i];
    }
    return sum;
  }

 private:
  Shape shape_;
  Strides strides_;
  int64_t count_ = 0;
  int rank_ = 0;
};

}  // namespace blutensor
