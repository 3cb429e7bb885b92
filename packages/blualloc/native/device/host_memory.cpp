// Physical memory comes from sysconf. A control group's limit is a file that the groups above repeat with limits of
// their own, so every level is asked: memory.max in the unified hierarchy, memory.limit_in_bytes in the older one. In a
// container the path of /proc/self/cgroup may be the host's; the root, which is asked last, is then the container's.
#include "device/host_memory.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

namespace blualloc {
namespace {

uint64_t physical_bytes() {
  const long pages = sysconf(_SC_PHYS_PAGES);
  const long page_bytes = sysconf(_SC_PAGESIZE);
  return pages > 0 && page_bytes > 0 ? static_cast<uint64_t>(pages) * static_cast<uint64_t>(page_bytes) : UINT64_MAX;
}

// The number in a file; UINT64_MAX for "max", 0 (no group of real use has it), or no such file.
uint64_t number_in(const std::string& path) {
  std::ifstream file(path);
  uint64_t number = 0;
  return file >> number && number != 0 ? number : UINT64_MAX;
}

uint64_t least_limit(const std::string& root, std::string group, const std::string& file) {
  uint64_t least = UINT64_MAX;
  for (;;) {
    least = std::min(least, number_in(root + group + "/" + file));
    if (group.empty()) {
      return least;
    }
    group.resize(group.find_last_of('/') == std::string::npos ? 0 : group.find_last_of('/'));
  }
}

// Lines read "hierarchy:controllers:/group"; the unified hierarchy is number 0 and names no controllers.
uint64_t group_limit_bytes() {
  uint64_t least = UINT64_MAX;
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) {
      continue;
    }
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string group = line.substr(second + 1);
    if (controllers == ",,") {
      least = std::min(least, least_limit("/sys/fs/cgroup", group, "memory.max"));
    } else if (controllers.find(",memory,") != std::string::npos) {
      least = std::min(least, least_limit("/sys/fs/cgroup/memory", group, "memory.limit_in_bytes"));
    }
  }
  return least;
}

}  // namespace

uint64_t host_memory_bytes() {
  static const uint64_t bytes = std::min(physical_bytes(), group_limit_bytes());
  return bytes;
}

}  // namespace blualloc
