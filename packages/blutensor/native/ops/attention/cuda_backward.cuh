// Gradients of attention over tiles, for any arithmetic of cuda_arithmetic.cuh.
//
// Two kernels that recompute the scores, so that every sum is local and in a fixed order, without atomics and without
// a float32 copy of dQ: attention_backward_keys owns keys and walks over queries, attention_backward_queries owns
// queries and walks over keys. With P = exp(scale Q K^T - logsumexp), dP = dO V^T, delta = rowsum(dO * O):
//   dS = P * (dP - delta),  dV = P^T dO,  dK = scale dS^T Q,  dQ = scale dS K.
// Both keep P and dS in registers: the first works on S^T and dP^T, whose accumulators are the left operands of P^T dO
// and dS^T Q.
// Arithmetic that limits chains (kChainOf) puts sums of so many rows away to the gradient and begins anew.
// Work: 8 T S D FLOPs for the keys, 6 T S D for the queries, 2 T S exponentials a pair.
// Benchmark: benchmarks/bench_attention_cuda.py
#pragma once

#include <cmath>

#include "ops/attention/cuda_arithmetic.cuh"

namespace blutensor::cuda {

// Resident: two tiles of the rows that the block owns. Walked over: two tiles of kBlock rows, two stages. A stage is
// used kStep rows at a time.
template <class Math, int kTiles, int kBlock, int kStep>
struct BackwardShape {
  using Rows = typename Math::Rows;
  static constexpr int kThreads = 32 * Math::kWarps;
  static constexpr int kOwned = Math::kWarps * 16 * kTiles;
  static constexpr int kResidentBytes = kOwned * Rows::kRowBytes;
  static constexpr int kTileBytes = kBlock * Rows::kRowBytes;
  static constexpr int kStageBytes = 2 * kTileBytes;
  static constexpr int kStatisticsBytes = kBlock * 4;  // of logsumexp, and of delta
  static constexpr int kTilesBytes = 2 * kResidentBytes + 2 * kStageBytes;
  static constexpr int kSharedBytes = kTilesBytes + 4 * kStatisticsBytes;  // of two stages; only for dK and dV
  static_assert(kBlock % kStep == 0 && 2 * kBlock <= kThreads);
};

// ---------------------------------------------------------------- sums

// Stores the warp's sums, times `factor`, to its rows of a gradient; adds: to what it stored before.
template <class Math, int kTiles>
__device__ __forceinline__ void put_away(const float (&sums)[kTiles][Math::kHeadDim / 8][4],
                                         const float (&factor)[kTiles][2], uint32_t tile,
                                         typename Math::Element* target, const AttentionOperand& operand, int first_row,
                                         int limit, int head_dim, bool adds) {
  const int stride = static_cast<int>(operand.row_stride);
  if constexpr (kChainOf<Math> > 0)
    Math::template store<kTiles>(sums, factor, tile, target, stride, first_row, limit, head_dim, adds);
  else
    Math::template store<kTiles>(sums, factor, tile, target, stride, first_row, limit, head_dim);
}

// ---------------------------------------------------------------- dK and dV

template <class Math, int kTiles, int kBlock, int kStep>
__global__ void __launch_bounds__(32 * Math::kWarps, Math::kBackwardBlocks)
    attention_backward_keys(const __grid_constant__ AttentionArguments args) {
  using Shape = BackwardShape<Math, kTiles, kBlock, kStep>;
  using Element = typename Math::Element;
  using Rows = typename Math::Rows;
  constexpr int kHeadDim = Math::kHeadDim;
  extern __shared__ __align__(1024) unsigned char shared[];

  // ---- prologue
  const uint32_t pair = blockIdx.x % args.num_pairs;
  const int first_key = blockIdx.x / args.num_pairs * Shape::kOwned;  // causal: the first keys are seen by most
  const int num_queries = args.num_queries, num_keys = args.num_keys, head_dim = args.head_dim;
  const TwoMatrices<Rows, Element> queries_and_grads(args, args.query, args.grad_output, pair, num_queries);
  const float* logsumexp = static_cast<const float*>(args.logsumexp) + static_cast<int64_t>(pair) * num_queries;
  const float* delta = static_cast<const float*>(args.delta) + static_cast<int64_t>(pair) * num_queries;

  const uint32_t key_tile = ptx::shared_address(shared), value_tile = key_tile + Shape::kResidentBytes;
  const uint32_t stages = value_tile + Shape::kResidentBytes, all_statistics = key_tile + Shape::kTilesBytes;
  const auto load = [&](int block) {
    const int first = block * kBlock;
    queries_and_grads.template load_async<kBlock>(stages + (block & 1) * Shape::kStageBytes, first);
    const int index = static_cast<int>(threadIdx.x) % kBlock, row = first + index;
    if (threadIdx.x < 2 * kBlock) {
      const float* source = threadIdx.x < kBlock ? logsumexp : delta;
      ptx::copy_async_4(all_statistics + (block & 1) * 2 * Shape::kStatisticsBytes + 4 * threadIdx.x,
                        source + (row < num_queries ? row : 0), row < num_queries ? 4 : 0);
    }
    ptx::copy_async_commit();
  };
  TwoMatrices<Rows, Element>(args, args.key, args.value, pair, num_keys)
      .template load_async<Shape::kOwned>(key_tile, first_key);
  ptx::copy_async_commit();
  const int first_block = args.causal ? first_key / kBlock : 0;
  if (first_block * kBlock < num_queries) load(first_block);

  const int warp = threadIdx.x / 32, warp_row = warp * 16 * kTiles;
  const int first_row = first_key + warp_row, last_row = first_row + 16 * kTiles - 1;
  const uint32_t warp_keys = key_tile + warp_row * Rows::kRowBytes;
  const uint32_t warp_values = value_tile + warp_row * Rows::kRowBytes;
  const typename Math::template Left<kTiles> left_keys(warp_keys), left_values(warp_values);
  const float factor = static_cast<float>(args.scale * 1.44269504088896340736);

  float grad_key[kTiles][kHeadDim / 8][4] = {}, grad_value[kTiles][kHeadDim / 8][4] = {};
  const auto put = [&](bool adds) {
    float one[kTiles][2], scale[kTiles][2];
#pragma unroll
    for (int m = 0; m < kTiles; ++m)
      one[m][0] = one[m][1] = 1, scale[m][0] = scale[m][1] = static_cast<float>(args.scale);
    put_away<Math, kTiles>(grad_key, scale, warp_keys, matrix_of<Element>(args, args.grad_key, pair), args.grad_key,
                           first_row, num_keys, head_dim, adds);
    put_away<Math, kTiles>(grad_value, one, warp_values, matrix_of<Element>(args, args.grad_value, pair),
                           args.grad_value, first_row, num_keys, head_dim, adds);
  };

  if constexpr (Math::kRounds) {
    ptx::copy_async_wait<0>();
    Rows::template round_loaded<Shape::kOwned>(key_tile);
    Rows::template round_loaded<Shape::kOwned>(value_tile);
  }

  // ---- main loop over blocks of queries
  for (int block = first_block; block * kBlock < num_queries; ++block) {
    ptx::copy_async_wait<0>();
    if constexpr (Math::kIsAsync) Math::publish_loaded();
    __syncthreads();
    if ((block + 1) * kBlock < num_queries) load(block + 1);
    const uint32_t stage = stages + (block & 1) * Shape::kStageBytes;
#pragma unroll 1
    for (int step = 0; step < kBlock; step += kStep) {
      const int first_query = block * kBlock + step;
      if (args.causal && first_query + kStep - 1 < first_row) continue;
      const uint32_t query_rows = stage + step * Rows::kRowBytes, grad_rows = query_rows + Shape::kTileBytes;
      const uint32_t statistics =
          all_statistics + (block & 1) * 2 * Shape::kStatisticsBytes + 4 * step + 8 * lane_column();

      float p[kTiles][kStep / 8][4], ds[kTiles][kStep / 8][4];
      Math::template scores<kTiles, kStep>(p, left_keys, query_rows);
      Math::template scores<kTiles, kStep>(ds, left_values, grad_rows);
      if constexpr (Math::kIsAsync) Math::template wait<1>(p);
#pragma unroll
      for (int n = 0; n < kStep / 8; ++n) {
        const float2 shift = ptx::load_shared_2(statistics + 32 * n);
#pragma unroll
        for (int m = 0; m < kTiles; ++m)
#pragma unroll
          for (int r = 0; r < 4; ++r)
            p[m][n][r] = ptx::exp2_approximate(fmaf(p[m][n][r], factor, -kLog2e * (r & 1 ? shift.y : shift.x)));
      }
      if ((args.causal && first_query < last_row) || first_query + kStep > num_queries) {
#pragma unroll
        for (int m = 0; m < kTiles; ++m)
#pragma unroll
          for (int n = 0; n < kStep / 8; ++n)
#pragma unroll
            for (int r = 0; r < 4; ++r) {
              const int key = first_row + 16 * m + lane_group() + 8 * (r >> 1);
              const int query = first_query + 8 * n + 2 * lane_column() + (r & 1);
              if (query >= num_queries || (args.causal && key > query)) p[m][n][r] = 0;
            }
      }
      if constexpr (Math::kIsAsync) Math::template wait<0>(ds);
#pragma unroll
      for (int n = 0; n < kStep / 8; ++n) {
        const float2 mean = ptx::load_shared_2(statistics + Shape::kStatisticsBytes + 32 * n);
#pragma unroll
        for (int m = 0; m < kTiles; ++m)
#pragma unroll
          for (int r = 0; r < 4; ++r) ds[m][n][r] = p[m][n][r] * (ds[m][n][r] - (r & 1 ? mean.y : mean.x));
      }
      Math::template accumulate<kTiles, kStep>(grad_value, p, grad_rows);
      Math::template accumulate<kTiles, kStep>(grad_key, ds, query_rows);
      if constexpr (Math::kIsAsync) Math::template wait<0>(grad_value), Math::template wait<0>(grad_key);
    }
    if constexpr (kChainOf<Math> > 0) {
      if ((block - first_block + 1) % (kChainOf<Math> / kBlock) == 0 && (block + 1) * kBlock < num_queries) {
        put(block - first_block >= kChainOf<Math> / kBlock);
        clear(grad_key), clear(grad_value);
      }
    }
  }

  // ---- epilogue
  ptx::copy_async_wait<0>();
  __syncthreads();  // also when no query was visited: the tiles have landed
  put(kChainOf<Math> > 0 && num_queries - first_block * kBlock > kChainOf<Math>);
}

// ---------------------------------------------------------------- dQ

template <class Math, int kTiles, int kBlock, int kStep>
__global__ void __launch_bounds__(32 * Math::kWarps, Math::kBackwardBlocks)
    attention_backward_queries(const __grid_constant__ AttentionArguments args) {
  using Shape = BackwardShape<Math, kTiles, kBlock, kStep>;
  using Element = typename Math::Element;
  using Rows = typename Math::Rows;
  constexpr int kHeadDim = Math::kHeadDim;
  extern __shared__ __align__(1024) unsigned char shared[];

  // ---- prologue
  const uint32_t pair = blockIdx.x % args.num_pairs;
  const int num_blocks = gridDim.x / args.num_pairs, turn = blockIdx.x / args.num_pairs;
  const int first_query = (args.causal ? num_blocks - 1 - turn : turn) * Shape::kOwned;
  const int num_queries = args.num_queries, num_keys = args.num_keys, head_dim = args.head_dim;
  const int visible = args.causal ? min(num_keys, first_query + Shape::kOwned) : num_keys;
  const TwoMatrices<Rows, Element> keys_and_values(args, args.key, args.value, pair, num_keys);

  const uint32_t query_tile = ptx::shared_address(shared), grad_tile = query_tile + Shape::kResidentBytes;
  const uint32_t stages = grad_tile + Shape::kResidentBytes;
  const auto load = [&](int block) {
    keys_and_values.template load_async<kBlock>(stages + (block & 1) * Shape::kStageBytes, block * kBlock);
    ptx::copy_async_commit();
  };
  TwoMatrices<Rows, Element>(args, args.query, args.grad_output, pair, num_queries)
      .template load_async<Shape::kOwned>(query_tile, first_query);
  ptx::copy_async_commit();
  load(0);

  const int warp = threadIdx.x / 32, warp_row = warp * 16 * kTiles;
  const int first_row = first_query + warp_row, last_row = first_row + 16 * kTiles - 1;
  const uint32_t warp_queries = query_tile + warp_row * Rows::kRowBytes;
  const uint32_t warp_grads = grad_tile + warp_row * Rows::kRowBytes;
  const typename Math::template Left<kTiles> left_queries(warp_queries), left_grads(warp_grads);
  const float factor = static_cast<float>(args.scale * 1.44269504088896340736);

  float shift[kTiles][2], mean[kTiles][2];
#pragma unroll
  for (int m = 0; m < kTiles; ++m)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = first_row + 16 * m + 8 * h + lane_group();
      const int64_t at = static_cast<int64_t>(pair) * num_queries + row;
      shift[m][h] = row < num_queries ? static_cast<const float*>(args.logsumexp)[at] * kLog2e : INFINITY;
      mean[m][h] = row < num_queries ? static_cast<const float*>(args.delta)[at] : 0.0f;
    }
  float grad_query[kTiles][kHeadDim / 8][4] = {};
  const auto put = [&](bool adds) {
    float scale[kTiles][2];
#pragma unroll
    for (int m = 0; m < kTiles; ++m) scale[m][0] = scale[m][1] = static_cast<float>(args.scale);
    put_away<Math, kTiles>(grad_query, scale, warp_queries, matrix_of<Element>(args, args.grad_query, pair),
                           args.grad_query, first_row, num_queries, head_dim, adds);
  };

