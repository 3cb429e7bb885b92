// A stable sort of positions by id, in one launch and without atomics on global memory.
//
// Ids are shared out to classes: id % classes, one block a class. Every block reads all ids (they stay in L2), notes
// how many belong to lower classes, which is where its part of the result begins, and collects the positions of its own
// in order. Those it sorts by id / classes with a counting sort whose counters are in shared memory; one warp places
// the positions in order, so that equal ids stay in order. What a block does depends on the ids alone.
// Bytes: N ids for each class, from L2, and 40 N more.
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/report.h"
#include "ops/cuda/vector.cuh"
#include "ops/embedding/embedding_cuda.h"

namespace blutensor {

using namespace cuda;

namespace {

constexpr int kThreads = 512;
constexpr int kClasses = 256;
constexpr int kBins = 4096;  // ids of a class at most: more ids take more classes

struct Item {
  int32_t bin, position;
};

// The sum over lower threads; *total: over all.
__device__ int exclusive_sum(int value, int* total, int* shared) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize, warp = static_cast<int>(threadIdx.x) / kWarpSize;
  int sum = value;
#pragma unroll
  for (int step = 1; step < kWarpSize; step *= 2) {
    const int other = __shfl_up_sync(kAllLanes, sum, step);
    if (lane >= step) sum += other;
  }
  if (lane == kWarpSize - 1) shared[warp] = sum;
  __syncthreads();
  int before = 0, all = 0;
  for (int w = 0; w < kThreads / kWarpSize; ++w) {
    if (w < warp) before += shared[w];
    all += shared[w];
  }
  __syncthreads();
  *total = all;
  return before + sum - value;
}

template <class Id>
__global__ void __launch_bounds__(kThreads)
    sort_by_id(const Id* ids, int count, int limit, int classes, Item* items, SortedPosition* sorted, Report* slot) {
  __shared__ int sums[kThreads / kWarpSize];
  __shared__ int starts[kBins + 1], next[kBins];
  const int thread = static_cast<int>(threadIdx.x), own = static_cast<int>(blockIdx.x);
  const auto divisor = static_cast<uint32_t>(classes);

  // Ids out of range belong to a class after the last, which no block collects: the last block reports and marks them.
  const auto class_of = [&](Id id) {
    return id >= 0 && id < limit ? static_cast<int>(static_cast<uint32_t>(id) % divisor) : classes;
  };

  // ------------------------------------------------ collect: a thread takes neighbouring positions
  const int per_thread = (count + kThreads - 1) / kThreads;
  const int begin = min(count, thread * per_thread), end = min(count, begin + per_thread);
  int mine = 0, lower = 0, wrong = 0;
  for (int i = begin; i < end; ++i) {
    const int c = class_of(ids[i]);
    mine += c == own;
    lower += c < own;
    wrong += c == classes;
  }
  int size = 0, base = 0;
  int at = exclusive_sum(mine, &size, sums);
  exclusive_sum(lower, &base, sums);
  for (int i = begin; i < end && mine > 0; ++i) {
    const Id id = ids[i];
    if (class_of(id) != own) continue;
    items[base + at++] = {static_cast<int32_t>(static_cast<uint32_t>(id) / divisor), i};
  }
  if (own == classes - 1) {
    int num_wrong = 0;
    int place = exclusive_sum(wrong, &num_wrong, sums) + count;
    for (int i = begin; i < end && wrong > 0; ++i) {
      if (class_of(ids[i]) != classes) continue;
      sorted[place - num_wrong] = {0, i, 0, 0};
      ++place;
      report(slot, ReportCode::embedding_id, static_cast<int64_t>(ids[i]), limit);
    }
  }

  // ------------------------------------------------ count: where each id of the class begins
  const int bins = (limit - own + classes - 1) / classes;
  for (int b = thread; b <= bins; b += kThreads) starts[b] = 0;
  __syncthreads();
  for (int k = thread; k < size; k += kThreads) atomicAdd(&starts[items[base + k].bin], 1);
  __syncthreads();
  const int bins_per_thread = (bins + kThreads - 1) / kThreads;
  const int first = min(bins, thread * bins_per_thread), last = min(bins, first + bins_per_thread);
  int sum = 0, total = 0;
  for (int b = first; b < last; ++b) sum += starts[b];
  int start = exclusive_sum(sum, &total, sums);
  for (int b = first; b < last; ++b) {
    const int here = starts[b];
    starts[b] = next[b] = start;
    start += here;
  }
  if (thread == 0) starts[bins] = size;
  __syncthreads();

  // ------------------------------------------------ place: one warp, 32 positions at a time
  if (thread >= kWarpSize) return;
  for (int k = thread; k - thread < size; k += kWarpSize) {
    const bool active = k < size;
    const Item item = active ? items[base + k] : Item{-1, 0};
    const unsigned same = __match_any_sync(kAllLanes, item.bin);
    const int rank = __popc(same & ((1u << thread) - 1)), leader = __ffs(static_cast<int>(same)) - 1;
    int place = 0;
    if (active && rank == 0) {
      place = next[item.bin];
      next[item.bin] = place + __popc(same);
    }
    place = __shfl_sync(kAllLanes, place, leader) + rank;
    if (active) {
      const int from = starts[item.bin];
      sorted[base + place] = {item.bin * classes + own, item.position, place - from, starts[item.bin + 1] - from};
    }
    __syncwarp();
  }
}

}  // namespace

size_t sort_scratch_bytes(int64_t count) { return static_cast<size_t>(count) * sizeof(Item); }

void sort_positions(const void* ids, DType dtype, int64_t count, int64_t limit, void* scratch, SortedPosition* sorted,
                    void* stream) {
  const auto classes = static_cast<int>(std::max<int64_t>(kClasses, (limit + kBins - 1) / kBins));
  const auto n = static_cast<int>(count), rows = static_cast<int>(limit);
  auto* items = static_cast<Item*>(scratch);
  const auto s = static_cast<cudaStream_t>(stream);
  if (dtype == DType::int32)
    sort_by_id<<<classes, kThreads, 0, s>>>(static_cast<const int32_t*>(ids), n, rows, classes, items, sorted,
                                            report_slot());
  else
    sort_by_id<<<classes, kThreads, 0, s>>>(static_cast<const int64_t*>(ids), n, rows, classes, items, sorted,
                                            report_slot());
  check_launch("embedding_backward");
}

}  // namespace blutensor
