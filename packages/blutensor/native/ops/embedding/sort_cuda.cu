// A stable sort of positions by id, in two launches and without atomics on global memory.
//
// Ids are shared out to 256 classes by their low bits. partition cuts the positions into tiles, one block each, and puts
// the items of a tile in the order of their classes, noting where each class begins. Then sort_classes, one block a
// class, collects the items of its class from all tiles and sorts them by the other bits of the ids, 8 at a time, lowest
// first. Both split a list by a digit in the same way: every warp counts the digits of its part of the list, and goes
// through it once more when the counts of the warps before it say where its items go. So equal ids stay in order, and
// what comes out depends on the ids alone. A block of sort_classes also zeroes the rows of its class that have no item:
// the sort waits for memory more than it moves.
// Bytes: 56 N, mostly in L2, and the rows that are zeroed.
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/report.h"
#include "ops/cuda/vector.cuh"
#include "ops/embedding/embedding_cuda.h"

namespace blutensor {

using namespace cuda;

namespace {

constexpr int kThreads = 512, kWarps = kThreads / kWarpSize;
constexpr int kLogDigits = 8, kDigits = 1 << kLogDigits;  // also the classes
constexpr int kBins = kDigits + 1;                        // ids out of range are a class of their own, the last
constexpr int kMaxTiles = 256;
constexpr int kNear = 1024;  // items of a class that are kept in shared memory; more of them go to global memory

struct Item {
  int32_t id, position;
};

// The sum over lower threads; *total: over all. `shared` is free again when all threads have returned.
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
  for (int w = 0; w < kWarps; ++w) {
    if (w < warp) before += shared[w];
    all += shared[w];
  }
  __syncthreads();
  *total = all;
  return before + sum - value;
}

// Lanes of a mask before this one.
__device__ int rank_of(unsigned lanes) { return __popc(lanes & ((1u << (threadIdx.x % kWarpSize)) - 1)); }

struct Split {
  int next[kWarps][kBins];  // where the next item of a warp with this digit goes
  int starts[kBins + 1];    // of the digits' items; after the last one, the number of items
  int sums[kWarps];
};

// Puts items 0, 1, ..., count - 1 in the order of their digits, equal digits in the order of the items: digit(i) is below
// kBins, and place(i, to, digit) moves an item. A block's work; all threads have moved their items when it returns.
template <class Digit, class Place>
__device__ void split(int count, Split& s, const Digit& digit, const Place& place) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarpSize, warp = thread / kWarpSize;
  for (int k = thread; k < kWarps * kBins; k += kThreads) s.next[k / kBins][k % kBins] = 0;
  __syncthreads();
  const int per_warp = (count / kThreads + (count % kThreads > 0)) * kWarpSize;
  const int begin = min(count, warp * per_warp), end = min(count, begin + per_warp);
#pragma unroll 4
  for (int i = begin + lane; i - lane < end; i += kWarpSize) {
    const int d = i < end ? digit(i) : kBins;
    const unsigned same = __match_any_sync(kAllLanes, d);
    if (i < end && rank_of(same) == 0) s.next[warp][d] += __popc(same);
    __syncwarp();
  }
  __syncthreads();
  int sum = 0, total = 0;
  if (thread < kBins)
    for (int w = 0; w < kWarps; ++w) sum += s.next[w][thread];
  int start = exclusive_sum(sum, &total, s.sums);
  if (thread < kBins) {
    s.starts[thread] = start;
    for (int w = 0; w < kWarps; ++w) {
      const int here = s.next[w][thread];
      s.next[w][thread] = start;
      start += here;
    }
  }
  if (thread == 0) s.starts[kBins] = total;
  __syncthreads();
#pragma unroll 4
  for (int i = begin + lane; i - lane < end; i += kWarpSize) {
    const int d = i < end ? digit(i) : kBins;
    const unsigned same = __match_any_sync(kAllLanes, d);
    const int rank = rank_of(same), leader = __ffs(static_cast<int>(same)) - 1;
    int to = 0;
    if (i < end && rank == 0) {
      to = s.next[warp][d];
      s.next[warp][d] = to + __popc(same);
    }
    to = __shfl_sync(kAllLanes, to, leader) + rank;
    if (i < end) place(i, to, d);
    __syncwarp();
  }
  __syncthreads();
}