  if constexpr (Math::kRounds) {
    ptx::copy_async_wait<1>();
    Rows::template round_loaded<Shape::kOwned>(query_tile);
    Rows::template round_loaded<Shape::kOwned>(grad_tile);
  }

  // ---- main loop over blocks of keys
  for (int block = 0; block * kBlock < visible; ++block) {
    ptx::copy_async_wait<0>();
    if constexpr (Math::kIsAsync) Math::publish_loaded();
    __syncthreads();
    if ((block + 1) * kBlock < visible) load(block + 1);
    const uint32_t stage = stages + (block & 1) * Shape::kStageBytes;
#pragma unroll 1
    for (int step = 0; step < kBlock; step += kStep) {
      const int first_key = block * kBlock + step;
      if (first_key >= num_keys || (args.causal && first_key > last_row)) break;
      const uint32_t key_rows = stage + step * Rows::kRowBytes, value_rows = key_rows + Shape::kTileBytes;

      float p[kTiles][kStep / 8][4], ds[kTiles][kStep / 8][4];
      Math::template scores<kTiles, kStep>(p, left_queries, key_rows);
      Math::template scores<kTiles, kStep>(ds, left_grads, value_rows);
      if constexpr (Math::kIsAsync) Math::template wait<1>(p);
#pragma unroll
      for (int m = 0; m < kTiles; ++m)
#pragma unroll
        for (int n = 0; n < kStep / 8; ++n)
#pragma unroll
          for (int r = 0; r < 4; ++r) p[m][n][r] = ptx::exp2_approximate(fmaf(p[m][n][r], factor, -shift[m][r >> 1]));
      const int last_seen = args.causal ? min(first_row, num_keys - 1) : num_keys - 1;
      if (first_key + kStep - 1 > last_seen) {
#pragma unroll
        for (int m = 0; m < kTiles; ++m)
#pragma unroll
          for (int n = 0; n < kStep / 8; ++n)
#pragma unroll
            for (int r = 0; r < 4; ++r) {
              const int row = first_row + 16 * m + lane_group() + 8 * (r >> 1);
              const int key = first_key + 8 * n + 2 * lane_column() + (r & 1);
              if (key >= num_keys || (args.causal && key > row)) p[m][n][r] = 0;
            }
      }
      if constexpr (Math::kIsAsync) Math::template wait<0>(ds);
#pragma unroll
      for (int m = 0; m < kTiles; ++m)
#pragma unroll
        for (int n = 0; n < kStep / 8; ++n)
#pragma unroll
          for (int r = 0; r < 4; ++r) ds[m][n][r] = p[m][n][r] * (ds[m][n][r] - mean[m][r >> 1]);
      Math::template accumulate<kTiles, kStep>(grad_query, ds, key_rows);
      if constexpr (Math::kIsAsync) Math::template wait<0>(grad_query);
    }
    if constexpr (kChainOf<Math> > 0) {
      if ((block + 1) % (kChainOf<Math> / kBlock) == 0 && (block + 1) * kBlock < visible) {
        put(block >= kChainOf<Math> / kBlock);
        clear(grad_query);
      }
    }
  }

