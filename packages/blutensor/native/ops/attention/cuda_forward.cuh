// softmax(scale Q K^T) V over tiles, for any arithmetic of cuda_arithmetic.cuh (FlashAttention-2, Dao 2023).
//
// One block of warps takes kWarps * 16 * kTiles queries of one pair and walks over the keys, kKeys at a time;
// each warp owns 16 * kTiles rows and keeps their running maximum, sum and output in registers. Keys and values come
// through two stages of cp.async: the next ones load while the present ones are used. Causal: warps skip what is
// masked, blocks with most keys start first.
// Work: 4 T S D FLOPs and T S exponentials a pair; memory: each key tile once per block of queries, mostly from L2.
// Benchmark: benchmarks/bench_attention_cuda.py
#pragma once

#include <cfloat>
#include <cmath>

#include "ops/attention/cuda_arithmetic.cuh"

namespace blutensor::cuda {

template <class Math, int kTiles, int kKeys>
struct ForwardShape {
  using Rows = typename Math::Rows;
  static constexpr int kThreads = 32 * Math::kWarps;
  static constexpr int kQueries = Math::kWarps * 16 * kTiles;
  static constexpr int kStageBytes = 2 * kKeys * Rows::kRowBytes;  // keys, then values
  static constexpr int kQueryBytes = kQueries * Rows::kRowBytes;
  static constexpr int kSharedBytes = kQueryBytes + 2 * kStageBytes;
};

// Which rows of which pair a block of a forward kernel does: the pairs of a block of rows run side by side; causal: blocks
// with most keys first.
struct ForwardBlock {
  uint32_t pair;
  int first_query, visible;  // keys that a row of the block sees

  __device__ ForwardBlock(const AttentionArguments& args, int rows) : pair(blockIdx.x % args.num_pairs) {
    const int num_blocks = gridDim.x / args.num_pairs, turn = blockIdx.x / args.num_pairs;
    first_query = (args.causal ? num_blocks - 1 - turn : turn) * rows;
    visible = args.causal ? min(args.num_keys, first_query + rows) : args.num_keys;
  }
};

// -inf where a row of the warp, whose first is first_row, does not see the key; does nothing where each sees all.
template <int kTiles, int kBlocks>
__device__ __forceinline__ void mask_scores(float (&s)[kTiles][kBlocks][4], int first_row, int first_key, int num_keys,
                                            bool causal) {
  const int last_seen = causal ? min(first_row, num_keys - 1) : num_keys - 1;  // by every row of the warp
  if (first_key + 8 * kBlocks - 1 <= last_seen) return;
#pragma unroll
  for (int m = 0; m < kTiles; ++m)
#pragma unroll
    for (int n = 0; n < kBlocks; ++n)
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int row = first_row + 16 * m + lane_group() + 8 * (r >> 1);
        const int key = first_key + 8 * n + 2 * lane_column() + (r & 1);
        if (key >= num_keys || (causal && key > row)) s[m][n][r] = -INFINITY;
      }
}

// One row of a block of scores: raises the maximum, turns scores into exp2(scores * factor - shift), adds them to the
// sum and returns what former sums must be multiplied by. While every score is -inf the shift is finite, which
// keeps the exponents at -inf instead of NaN. The former shift is rounded as it was: contracted with the subtraction, it would
// differ from itself where the maximum stays, and every block would multiply all sums by almost 1.
template <int kBlocks>
__device__ __forceinline__ float softmax_row(float (&s)[kBlocks][4], int r, float factor, float& maximum, float& sum) {
  float top = maximum;
#pragma unroll
  for (int n = 0; n < kBlocks; ++n) top = fmaxf(top, fmaxf(s[n][r], s[n][r + 1]));
  top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
  top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
  const float shift = fmaxf(__fmul_rn(top, factor), -FLT_MAX);
  const float correction = ptx::exp2_approximate(__fmul_rn(maximum, factor) - shift);
  maximum = top;
  float of_block = 0;
#pragma unroll
  for (int n = 0; n < kBlocks; ++n)
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      s[n][r + e] = ptx::exp2_approximate(fmaf(s[n][r + e], factor, -shift));
      of_block += s[n][r + e];
    }
  sum = fmaf(sum, correction, of_block);
  return correction;
}

// softmax_row of all rows; whether any correction of the warp is not 1: a maximum rises seldom after the first blocks.
template <int kTiles, int kBlocks>
__device__ __forceinline__ bool softmax_rows(float (&s)[kTiles][kBlocks][4], float factor, float (&maximum)[kTiles][2],
                                             float (&sum)[kTiles][2], float (&correction)[kTiles][2]) {
  bool corrects = false;
#pragma unroll
  for (int m = 0; m < kTiles; ++m)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      correction[m][h] = softmax_row(s[m], 2 * h, factor, maximum[m][h], sum[m][h]);
      corrects |= correction[m][h] != 1;
    }
  return __any_sync(~0u, corrects);
}

// Multiplies rows by factor[tile][row >= 8].
template <int kTiles, int kColumns>
__device__ __forceinline__ void scale_rows(float (&sums)[kTiles][kColumns][4], const float (&factor)[kTiles][2]) {
#pragma unroll
  for (int m = 0; m < kTiles; ++m)
#pragma unroll
    for (int n = 0; n < kColumns; ++n)
#pragma unroll
      for (int r = 0; r < 4; ++r) sums[m][n][r] *= factor[m][r >> 1];
}

