// Small pieces that gradient functions and decompositions are made of.
#pragma once

#include "ops/registry.h"

namespace blutensor {

// A 0-d tensor.
Tensor constant(double value, DType dtype);
// a * factor, a + offset.
Tensor scaled(const Tensor& a, double factor);
// The gradient of something that was broadcast or converted: summed to the shape and converted to the dtype of `spec`.
Tensor reduced_to(const Tensor& gradient, const TensorSpec& spec);
// Shape change of a tensor of any strides: a view where they allow it, of a copy where not.
Tensor reshaped(const Tensor& a, const Shape& shape);
Tensor broadcast_to(const Tensor& a, const Shape& shape);
Tensor cast_to(const Tensor& a, DType dtype);

}  // namespace blutensor