  // ---- epilogue
  ptx::copy_async_wait<0>();
  __syncthreads();
  put(kChainOf<Math> > 0 && visible > kChainOf<Math>);
}

// ---------------------------------------------------------------- delta

// delta = rowsum(dO * O) - grad_logsumexp; eight lanes a row.
template <class Element>
__global__ void __launch_bounds__(256) attention_backward_delta(const __grid_constant__ AttentionArguments args) {
  constexpr int kPerChunk = 16 / sizeof(Element);
  const int64_t index = (static_cast<int64_t>(blockIdx.x) * 256 + threadIdx.x) / 8;
  const int lane = threadIdx.x & 7;
  const uint32_t pair = static_cast<uint32_t>(index / args.num_queries);
  const int row = static_cast<int>(index % args.num_queries);
  float sum = 0;
  if (pair < args.num_pairs) {
    const auto matrix = [&](const AttentionOperand& operand) {
      return static_cast<const Element*>(operand.data) + pair_offset(args.leading, operand, pair) +
             row * operand.row_stride;
    };
    const Element *output = matrix(args.output), *grad = matrix(args.grad_output);
    for (int at = lane * kPerChunk; at < args.head_dim; at += 8 * kPerChunk) {
      Element x[kPerChunk], y[kPerChunk];
      *reinterpret_cast<float4*>(x) = *reinterpret_cast<const float4*>(output + at);
      *reinterpret_cast<float4*>(y) = *reinterpret_cast<const float4*>(grad + at);
#pragma unroll
      for (int i = 0; i < kPerChunk; ++i) sum = fmaf(static_cast<float>(x[i]), static_cast<float>(y[i]), sum);
    }
  }
  for (int step = 4; step > 0; step >>= 1) sum += __shfl_xor_sync(~0u, sum, step);
  if (lane != 0 || pair >= args.num_pairs) return;
  if (args.grad_logsumexp.data != nullptr)
    sum -= static_cast<const float*>(args.grad_logsumexp.data)[pair_offset(args.leading, args.grad_logsumexp, pair) +
                                                               row * args.grad_logsumexp.row_stride];
  static_cast<float*>(args.delta)[index] = sum;
}

