// Several copies as one launch: what moves between two runs of a graph is small, and every call of the driver costs the
// host some microseconds. Only in builds with CUDA.
#pragma once

#include <cstddef>
#include <vector>

namespace blutensor {

// Addresses that the device reaches: its own memory, or pinned memory of the host.
struct CopyRange {
  void* to = nullptr;
  const void* from = nullptr;
  size_t bytes = 0;
};

// In the order of the stream (a cudaStream_t); what is written to pinned memory is there once an event behind it is.
// Ranges do not overlap.
void copy_ranges(const std::vector<CopyRange>& ranges, void* stream);

}  // namespace blutensor
