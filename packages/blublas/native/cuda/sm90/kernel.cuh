// gemm_sm90: C[M, N] = epilogue(A[M, K] B[K, N]), bfloat16 or tf32 operands, float32 sums. For sm_90a alone.
//
// One block per multiprocessor stays and goes through units of work (kernel.h). A producer thread lets the copy engine
// fill a ring of stages (A and B tiles with 128 bytes of K, swizzled as wgmma reads them); two warpgroups consume it:
//   cooperative   each takes 64 of the 128 rows of a tile: half as many bytes of B per product from L2 and shared memory
//   alternating   each takes whole tiles in turn: the epilogue of one runs under the products of the other. A turn
//                 begins when the other one's last stage has come: a wait for a stage must not be two rounds early
// With a cluster of two, the blocks take tiles one above the other, and each loads half of B for both.
// A stage is given back by one lane of every warp that used it, in both blocks.
// FLOPs: 2 M N K. Bytes: per unit K (128 + tile_n) elements from L2 (K (128 + tile_n / 2) in a cluster), and C.
// Assumes: operands aligned to 16 bytes with strides that are multiples of 16 bytes (the copy engine's rules).
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>

#include <cstdint>

#include "cuda/sm90/finish.cuh"
#include "cuda/sm90/kernel.h"
#include "cuda/sm90/ptx/barrier.cuh"
#include "cuda/sm90/ptx/tma.cuh"
#include "cuda/sm90/ptx/wgmma.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define BLUBLAS_SM90_CODE 1
#endif

namespace blublas::sm90 {

template <typename Element_, Major a_major_, Major b_major_, Kind kind_, int tile_n_, bool cooperative_, int cluster_>
struct Config {
  using Element = Element_;
  static constexpr Major a_major = a_major_, b_major = b_major_;
  static constexpr Kind kind = kind_;
  static constexpr int tile_n = tile_n_, cluster = cluster_;
  static constexpr bool cooperative = cooperative_;
  // wgmma takes float32 with K contiguous only, but A also from registers, which any layout can be loaded to.
  static constexpr bool from_registers = sizeof(Element) == 4 && a_major == Major::mn;

  static constexpr int tile_k = 128 / static_cast<int>(sizeof(Element));
  static constexpr int step_k = 32 / static_cast<int>(sizeof(Element));  // of one wgmma
  static constexpr int slabs = cooperative ? 1 : 2;                      // of 64 rows per warpgroup and tile
  // Two warps beside the producer can sum A's rows on the way: the bias gradient, when A is a gradient transposed.
  static constexpr bool sums_rows = kind == Kind::partial && a_major == Major::mn;
  // Per thread. The block begins with 168 for each of its 384 threads, and what one warpgroup gives up is what the others
  // can take: asking for more than there is waits for ever.
  static constexpr int producer_registers = sums_rows ? 56 : cooperative ? 40 : 24;
  static constexpr int consumer_registers = (3 * 168 - producer_registers) / 2 / 8 * 8;
  static_assert(producer_registers + 2 * consumer_registers <= 3 * 168);
  static constexpr int panel = 128 / static_cast<int>(sizeof(Element));  // elements of M or N in a panel
  static constexpr int panel_bytes = tile_k * 128;
  static constexpr int a_bytes = tile_m * 128, b_bytes = tile_n * 128, stage_bytes = a_bytes + b_bytes;
  static constexpr int bias_bytes = 2 * tile_n * 4;  // a tile's bias for each warpgroup
  static constexpr int shared_limit = 232448;
  static constexpr int stages = (shared_limit - 1024 - bias_bytes - 256) / stage_bytes;
  static constexpr int shared_bytes = 1024 + stages * stage_bytes + bias_bytes + 16 * stages + 16;

