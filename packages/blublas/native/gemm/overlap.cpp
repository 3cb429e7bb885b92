#include "gemm/overlap.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>

namespace blublas {
namespace {

__extension__ typedef __int128 Wide;

struct Interval {
  Wide low, high;  // bytes, both included
};

// Bytes touched by the dimensions whose stride is no multiple of `modulus` (0: by all), from the first to the last.
Interval span(const Footprint& array, int64_t modulus) {
  Interval bytes{static_cast<Wide>(array.start), static_cast<Wide>(array.start) + array.item_bytes - 1};
  for (const auto& dimension : array.dimensions) {
    if (dimension.size <= 1 || (modulus != 0 && dimension.stride % modulus == 0)) continue;
    const Wide reach = static_cast<Wide>(dimension.stride) * (dimension.size - 1);
    (reach < 0 ? bytes.low : bytes.high) += reach;
  }
  return bytes;
}

bool disjoint_modulo(const Footprint& x, const Footprint& y, int64_t modulus) {
  const Interval a = span(x, modulus), b = span(y, modulus);
  const Wide length_a = a.high - a.low, length_b = b.high - b.low;
  // b starts `offset` after a, on a circle of `modulus` bytes.
  const Wide offset = (((b.low - a.low) % modulus) + modulus) % modulus;
  return length_a < offset && offset + length_b < modulus;
}

}  // namespace

bool extent_fits(const Footprint& array) {
  constexpr Wide limit = static_cast<Wide>(1) << 62;
  Wide extent = array.item_bytes;
  for (const auto& dimension : array.dimensions) {
    const Wide stride = dimension.stride < 0 ? -static_cast<Wide>(dimension.stride) : dimension.stride;
    if (stride > limit || dimension.size > limit) return false;
    extent += stride * (dimension.size - 1);
    if (extent > limit) return false;
  }
  return true;
}

bool overlaps_itself(const Footprint& array) {
  auto sorted = array.dimensions;
  for (auto& dimension : sorted) dimension.stride = std::abs(dimension.stride);
  std::sort(sorted.begin(), sorted.end(), [](const auto& x, const auto& y) { return x.stride < y.stride; });
  int64_t extent = array.item_bytes;
  for (const auto& dimension : sorted) {
    if (dimension.size <= 1) continue;
    if (dimension.stride < extent) return true;
    extent += dimension.stride * (dimension.size - 1);
  }
  return false;
}

bool may_overlap(const Footprint& x, const Footprint& y) {
  const Interval a = span(x, 0), b = span(y, 0);
  if (a.high < b.low || b.high < a.low) return false;
  int64_t common = 0;  // divides every stride
  for (const Footprint* array : {&x, &y})
    for (const auto& dimension : array->dimensions) {
      if (dimension.size <= 1 || dimension.stride == 0) continue;
      if (disjoint_modulo(x, y, std::abs(dimension.stride))) return false;
      common = std::gcd(common, dimension.stride);
    }
  return common == 0 || !disjoint_modulo(x, y, common);
}

}  // namespace blublas
