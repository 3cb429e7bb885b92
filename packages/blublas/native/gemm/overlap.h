// Do two strided arrays share memory?
#pragma once

#include <array>
#include <cstdint>

namespace blublas {

// A strided array as a set of bytes: first byte of the first element, and (size, stride in bytes) of up to three
// dimensions.
struct Footprint {
  struct Dimension {
    int64_t size = 1, stride = 0;
  };
  uintptr_t start = 0;
  int64_t item_bytes = 1;
  std::array<Dimension, 3> dimensions{};
};

// False when any extent in bytes does not fit 62 bits: such an array cannot exist.
bool extent_fits(const Footprint& array);
// Whether two elements of one array share a byte. Ordered by size, each stride must exceed the extent of those below:
// true otherwise.
bool overlaps_itself(const Footprint& array);
// Whether two arrays may share a byte. False is certain. True is exact when bounds, or the residues modulo one of the
// strides or their greatest common divisor, decide, as for slices of one matrix or tensor.
bool may_overlap(const Footprint& x, const Footprint& y);

}  // namespace blublas