// ---------------------------------------------------------------- launches

template <class Element>
void launch_attention_delta(const AttentionArguments& args, cudaStream_t stream) {
  const int64_t rows = static_cast<int64_t>(args.num_pairs) * args.num_queries;
  if (rows > 0) attention_backward_delta<Element><<<static_cast<unsigned>((rows + 31) / 32), 256, 0, stream>>>(args);
}

template <class Math, int kTiles, int kBlock, int kStep>
void launch_attention_backward_keys(const AttentionArguments& args, cudaStream_t stream) {
  using Shape = BackwardShape<Math, kTiles, kBlock, kStep>;
  static_assert(Shape::kSharedBytes <= 99 * 1024, "sm_86 and sm_89 have 99 KiB");
  if (args.num_keys == 0) return;
  const auto kernel = attention_backward_keys<Math, kTiles, kBlock, kStep>;
  if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Shape::kSharedBytes) != cudaSuccess)
    return;
  const uint32_t blocks = (args.num_keys + Shape::kOwned - 1) / Shape::kOwned;
  kernel<<<blocks * args.num_pairs, Shape::kThreads, Shape::kSharedBytes, stream>>>(args);
}

template <class Math, int kTiles, int kBlock, int kStep>
void launch_attention_backward_queries(const AttentionArguments& args, cudaStream_t stream) {
  using Shape = BackwardShape<Math, kTiles, kBlock, kStep>;
  static_assert(Shape::kSharedBytes <= 99 * 1024, "sm_86 and sm_89 have 99 KiB");
  if (args.num_queries == 0) return;
  const auto kernel = attention_backward_queries<Math, kTiles, kBlock, kStep>;
  if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Shape::kSharedBytes) != cudaSuccess)
    return;
  const uint32_t blocks = (args.num_queries + Shape::kOwned - 1) / Shape::kOwned;
  kernel<<<blocks * args.num_pairs, Shape::kThreads, Shape::kSharedBytes, stream>>>(args);
}

}  // namespace blutensor::cuda
