// What rotary_embedding's launchers of both devices share.
#pragma once

#include <array>
#include <cmath>

#include "ops/operator.h"
#include "ops/rotary/rotary_kernels.h"

namespace blutensor {

enum RotaryAttr { kRotaryBase, kRotaryInverse };

using RotaryFrequencies = std::array<double, kRotaryMaxHeadDim / 2>;

// base^(-2 i / D), in radians per position.
inline RotaryFrequencies rotary_frequencies(double base, int64_t head_dim) {
  RotaryFrequencies frequencies{};
  for (int64_t i = 0; 2 * i < head_dim; ++i)
    frequencies[static_cast<size_t>(i)] = std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
  return frequencies;
}

// x's leading axes: all but the last.
inline Shape rotary_rows(const Shape& shape) {
  Shape rows = shape;
  rows.resize(shape.size() - 1);
  return rows;
}

// Positions as x [..., T, D] needs them: broadcast over its leading axes. Without any, 0, 1, ... along T: a view of no
// memory, of which only the shape and strides count.
inline View rotary_positions(const View& positions, const View& x) {
  View rows = positions;
  rows.shape = rotary_rows(x.shape);
  if (positions.defined()) {
    rows.strides = broadcast_strides(positions.shape, positions.strides, rows.shape);
    return rows;
  }
  rows.strides = Dims::filled(rows.shape.size(), 0);
  rows.strides.back() = 1;
  return rows;
}

}  // namespace blutensor
