// Copying between views, for operators whose work is to put elements elsewhere.
#pragma once

#include "ops/elementwise/elementwise_kernels.h"
#include "tensor/tensor.h"

namespace blutensor {

// destination = source, broadcast to the destination's shape and converted to its dtype. The two must not overlap
// unless they are the same view.
void copy_view(const View& destination, const View& source);

// Whether one element of memory may belong to both. Exact for two views of the same strides (slices of one tensor);
// otherwise overlapping address ranges count.
bool may_overlap(const View& a, const View& b);
// Whether two positions of the view may be one element of memory: a view that cannot be written in place.
bool overlaps_itself(const View& view);

// Names of the operators that write what a binary one computes into its first operand.
constexpr const char* in_place_name(BinaryOp op) {
  return op == BinaryOp::add ? "add_" : op == BinaryOp::subtract ? "sub_" : op == BinaryOp::multiply ? "mul_" : "div_";
}

// Throws when positions of `destination` share memory: nothing is written to such a view.
void check_written(const View& destination, const char* op);

// Throws unless `destination` can be written in place from `source` (elementwise, so the same view is fine).
void check_written(const View& destination, const View& source, const char* op);

// The part of a view at [start, start + length) of an axis.
View narrow_view(const View& view, int axis, int64_t start, int64_t length);

// Fills bytes of an element: `value` points at one element of the view's dtype.
void fill_view(const View& destination, const void* value);

}  // namespace blutensor