  static_assert(cluster == 1 || cluster == 2);
  static_assert(stages >= 3 && shared_bytes <= shared_limit);
  static_assert(!from_registers || (cooperative && tile_n == 256));
  static_assert(slabs * tile_n / 2 <= 128, "accumulators fit in registers");
  static_assert(tile_n % 64 == 0 && (cooperative || tile_n <= 128));
};

constexpr int num_threads = 384;

// A unit of work of this block.
struct Unit {
  int32_t m, n;  // first row and column of the tile
  int32_t split;
  int32_t k_block, k_blocks;  // first and number
};

template <typename C>
__device__ __forceinline__ Unit unit_at(const Cut& cut, int32_t index, int32_t rank) {
  const int32_t per_split = cut.rows * cut.columns, in_split = index % per_split, per_group = cut.group_m * cut.columns;
  const int32_t first = in_split / per_group * cut.group_m, in_group = in_split % per_group;
  const int32_t height = min(cut.group_m, cut.rows - first);
  Unit unit;
  unit.split = index / per_split;
  unit.m = ((first + in_group % height) * C::cluster + rank) * tile_m;
  unit.n = in_group / height * C::tile_n;
  unit.k_block = unit.split * cut.k_blocks_per_split;
  unit.k_blocks = min(cut.k_blocks_per_split, cut.k_blocks - unit.k_block);
  return unit;
}

// Place in the ring of stages.
template <int stages>
struct Ring {
  int32_t stage = 0;
  uint32_t phase = 0;

  __device__ __forceinline__ void next() {
    if (++stage == stages) stage = 0, phase ^= 1;
  }
  __device__ __forceinline__ void skip(int32_t count) {
    const int32_t at = stage + count;
    phase ^= at / stages & 1;
    stage = at % stages;
  }
};

template <typename C>
struct Shared {
  uint32_t a, b;               // stages of tiles
  float* bias;                 // [2][tile_n]
  uint32_t full, empty, turn;  // barriers, 8 bytes apart
};

template <typename C>
__device__ __forceinline__ void produce(const CUtensorMap& a_map, const CUtensorMap& b_map, const Cut& cut,
                                        const Shared<C>& shared, int32_t cluster_index, int32_t num_clusters,
                                        uint32_t rank) {
  Ring<C::stages> ring;
  const int32_t units = cut.rows * cut.columns * cut.splits;
  for (int32_t index = cluster_index; index < units; index += num_clusters) {
    const Unit unit = unit_at<C>(cut, index, rank);
    for (int32_t block = 0; block < unit.k_blocks; ++block, ring.next()) {
      const uint32_t full = shared.full + 8 * ring.stage;
      const uint32_t a = shared.a + ring.stage * C::a_bytes, b = shared.b + ring.stage * C::b_bytes;
      const int32_t k = (unit.k_block + block) * C::tile_k;
      barrier_wait(shared.empty + 8 * ring.stage, ring.phase ^ 1);
      barrier_expect(full, C::stage_bytes);
      if constexpr (C::a_major == Major::k) {
        load_box(a, &a_map, full, k, unit.m);
      } else {
#pragma unroll
        for (int panel = 0; panel < tile_m / C::panel; ++panel)
          load_box(a + panel * C::panel_bytes, &a_map, full, unit.m + C::panel * panel, k);
      }
      // In a cluster each block loads its half of B's rows, or of the rows of each panel, for both.
      const auto load_b = [&](uint32_t to, int32_t x, int32_t y) {
        if constexpr (C::cluster == 1)
          load_box(to, &b_map, full, x, y);
        else
          load_box_shared(to, &b_map, full, x, y, 3);
      };
      if constexpr (C::b_major == Major::k) {
        const int32_t half = C::tile_n / C::cluster * static_cast<int32_t>(rank);
        load_b(b + half * 128, k, unit.n + half);
      } else {
        const int32_t half = 64 / C::cluster * static_cast<int32_t>(rank);
#pragma unroll
        for (int panel = 0; panel < C::tile_n / 64; ++panel)
          load_b(b + panel * 8192 + half * 128, unit.n + 64 * panel, k + half);
      }
    }
  }
}

// Sums of A's rows over the parts of K, from the tiles with the first columns of C, which take the blocks of K in turn. A
// thread takes 16 bytes of neighbouring rows and every so many k.
template <typename C>
__device__ __forceinline__ void sum_rows(const Finish& finish, const Cut& cut, const Shared<C>& shared,
                                         int32_t cluster_index, int32_t num_clusters, uint32_t rank, int32_t warp) {
  constexpr int elements = 16 / static_cast<int>(sizeof(typename C::Element)), chunks = tile_m / elements;
  constexpr int phases = 32 * row_sum_warps / chunks;
  const int lane = threadIdx.x % 32, thread = 32 * warp + lane, chunk = thread % chunks, phase = thread / chunks;
  const uint32_t panel = chunk / 8 * C::panel_bytes;
  const int32_t columns = cut.row_sum_columns;
  Ring<C::stages> ring;
  const int32_t units = cut.rows * cut.columns * cut.splits;
  for (int32_t index = cluster_index; index < units; index += num_clusters) {
    const Unit unit = unit_at<C>(cut, index, rank);
    const int32_t column = unit.n / C::tile_n;
    const bool wanted = finish.row_sums != nullptr && column < columns;
    float sums[elements] = {};
    for (int32_t block = 0; block < unit.k_blocks; ++block, ring.next()) {
      barrier_wait(shared.full + 8 * ring.stage, ring.phase);
      if (wanted && block % columns == column) {
        const uint32_t a = shared.a + ring.stage * C::a_bytes + panel;
#pragma unroll 4
        for (int k = phase; k < C::tile_k; k += phases) {
          const uint4 raw = load_quad(a + k * 128 + ((chunk % 8 ^ (k & 7)) << 4));
          const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            if constexpr (elements == 8) {
              sums[2 * i] += low_bf16(words[i]);
              sums[2 * i + 1] += high_bf16(words[i]);
            } else {
              sums[i] += __uint_as_float(words[i]);
            }
          }
        }
      }
      __syncwarp();
      if (lane == 0) barrier_arrive(shared.empty + 8 * ring.stage);
    }
    if (!wanted) continue;
    if constexpr (chunks < 32) {
#pragma unroll
      for (int i = 0; i < elements; ++i) sums[i] += __shfl_xor_sync(~0U, sums[i], chunks);
    }
    if (lane < chunks) {
      const int32_t part = (unit.split * columns + column) * row_sum_warps + warp;
      float* to = finish.row_sums + part * finish.ld_row_sums + unit.m + chunk * elements;
#pragma unroll
      for (int i = 0; i < elements; i += 4)
        *reinterpret_cast<float4*>(to + i) = make_float4(sums[i], sums[i + 1], sums[i + 2], sums[i + 3]);
    }
  }
}

