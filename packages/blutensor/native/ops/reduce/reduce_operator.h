// What the descriptors of all reductions share.
#pragma once

#include "ops/elementwise/compose.h"
#include "ops/reduce/geometry.h"

namespace blutensor {

inline ReduceGeometry geometry(const View& x, unsigned axes, ReduceOrder order = ReduceOrder::by_stride) {
  return make_geometry(x.shape, x.strides, axes, order);
}

// Attributes {axis, keepdims}.
inline unsigned axes_of(const Attrs& attrs, int rank, const char* op) { return reduced_axes(attrs[0], rank, op); }

std::vector<AttrSpec> reduce_attrs();
std::vector<GradCase> reduce_cases();

// A gradient (or result) of the reduced shape, stretched over the operand's shape.
Tensor stretched(const Tensor& t, const Shape& shape, unsigned axes);

// Name, category, operand and attributes; inference and launchers are the caller's.
Operator reduce_operator(const char* name, const char* doc);

// Sums and products: floats keep their dtype, integers go to 64 bits.
constexpr DType sum_dtype(DType dtype) {
  return is_floating(dtype) ? dtype : is_unsigned(dtype) ? DType::uint64 : DType::int64;
}

void register_statistics(OperatorRegistry& registry);  // a part of register_reduce()

}  // namespace blutensor