// Normalises the warp's rows and writes them and their logsumexp; scratch: as many rows of a tile that nobody reads.
template <class Math, int kTiles>
__device__ __forceinline__ void write_rows(const AttentionArguments& args, uint32_t pair, int first_row,
                                           const float (&output)[kTiles][Math::kHeadDim / 8][4],
                                           const float (&maximum)[kTiles][2], const float (&sum)[kTiles][2],
                                           uint32_t scratch) {
  float inverse[kTiles][2];
#pragma unroll
  for (int m = 0; m < kTiles; ++m)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float row_sum = sum[m][h];
      row_sum += __shfl_xor_sync(~0u, row_sum, 1);
      row_sum += __shfl_xor_sync(~0u, row_sum, 2);
      inverse[m][h] = args.num_keys == 0 ? 0.0f : 1.0f / row_sum;
      const int row = first_row + 16 * m + 8 * h + lane_group();
      if (lane_column() == 0 && row < args.num_queries)
        static_cast<float*>(args.logsumexp)[static_cast<int64_t>(pair) * args.num_queries + row] =
            args.num_keys == 0 ? -INFINITY : fmaf(maximum[m][h], static_cast<float>(args.scale), logf(row_sum));
    }
  Math::template store<kTiles>(output, inverse, scratch, matrix_of<typename Math::Element>(args, args.output, pair),
                               static_cast<int>(args.output.row_stride), first_row, args.num_queries, args.head_dim);
}

template <class Math, int kTiles, int kKeys>
__global__ void __launch_bounds__(32 * Math::kWarps, 2)
    attention_forward(const __grid_constant__ AttentionArguments args) {
  using Shape = ForwardShape<Math, kTiles, kKeys>;
  using Element = typename Math::Element;
  using Rows = typename Math::Rows;
  constexpr int kHeadDim = Math::kHeadDim;
  extern __shared__ __align__(1024) unsigned char shared[];

  // ---- prologue: which rows, first loads
  const ForwardBlock where(args, Shape::kQueries);
  const uint32_t pair = where.pair;
  const int first_query = where.first_query, visible = where.visible, num_keys = args.num_keys;

  const TwoMatrices<Rows, Element> keys_and_values(args, args.key, args.value, pair, num_keys);

  const uint32_t query_tile = ptx::shared_address(shared), stages = query_tile + Shape::kQueryBytes;
  const auto load = [&](int block) {
    keys_and_values.template load_async<kKeys>(stages + (block & 1) * Shape::kStageBytes, block * kKeys);
    ptx::copy_async_commit();
  };
  Rows::template load_async<Shape::kQueries>(query_tile, matrix_of<Element>(args, args.query, pair),
                                             static_cast<int>(args.query.row_stride), first_query, args.num_queries,
                                             args.head_dim);
  ptx::copy_async_commit();
  load(0);

  const int warp = threadIdx.x / 32, warp_row = warp * 16 * kTiles;
  const int first_row = first_query + warp_row, last_row = first_row + 16 * kTiles - 1;
  const uint32_t warp_queries = query_tile + warp_row * Rows::kRowBytes;
  const float factor = static_cast<float>(args.scale * 1.44269504088896340736);

  float output[kTiles][kHeadDim / 8][4] = {}, maximum[kTiles][2], sum[kTiles][2] = {};
#pragma unroll
  for (int m = 0; m < kTiles; ++m) maximum[m][0] = maximum[m][1] = -INFINITY;

  ptx::copy_async_wait<1>();
  if constexpr (Math::kRounds) Rows::template round_loaded<Shape::kQueries>(query_tile);
  if constexpr (Math::kIsAsync) Math::publish_loaded();
  __syncthreads();
  const typename Math::template FastLeft<kTiles> queries(warp_queries);

  // ---- main loop over blocks of keys
  for (int block = 0; block * kKeys < visible; ++block) {
    ptx::copy_async_wait<0>();
    if constexpr (Math::kIsAsync) Math::publish_loaded();
    __syncthreads();  // this stage is there for all, and nobody reads the other one any more
    if ((block + 1) * kKeys < visible) load(block + 1);
    const int first_key = block * kKeys;
    if (args.causal && first_key > last_row) continue;  // the same for warps that multiply together

    const uint32_t stage = stages + (block & 1) * Shape::kStageBytes;
    float s[kTiles][kKeys / 8][4];
    Math::template scores<kTiles, kKeys>(s, queries, stage);
    if constexpr (Math::kIsAsync) Math::template wait<0>(s);

    mask_scores(s, first_row, first_key, num_keys, args.causal);
    float correction[kTiles][2];
    if (softmax_rows(s, factor, maximum, sum, correction)) scale_rows(output, correction);
    Math::template accumulate<kTiles, kKeys>(output, s, stage + Shape::kStageBytes / 2);
    if constexpr (Math::kIsAsync) Math::template wait<0>(output);
  }

  // ---- epilogue: normalise, write
  ptx::copy_async_wait<0>();
  write_rows<Math, kTiles>(args, pair, first_row, output, maximum, sum, warp_queries);
}

template <class Math, int kTiles, int kKeys>
void launch_attention_forward(const AttentionArguments& args, cudaStream_t stream) {
  using Shape = ForwardShape<Math, kTiles, kKeys>;
  static_assert(Shape::kSharedBytes <= 99 * 1024, "sm_86 and sm_89 have 99 KiB");
  const auto kernel = attention_forward<Math, kTiles, kKeys>;
  if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Shape::kSharedBytes) != cudaSuccess)
    return;  // the caller asks for the last error
  const uint32_t blocks = (args.num_queries + Shape::kQueries - 1) / Shape::kQueries;
  kernel<<<blocks * args.num_pairs, Shape::kThreads, Shape::kSharedBytes, stream>>>(args);
}

}  // namespace blutensor::cuda
