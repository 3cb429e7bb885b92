// A stable sort of positions by id, in one launch and without atomics on global memory.
//
// Ids are shared out to classes: id % classes, one block a class. Every block reads all ids (they stay in L2), notes
// how many belong to lower classes, which is where its part of the result begins, and collects the positions of its own
// in order. Those it sorts by id / classes with a counting sort whose counters are in shared memory; one warp places
// the positions in order, so that equal ids stay in order. What a block does depends on the ids alone.
// More blocks zero the memory that the sorted positions are for: the sort waits for memory more than it moves.
// Bytes: N ids for each class, from L2, and 40 N more.
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/report.h"
#include "ops/cuda/vector.cuh"
#include "ops/embedding/embedding_cuda.h"

namespace blutensor {

using namespace cuda;

namespace {

constexpr int kThreads = 512;
constexpr int kNear = 1024;  // items of a class that are kept in shared memory; more of them go to global memory
constexpr int kLogClasses = 8;
constexpr unsigned kZeroBlocks = 2;  // on each multiprocessor, beside the sort
constexpr int kBins = 4096;          // ids of a class at most: more of them take more classes

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

// Positions of 32 lanes for which `yes`: their number before this lane.
__device__ int rank_of(unsigned yes) { return __popc(yes & ((1u << (threadIdx.x % kWarpSize)) - 1)); }

// The part of block `block` of `blocks`.
__device__ void fill_with_zeros(const ZeroFill& zeros, int block, int blocks) {
  auto* packs = static_cast<uint4*>(zeros.data);
  const int64_t count = zeros.bytes / 16, step = static_cast<int64_t>(blocks) * kThreads;
  for (int64_t k = static_cast<int64_t>(block) * kThreads + threadIdx.x; k < count; k += step) packs[k] = {};
  if (block == 0 && threadIdx.x < zeros.bytes % 16) static_cast<char*>(zeros.data)[count * 16 + threadIdx.x] = 0;
}

template <class Id>
__global__ void __launch_bounds__(kThreads)
    sort_by_id(const Id* ids, int count, int limit, int log_classes, Item* items, SortedPosition* sorted,
               const ZeroFill zeros, Report* slot) {
  constexpr int kWarps = kThreads / kWarpSize;
  __shared__ int sums[kWarps], counts[3][kWarps];
  __shared__ int starts[kBins + 1], next[kBins];
  __shared__ Item near[kNear];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarpSize, warp = thread / kWarpSize,
            own = static_cast<int>(blockIdx.x), classes = 1 << log_classes;
  if (own >= classes) return fill_with_zeros(zeros, own - classes, static_cast<int>(gridDim.x) - classes);

  // Ids out of range belong to a class after the last, which no block collects: the last block reports and marks them.
  const auto class_of = [&](Id id) { return id >= 0 && id < limit ? static_cast<int>(id) & (classes - 1) : classes; };

  // ------------------------------------------------ collect: a warp takes neighbouring positions, 32 at a time
  const int per_warp = (count + kThreads - 1) / kThreads * kWarpSize;
  const int begin = min(count, warp * per_warp), end = min(count, begin + per_warp);
  int mine = 0, lower = 0, wrong = 0;
#pragma unroll 8
  for (int i = begin + lane; i - lane < end; i += kWarpSize) {
    const int c = i < end ? class_of(ids[i]) : classes + 1;
    mine += __popc(__ballot_sync(kAllLanes, c == own));
    lower += c < own;
    wrong += __popc(__ballot_sync(kAllLanes, c == classes));
  }
  lower = warp_sum(lower);
  if (lane == 0) {
    counts[0][warp] = mine;
    counts[1][warp] = lower;
    counts[2][warp] = wrong;
  }
  __syncthreads();
  int size = 0, base = 0, num_wrong = 0, at = 0, wrong_at = 0;
  for (int w = 0; w < kWarps; ++w) {
    at += w < warp ? counts[0][w] : 0;
    wrong_at += w < warp ? counts[2][w] : 0;
    size += counts[0][w];
    base += counts[1][w];
    num_wrong += counts[2][w];
  }
  Item* const list = size <= kNear ? near : items + base;
  if (mine > 0) {
#pragma unroll 8
    for (int i = begin + lane; i - lane < end; i += kWarpSize) {
      const Id id = i < end ? ids[i] : Id{-1};
      const unsigned yes = __ballot_sync(kAllLanes, class_of(id) == own);
      if (class_of(id) == own) list[at + rank_of(yes)] = {static_cast<int32_t>(id) >> log_classes, i};
      at += __popc(yes);
    }
  }
  if (wrong > 0 && own == classes - 1) {
    for (int i = begin + lane; i - lane < end; i += kWarpSize) {
      const bool is_wrong = i < end && class_of(ids[i]) == classes;
      const unsigned yes = __ballot_sync(kAllLanes, is_wrong);
      if (is_wrong) {
        sorted[count - num_wrong + wrong_at + rank_of(yes)] = {0, i, 0, 0};
        if (slot) report(slot, ReportCode::embedding_id, static_cast<int64_t>(ids[i]), limit);
      }
      wrong_at += __popc(yes);
    }
  }

  // ------------------------------------------------ count: where each id of the class begins
  const int bins = (limit - own + classes - 1) / classes;
  for (int b = thread; b <= bins; b += kThreads) starts[b] = 0;
  __syncthreads();
  for (int k = thread; k < size; k += kThreads) atomicAdd(&starts[list[k].bin], 1);
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
    const Item item = active ? list[k] : Item{-1, 0};
    const unsigned same = __match_any_sync(kAllLanes, item.bin);
    const int rank = rank_of(same), leader = __ffs(static_cast<int>(same)) - 1;
    int place = 0;
    if (active && rank == 0) {
      place = next[item.bin];
      next[item.bin] = place + __popc(same);
    }
    place = __shfl_sync(kAllLanes, place, leader) + rank;
    if (active) {
      const int from = starts[item.bin];
      sorted[base + place] = {item.bin << log_classes | own, item.position, place - from, starts[item.bin + 1] - from};
    }
    __syncwarp();
  }
}

}  // namespace

size_t sort_scratch_bytes(int64_t count) { return static_cast<size_t>(count) * sizeof(Item); }

void sort_positions(const void* ids, DType dtype, int64_t count, int64_t limit, void* scratch, SortedPosition* sorted,
                    const ZeroFill& zeros, bool reports, void* stream) {
  int log_classes = kLogClasses;
  while ((int64_t{kBins} << log_classes) < limit) ++log_classes;
  const unsigned classes = 1u << log_classes,
                 blocks = classes + (zeros.data ? static_cast<unsigned>(num_multiprocessors()) * kZeroBlocks : 0);
  const auto n = static_cast<int>(count), rows = static_cast<int>(limit);
  auto* items = static_cast<Item*>(scratch);
  Report* const slot = reports ? report_slot() : nullptr;
  const auto s = static_cast<cudaStream_t>(stream);
  if (dtype == DType::int32)
    sort_by_id<<<blocks, kThreads, 0, s>>>(static_cast<const int32_t*>(ids), n, rows, log_classes, items, sorted, zeros,
                                           slot);
  else
    sort_by_id<<<blocks, kThreads, 0, s>>>(static_cast<const int64_t*>(ids), n, rows, log_classes, items, sorted, zeros,
                                           slot);
  check_launch("embedding_backward");
}

}  // namespace blutensor