// The first of places [low, high) for which `yes`, which is false before it and true after; high where there is none.
template <class Yes>
__device__ int first_place(int low, int high, const Yes& yes) {
  while (low < high) {
    const int middle = low + (high - low) / 2;
    if (yes(middle))
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

// ---------------------------------------------------------------- tiles

struct Tiles {
  int count, items;  // items of each but the last
};

Tiles tiles_of(int64_t count) {
  const int64_t tiles = std::clamp<int64_t>((count + kThreads - 1) / kThreads, 1, kMaxTiles);
  return {static_cast<int>(tiles), static_cast<int>((count + tiles - 1) / tiles)};
}

// items [N]: tile by tile, in the order of their classes. starts [kBins + 1, tiles]: of the classes in the tiles.
template <class Id>
__global__ void __launch_bounds__(kThreads)
    partition(const Id* ids, int count, int limit, const Tiles tiles, Item* items, int* starts, Report* slot) {
  __shared__ Split shared;
  const int tile = static_cast<int>(blockIdx.x), first = min(count, tile * tiles.items),
            own = min(count - first, tiles.items);
  split(
      own, shared,
      [&](int i) {
        const Id id = ids[first + i];
        return id >= 0 && id < limit ? static_cast<int>(id) & (kDigits - 1) : kDigits;
      },
      [&](int i, int to, int class_of_id) {
        const Id id = ids[first + i];
        if (class_of_id == kDigits && slot) report(slot, ReportCode::embedding_id, static_cast<int64_t>(id), limit);
        items[first + to] = {static_cast<int32_t>(id), first + i};
      });
  for (int k = static_cast<int>(threadIdx.x); k <= kBins; k += kThreads)
    starts[k * tiles.count + tile] = shared.starts[k];
}

// ---------------------------------------------------------------- classes

// Zeroes the rows of the ids of a class that are not in its list. A warp takes a row.
__device__ void zero_rows(const ZeroRows& zeros, const Item* list, int size, int own, int limit) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize, warp = static_cast<int>(threadIdx.x) / kWarpSize;
  for (int64_t first = warp * kWarpSize; (first << kLogDigits | own) < limit; first += kThreads) {
    const int64_t id = (first + lane) << kLogDigits | own;
    bool absent = false;
    if (id < limit) {
      const int at = first_place(0, size, [&](int k) { return list[k].id >= id; });
      absent = at == size || list[at].id != id;
    }
    for (unsigned rows = __ballot_sync(kAllLanes, absent); rows; rows &= rows - 1) {
      const int64_t row = (first + __ffs(static_cast<int>(rows)) - 1) << kLogDigits | own;
      auto* packs = reinterpret_cast<uint4*>(static_cast<char*>(zeros.data) + row * zeros.row_bytes);
      for (int64_t k = lane; k < zeros.row_bytes / 16; k += kWarpSize) packs[k] = {};
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    sort_classes(const Item* items, const int* starts, const Tiles tiles, int limit, int passes, Item* lists, int count,
                 SortedPosition* sorted, const ZeroRows zeros) {
  __shared__ Split shared;
  __shared__ int begins[kMaxTiles], shifts[kMaxTiles];  // of the tiles' parts of the class
  __shared__ Item near[2][kNear];
  const int thread = static_cast<int>(threadIdx.x), own = static_cast<int>(blockIdx.x);

  // ------------------------------------------------ collect
  const int from = thread < tiles.count ? starts[own * tiles.count + thread] : 0,
            to = thread < tiles.count ? starts[(own + 1) * tiles.count + thread] : 0;
  int base = 0, size = 0;
  exclusive_sum(from, &base, shared.sums);  // items of lower classes
  const int begin = exclusive_sum(to - from, &size, shared.sums);
  if (thread < tiles.count) {
    begins[thread] = begin;
    shifts[thread] = thread * tiles.items + from - begin;
  }
  __syncthreads();
  Item *list = size <= kNear ? near[0] : lists + base, *other = size <= kNear ? near[1] : lists + count + base;
  for (int k = thread; k < size; k += kThreads) {
    const int tile = first_place(0, tiles.count, [&](int t) { return begins[t] > k; }) - 1;
    list[k] = items[k + shifts[tile]];
  }
  __syncthreads();

  if (own == kDigits) {  // out of range
    for (int k = thread; k < size; k += kThreads) sorted[base + k] = {0, list[k].position, 0, 0};
    return;
  }

  // ------------------------------------------------ sort
  int shift = 0;
  for (int pass = 0; pass < passes; ++pass) {
    shift += kLogDigits;
    split(
        size, shared, [&](int i) { return list[i].id >> shift & (kDigits - 1); },
        [&](int i, int place, int) { other[place] = list[i]; });
    Item* const before = list;
    list = other;
    other = before;
  }
  for (int k = thread; k < size; k += kThreads) {
    const Item item = list[k];
    // Ids of one last digit are together; where there was one digit, they are the same.
    const int digit = item.id >> shift & (kDigits - 1);
    int first = shared.starts[digit], last = shared.starts[digit + 1];
    if (list[first].id != item.id) first = first_place(first, k, [&](int p) { return list[p].id == item.id; });
    if (list[last - 1].id != item.id) last = first_place(k, last, [&](int p) { return list[p].id != item.id; });
    sorted[base + k] = {item.id, item.position, k - first, last - first};
  }
  if (zeros.data) zero_rows(zeros, list, size, own, limit);
}

}  // namespace

// Items of the tiles and two lists of the classes, then where the classes begin.
size_t sort_scratch_bytes(int64_t count) {
  return static_cast<size_t>(3 * count) * sizeof(Item) +
         static_cast<size_t>(tiles_of(count).count) * (kBins + 1) * sizeof(int);
}

void sort_positions(const void* ids, DType dtype, int64_t count, int64_t limit, void* scratch, SortedPosition* sorted,
                    const ZeroRows& zeros, bool reports, void* stream) {
  const Tiles tiles = tiles_of(count);
  int passes = 1;
  while (limit > int64_t{1} << kLogDigits * (passes + 1)) ++passes;
  const auto n = static_cast<int>(count), rows = static_cast<int>(limit);
  auto* const items = static_cast<Item*>(scratch);
  auto* const starts = reinterpret_cast<int*>(items + 3 * count);
  Report* const slot = reports ? report_slot() : nullptr;
  const auto s = static_cast<cudaStream_t>(stream);
  const auto blocks = static_cast<unsigned>(tiles.count);
  if (dtype == DType::int32)
    partition<<<blocks, kThreads, 0, s>>>(static_cast<const int32_t*>(ids), n, rows, tiles, items, starts, slot);
  else
    partition<<<blocks, kThreads, 0, s>>>(static_cast<const int64_t*>(ids), n, rows, tiles, items, starts, slot);
  check_launch("embedding_backward");
  sort_classes<<<kBins, kThreads, 0, s>>>(items, starts, tiles, rows, passes, items + count, n, sorted, zeros);
  check_launch("embedding_backward");
}

}  // namespace blutensor