// A stage is given back once the products of the next are on their way and its own are done.
template <typename C, typename GiveBack>
__device__ __forceinline__ void multiply(float (&d)[C::slabs][C::tile_n / 2], const Shared<C>& shared,
                                         Ring<C::stages>& ring, const Unit& unit, int32_t group,
                                         const GiveBack& give_back) {
  const int32_t slab_row = C::cooperative ? 64 * group : 0;
  int32_t before = -1;
  for (int32_t block = 0; block < unit.k_blocks; ++block, ring.next()) {
    barrier_wait(shared.full + 8 * ring.stage, ring.phase);
    const uint64_t b = describe(shared.b + ring.stage * C::b_bytes, C::b_major, C::panel_bytes);
    const uint64_t a = describe(shared.a + ring.stage * C::a_bytes + slab_row * 128, C::a_major, C::panel_bytes);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < C::tile_k / C::step_k; ++step)
#pragma unroll
      for (int slab = 0; slab < C::slabs; ++slab)
        wgmma<C::tile_n, C::a_major, C::b_major>(d[slab], a + slab * (64 * 128 >> 4) + step * step_of<C::a_major>,
                                                 b + step * step_of<C::b_major>, (block | step) != 0,
                                                 typename C::Element());
    wgmma_commit();
    wgmma_wait<1>();
    if (before >= 0) give_back(before);
    before = ring.stage;
  }
  if (!C::cooperative && threadIdx.x % 128 == 0) barrier_arrive(shared.turn + 8 * (group ^ 1));
  wgmma_wait<0>();
  give_back(before);
}

// A is [k][m] in shared memory, in panels of 32 m; the copy engine swizzles 16-byte chunks by k. So that the lanes of a
// load meet no bank conflict, they take chunks 0, 4, 1, 5 (odd warps 2, 6, 3, 7) of their panel, two neighbours in m each:
// the rows of the product come in another order (a_row).
template <typename C>
__device__ __forceinline__ int32_t chunk_of(int32_t thread) {
  const int32_t pair = thread % 32 / 8;
  return (pair & 1) * 4 + (pair >> 1) + (thread / 32 & 1) * 2;
}
// The row of the tile that the lane's first accumulators belong to; the second ones are one below.
template <typename C>
__device__ __forceinline__ int32_t a_row(int32_t group, int32_t thread) {
  return (group * 2 + thread / 64) * C::panel + chunk_of<C>(thread) * 4 + (thread % 32 / 4 & 1) * 2;
}

