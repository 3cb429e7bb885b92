// How a reduction walks its operand: kept axes number the outputs, reduced axes the elements of each.
#pragma once

#include "ops/elementwise/iteration.h"
#include "ops/operator.h"

namespace blutensor {

struct ReduceGeometry {
  Iteration kept;     // innermost first; in logical order, so that position = index of the output
  Iteration reduced;  // innermost first
  int64_t num_outputs = 1, length = 1;

  // Offset of the first element of an output, in elements.
  int64_t base(int64_t output) const;
};

enum class ReduceOrder { logical, by_stride };  // of the reduced axes: argmax needs the logical one

// `axes`: bit i for a reduced axis.
ReduceGeometry make_geometry(const Shape& shape, const Strides& strides, unsigned axes, ReduceOrder order);

// The axes that an attribute of that kind names, as bits. Throws on repetition and on axes out of range.
unsigned reduced_axes(const Attr& axes, int rank, const char* op);
Shape reduced_shape(const Shape& shape, unsigned axes, bool keepdims);
// The axes over which a tensor of shape `from` is summed to shape `to` (which broadcasts to `from`).
unsigned broadcast_axes(const Shape& from, const Shape& to);

}  // namespace blutensor
