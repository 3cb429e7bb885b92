#include "units.h"

#include <cstdio>

namespace blualloc {

std::string describe_bytes(uint64_t bytes) {
  constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  char text[64];
  if (bytes < 1024) {
    std::snprintf(text, sizeof text, "%llu bytes", static_cast<unsigned long long>(bytes));
    return text;
  }
  double scaled = static_cast<double>(bytes) / 1024.0;
  int unit = 0;
  while (scaled >= 1024.0 && unit < 5) {
    scaled /= 1024.0;
    ++unit;
  }
  std::snprintf(text, sizeof text, "%.2f %s (%llu bytes)", scaled, kUnits[unit],
                static_cast<unsigned long long>(bytes));
  return text;
}

}  // namespace blualloc