template <typename C>
__device__ __forceinline__ void load_a(uint32_t (&a)[16], uint32_t stage, int32_t group, int32_t thread) {
  const uint32_t base = stage + (group * 2 + thread / 64) * C::panel_bytes + (thread % 32 / 4 & 1) * 8;
  const int32_t chunk = chunk_of<C>(thread), lane_k = thread % 4;
#pragma unroll
  for (int half = 0; half < 8; ++half) {
    const int32_t k = 4 * half + lane_k;
    load_pair(a[2 * half], a[2 * half + 1], base + k * 128 + ((chunk ^ (k & 7)) << 4));
  }
}

// Two sets of registers for A, the next one loaded under the products of the other. The number of blocks is even.
template <typename C, typename GiveBack>
__device__ __forceinline__ void multiply_from_registers(float (&d)[C::tile_n / 2], const Shared<C>& shared,
                                                        Ring<C::stages>& ring, const Unit& unit, int32_t group,
                                                        const GiveBack& give_back) {
  const int32_t thread = threadIdx.x % 128;
  uint32_t even[16], odd[16];
  const auto load = [&](uint32_t (&a)[16]) {
    barrier_wait(shared.full + 8 * ring.stage, ring.phase);
    load_a<C>(a, shared.a + ring.stage * C::a_bytes, group, thread);
  };
  const auto start = [&](const uint32_t (&a)[16], int add) {
    const uint64_t b = describe(shared.b + ring.stage * C::b_bytes, Major::k, C::panel_bytes);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step)
      wgmma_from_registers<C::tile_n>(d, a + 4 * step, b + step * step_of<Major::k>, add | step);
    wgmma_commit();
  };
  load(even);
#pragma unroll 1
  for (int32_t block = 0; block < unit.k_blocks; block += 2) {
    const int32_t first = ring.stage;
    start(even, block);
    ring.next();
    load(odd);
    wgmma_wait<0>();
    give_back(first);
    const int32_t second = ring.stage;
    start(odd, 1);
    ring.next();
    if (block + 2 < unit.k_blocks) load(even);
    wgmma_wait<0>();
    give_back(second);
  }
}

template <typename C, bool bf16, bool has_side>
__device__ __forceinline__ void consume(const Finish& finish, const Cut& cut, const Shared<C>& shared,
                                        int32_t cluster_index, int32_t num_clusters, uint32_t rank, int32_t group) {
  const int lane = threadIdx.x % 32, thread = threadIdx.x % 128;
  float* bias = shared.bias + group * C::tile_n;
  Ring<C::stages> ring;
  const auto give_back = [&](int32_t stage) {
    if constexpr (C::cluster == 1) {
      if (lane == 0) barrier_arrive(shared.empty + 8 * stage);
    } else {
      if (lane < C::cluster) barrier_arrive_in(shared.empty + 8 * stage, lane);
    }
  };
  const int32_t units = cut.rows * cut.columns * cut.splits;
  for (int32_t index = cluster_index, turn = 0; index < units; index += num_clusters, ++turn) {
    const Unit unit = unit_at<C>(cut, index, rank);
    if (!C::cooperative && (turn & 1) != group) {
      ring.skip(unit.k_blocks);
      continue;
    }

    // Prologue: what the epilogue reads is on its way before the products.
    Place place;
    place.row = unit.m + (C::from_registers ? a_row<C>(group, thread)
                                            : (C::cooperative ? 64 * group : 0) + 16 * (thread / 32) + lane / 4);
    place.row_step = C::from_registers ? 1 : 8;
    place.column = unit.n;
    place.m = cut.m;
    place.n = cut.n;
    place.lane = lane;
    TileFinish<C, bf16, has_side> tile;
    tile.prepare(finish, place);
    float bias_part[(C::tile_n + 127) / 128] = {};
    if (finish.bias != nullptr) {
#pragma unroll
      for (int i = 0; i < (C::tile_n + 127) / 128; ++i) {
        const int32_t column = unit.n + 128 * i + thread;
        if (column < cut.n)
          bias_part[i] = finish.flags & bias_is_bf16
                             ? __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(finish.bias)[column])
                             : reinterpret_cast<const float*>(finish.bias)[column];
      }
    }

    // Main loop.
    float d[C::slabs][C::tile_n / 2];
    // The first warpgroup's first turn is free.
    if constexpr (!C::cooperative) barrier_wait(shared.turn + 8 * group, (turn / 2 & 1) ^ (group == 0));
    if constexpr (C::from_registers)
      multiply_from_registers<C>(d[0], shared, ring, unit, group, give_back);
    else
      multiply<C>(d, shared, ring, unit, group, give_back);

    // Epilogue.
    if constexpr (C::kind == Kind::partial) {
      Finish part = finish;
      part.c += 4 * finish.ld_c * cut.m * unit.split;
      part.bias = nullptr;
      tile.finish(part, place, d, nullptr);
    } else {
      group == 0 ? warpgroup_barrier<1>() : warpgroup_barrier<2>();  // the bias before has been read
#pragma unroll
      for (int i = 0; i < (C::tile_n + 127) / 128; ++i)
        if (128 * i + thread < C::tile_n) bias[128 * i + thread] = bias_part[i];
      group == 0 ? warpgroup_barrier<1>() : warpgroup_barrier<2>();
      tile.finish(finish, place, d, bias);
    }
  }
}

