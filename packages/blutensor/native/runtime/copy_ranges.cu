#include <algorithm>
#include <cstdint>

#include "ops/cuda/launch.h"
#include "runtime/copy_ranges.h"

namespace blutensor {

namespace {

constexpr int kThreads = 256;
constexpr size_t kAtOnce = 16;  // ranges of a launch
constexpr int64_t kMaxBlocks = 128;

struct Ranges {
  CopyRange range[kAtOnce];
};

template <typename Word>
__device__ void copy_words(const CopyRange& range) {
  auto* to = static_cast<Word*>(range.to);
  const auto* from = static_cast<const Word*>(range.from);
  const size_t words = range.bytes / sizeof(Word), stride = size_t{gridDim.x} * kThreads;
  for (size_t i = size_t{blockIdx.x} * kThreads + threadIdx.x; i < words; i += stride) to[i] = from[i];
}

// Blocks of one y copy one range, in the largest words that fit it.
__global__ void __launch_bounds__(kThreads) copy(const __grid_constant__ Ranges ranges) {
  const CopyRange range = ranges.range[blockIdx.y];
  const uintptr_t fit = reinterpret_cast<uintptr_t>(range.to) | reinterpret_cast<uintptr_t>(range.from) | range.bytes;
  if (fit % sizeof(uint4) == 0)
    copy_words<uint4>(range);
  else if (fit % sizeof(uint32_t) == 0)
    copy_words<uint32_t>(range);
  else
    copy_words<uint8_t>(range);
}

}  // namespace

void copy_ranges(const std::vector<CopyRange>& ranges, void* stream) {
  for (size_t first = 0; first < ranges.size(); first += kAtOnce) {
    const size_t count = std::min(kAtOnce, ranges.size() - first);
    Ranges some{};
    size_t longest = 0;
    for (size_t i = 0; i < count; ++i) {
      some.range[i] = ranges[first + i];
      longest = std::max(longest, some.range[i].bytes);
    }
    if (longest == 0) continue;
    const auto words = static_cast<int64_t>(longest / sizeof(uint4));
    const auto blocks = static_cast<unsigned>(std::clamp<int64_t>(words / kThreads, 1, kMaxBlocks));
    copy<<<dim3(blocks, static_cast<unsigned>(count)), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(some);
    cuda::check_launch("copy of ranges");
  }
}

}  // namespace blutensor
