// Geometry of views.
#pragma once

#include <optional>

#include "ops/operator.h"

namespace blutensor {

// `requested` with its one -1 (if any) replaced by what the number of elements leaves; throws when it does not fit.
Shape resolve_shape(const Shape& from, const Shape& requested);

// Strides with which a tensor of these strides has `shape` (of as many elements) without a copy; none when there are
// none.
std::optional<Strides> reshape_strides(const Shape& from, const Strides& strides, const Shape& shape);

// Whether a tensor of shape `from` broadcasts to `to` itself.
bool broadcasts_to(const Shape& from, const Shape& to);

// The part of slice_backward's result in which the gradient goes.
View slice_backward_part(const View& out, const Attrs& attrs);

}  // namespace blutensor