template <typename C>
__global__ void __launch_bounds__(num_threads, 1)
    gemm_sm90(const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap b_map,
              const __grid_constant__ Finish finish, const __grid_constant__ Cut cut) {
#ifdef BLUBLAS_SM90_CODE
  extern __shared__ unsigned char dynamic_shared[];
  const uint32_t base = (shared_address(dynamic_shared) + 1023) & ~1023U;
  Shared<C> shared;
  shared.a = base;
  shared.b = base + C::stages * C::a_bytes;
  const uint32_t after = base + C::stages * C::stage_bytes;
  shared.bias = reinterpret_cast<float*>(dynamic_shared + (after - shared_address(dynamic_shared)));
  shared.full = after + C::bias_bytes;
  shared.empty = shared.full + 8 * C::stages;
  shared.turn = shared.empty + 8 * C::stages;

  const uint32_t rank = C::cluster == 1 ? 0 : cluster_rank();
  const int32_t cluster_index = blockIdx.x / C::cluster, num_clusters = gridDim.x / C::cluster;
  // The same value in every lane, and known to be: descriptors live in uniform registers.
  const int32_t group = __shfl_sync(~0U, threadIdx.x / 128, 0);

  if (threadIdx.x == 0) {
    prefetch_map(&a_map);
    prefetch_map(&b_map);
    for (int stage = 0; stage < C::stages; ++stage) {
      barrier_init(shared.full + 8 * stage, 1);
      barrier_init(shared.empty + 8 * stage,
                   (C::cooperative ? 8 : 4) * C::cluster + (C::sums_rows ? row_sum_warps : 0));
    }
    for (int i = 0; i < 2; ++i) barrier_init(shared.turn + 8 * i, 1);
    fence_barrier_init();
  }
  __syncthreads();
  if constexpr (C::cluster > 1) cluster_sync();

  if (group == 0) {
    give_registers<C::producer_registers>();
    const int32_t warp = threadIdx.x / 32;
    if (threadIdx.x == 0) produce<C>(a_map, b_map, cut, shared, cluster_index, num_clusters, rank);
    if (C::sums_rows && warp >= 1 && warp <= row_sum_warps)
      sum_rows<C>(finish, cut, shared, cluster_index, num_clusters, rank, warp - 1);
  } else {
    take_registers<C::consumer_registers>();
    const auto run = [&]<bool bf16, bool has_side>() {
      consume<C, bf16, has_side>(finish, cut, shared, cluster_index, num_clusters, rank, group - 1);
    };
    constexpr bool only_f32 = C::kind == Kind::partial || sizeof(typename C::Element) == 4;
    const auto choose_side = [&]<bool bf16>() {
      if constexpr (is_gradient<C::kind>)
        run.template operator()<bf16, true>();
      else if (C::kind != Kind::plain || finish.side == nullptr)
        run.template operator()<bf16, false>();
      else if constexpr (C::kind == Kind::plain)
        run.template operator()<bf16, true>();
    };
    if (only_f32 || !(finish.flags & c_is_bf16))
      choose_side.template operator()<false>();
    else if constexpr (!only_f32)
      choose_side.template operator()<true>();
  }
  // A block that left would take its shared memory from under the copies and arrivals of the other.
  if constexpr (C::cluster > 1) cluster_sync();
#endif
}

}  // namespace blublas::sm90
