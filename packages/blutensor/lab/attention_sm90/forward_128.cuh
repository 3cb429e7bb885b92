// softmax(scale Q K^T) V in bfloat16 on the tensor cores of sm_90a for head dimensions of 97 to 128: as
// native/ops/attention/cuda_forward.cuh, with the products of neighbouring blocks of keys overlapped (FlashAttention-3, Shah et
// al. 2024). Compiled and read as SASS; it has not run on a GPU. Numbers: README.md
//
// Four warps own 64 queries, held as left operands in registers. The scores of the next block are begun before the present
// block is added to the output, so that they go through softmax while the tensor cores do that. They need the next
// block's keys one block before its values: a stage holds the values of a block and the keys of the next.
// Tiles of keys and values are panels of 64 keys by 64 columns: 128 bytes a row, swizzled as the descriptors want it.
#pragma once

#include "ops/attention/cuda_forward.cuh"
#include "ops/attention/ptx/wgmma.cuh"

// ---------------------------------------------------------------- for ptx/wgmma.cuh

namespace blutensor::cuda::ptx {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define BLU_SM90A(...) asm volatile(__VA_ARGS__)
#else
#define BLU_SM90A(...) __trap()
#endif

// Of a right operand that is transposed, the next 64 columns lie next_panel bytes further.
__device__ __forceinline__ uint64_t wgmma_panel_descriptor(uint32_t shared, uint32_t next_panel) {
  return (wgmma_descriptor(shared) & ~(uint64_t{0x3FFF} << 16)) | (static_cast<uint64_t>(next_panel >> 4) << 16);
}

// d[64, 64] (+)= A[64, 16] B[64, 16]^T, A in registers (as mma.sync's left operand).
__device__ __forceinline__ void wgmma_64x64x16(float (&d)[8][4], const uint32_t (&a)[4], uint64_t b, int add) {
  BLU_SM90A(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, "
      "%11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, "
      "%31}, {%32, %33, %34, %35}, %36, p, 1, 1, 0;\n}\n" : "+f"(d[0][0]),
      "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]), "+f"(d[1][3]),
      "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]), "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]),
      "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]), "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]), "+f"(d[5][1]),
      "+f"(d[5][2]), "+f"(d[5][3]), "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]), "+f"(d[7][0]),
      "+f"(d[7][1]), "+f"(d[7][2]), "+f"(d[7][3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

// d[64, 128] += A[64, 16] B[16, 128], A in registers.
__device__ __forceinline__ void wgmma_64x128x16(float (&d)[16][4], const uint32_t (&a)[4], uint64_t b) {
  BLU_SM90A(
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, "
      "%11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, "
      "%31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, "
      "%51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, {%64, %65, %66, %67}, %68, 1, 1, "
      "1, 1;\n" : "+f"(d[0][0]),
      "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]), "+f"(d[1][3]),
      "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]), "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]),
      "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]), "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]), "+f"(d[5][1]),
      "+f"(d[5][2]), "+f"(d[5][3]), "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]), "+f"(d[7][0]),
      "+f"(d[7][1]), "+f"(d[7][2]), "+f"(d[7][3]), "+f"(d[8][0]), "+f"(d[8][1]), "+f"(d[8][2]), "+f"(d[8][3]),
      "+f"(d[9][0]), "+f"(d[9][1]), "+f"(d[9][2]), "+f"(d[9][3]), "+f"(d[10][0]), "+f"(d[10][1]), "+f"(d[10][2]),
      "+f"(d[10][3]), "+f"(d[11][0]), "+f"(d[11][1]), "+f"(d[11][2]), "+f"(d[11][3]), "+f"(d[12][0]), "+f"(d[12][1]),
      "+f"(d[12][2]), "+f"(d[12][3]), "+f"(d[13][0]), "+f"(d[13][1]), "+f"(d[13][2]), "+f"(d[13][3]), "+f"(d[14][0]),
      "+f"(d[14][1]), "+f"(d[14][2]), "+f"(d[14][3]), "+f"(d[15][0]), "+f"(d[15][1]), "+f"(d[15][2]),
      "+f"(d[15][3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

#undef BLU_SM90A

}  // namespace blutensor::cuda::ptx

namespace blutensor::cuda {

inline constexpr uint32_t kPanelBytes = 64 * 128;

// ---------------------------------------------------------------- for cuda_tile.cuh

// 64 rows of 128 columns as two panels, by kThreads threads.
template <int kThreads>
struct PanelTile {
  static constexpr int kRows = 64, kRowBytes = 256, kChunks = 16;
  static_assert(kRows * kChunks % kThreads == 0);

  __device__ static int offset(int row, int chunk) {
    return chunk / 8 * static_cast<int>(kPanelBytes) + row * 128 + (((chunk ^ row) & 7) << 4);
  }
  // Rows from `limit` on and columns from head_dim on are zeros.
  __device__ static void load_async(uint32_t tile, const __nv_bfloat16* source, int row_stride, int first, int limit,
                                    int head_dim) {
    const int chunk = static_cast<int>(threadIdx.x) % kChunks;
#pragma unroll
    for (int i = 0; i < kRows * kChunks / kThreads; ++i) {
      const int row = static_cast<int>(threadIdx.x) / kChunks + i * (kThreads / kChunks);
      const bool valid = first + row < limit && chunk * 8 < head_dim;
      const int64_t from = static_cast<int64_t>(first + row) * row_stride + chunk * 8;
      ptx::copy_async_16(tile + offset(row, chunk), source + (valid ? from : 0), valid ? 16 : 0);
    }
  }
};

// ---------------------------------------------------------------- for cuda_forward.cuh, which has them inline

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

// ---------------------------------------------------------------- the kernel

template <int kWarps>
struct OverlappedShape {
  using Math = Bf16<128, kWarps>;
  using Panels = PanelTile<32 * kWarps>;  // of keys and values
  static constexpr int kThreads = 32 * kWarps, kQueries = 16 * kWarps, kKeys = 64;
  static constexpr int kQueryBytes = kQueries * Panels::kRowBytes, kTileBytes = kKeys * Panels::kRowBytes;
  static constexpr int kSharedBytes = kQueryBytes + 2 * 2 * kTileBytes;
  static_assert(kWarps % 4 == 0 && kSharedBytes <= 227 * 1024);
};

// s = Q K^T: begins, wgmma_wait ends.
__device__ __forceinline__ void begin_scores(float (&s)[1][8][4], const uint32_t (&queries)[8][1][4], uint32_t keys) {
  const uint64_t right = ptx::wgmma_descriptor(keys);
  ptx::wgmma_pin(s[0]);
  ptx::wgmma_fence();
#pragma unroll
  for (int step = 0; step < 8; ++step)
    ptx::wgmma_64x64x16(s[0], queries[step][0], right + (step / 4 * kPanelBytes + step % 4 * 32) / 16, step);
  ptx::wgmma_commit();
}

// o += P V, P packed: begins.
__device__ __forceinline__ void begin_output(float (&o)[1][16][4], const uint32_t (&p)[4][4], uint32_t values) {
  const uint64_t right = ptx::wgmma_panel_descriptor(values, kPanelBytes);
  ptx::wgmma_pin(o[0]);
  ptx::wgmma_fence();
#pragma unroll
  for (int k = 0; k < 4; ++k) ptx::wgmma_64x128x16(o[0], p[k], right + 128 * k);
  ptx::wgmma_commit();
}

template <int kWarps>
__global__ void __launch_bounds__(32 * kWarps, 1)
    attention_forward_overlapped(const __grid_constant__ AttentionArguments args) {
  using Shape = OverlappedShape<kWarps>;
  using Math = typename Shape::Math;
  using Rows = typename Math::Rows;
  using Panels = typename Shape::Panels;
  using Element = typename Math::Element;
  constexpr int kKeys = Shape::kKeys;
  extern __shared__ __align__(1024) unsigned char shared[];

  // ---- prologue: which rows, first loads
  const uint32_t pair = blockIdx.x % args.num_pairs;
  const int num_blocks = gridDim.x / args.num_pairs, turn = blockIdx.x / args.num_pairs;
  const int first_query = (args.causal ? num_blocks - 1 - turn : turn) * Shape::kQueries;
  const int num_queries = args.num_queries, num_keys = args.num_keys, head_dim = args.head_dim;
  const int visible = args.causal ? min(num_keys, first_query + Shape::kQueries) : num_keys;
  const int key_blocks = (visible + kKeys - 1) / kKeys;

  const Element* keys = matrix_of<Element>(args, args.key, pair);
  const Element* values = matrix_of<Element>(args, args.value, pair);
  const int key_stride = static_cast<int>(args.key.row_stride), value_stride = static_cast<int>(args.value.row_stride);
  const uint32_t query_tile = ptx::shared_address(shared), stages = query_tile + Shape::kQueryBytes;
  const auto values_at = [&](int block) { return stages + (block & 1) * 2 * Shape::kTileBytes; };
  const auto keys_at = [&](int block) { return values_at(block - 1) + Shape::kTileBytes; };
  const auto load_keys = [&](int block) {
    Panels::load_async(keys_at(block), keys, key_stride, block * kKeys, num_keys, head_dim);
  };
  const auto load = [&](int block) {
    Panels::load_async(values_at(block), values, value_stride, block * kKeys, num_keys, head_dim);
    if (block + 1 < key_blocks) load_keys(block + 1);
    ptx::copy_async_commit();
  };
  Rows::template load_async<Shape::kQueries>(query_tile, matrix_of<Element>(args, args.query, pair),
                                             static_cast<int>(args.query.row_stride), first_query, num_queries,
                                             head_dim);
  if (key_blocks > 0) load_keys(0);
  ptx::copy_async_commit();
  load(0);

  const int warp = threadIdx.x / 32, warp_row = warp * 16;
  const int first_row = first_query + warp_row;
  const uint32_t warp_queries = query_tile + warp_row * Rows::kRowBytes;
  const float factor = static_cast<float>(args.scale * 1.44269504088896340736);
  // Blocks of keys that a row of the warpgroup sees: the same for its four warps.
  const int seen = args.causal ? min(key_blocks, (first_query + warp_row / 64 * 64 + 63) / kKeys + 1) : key_blocks;

  float output[1][16][4] = {}, maximum[1][2] = {{-INFINITY, -INFINITY}}, sum[1][2] = {};
  float s[1][8][4], correction[1][2];
  uint32_t p[4][4];
  const auto pack = [&] {
#pragma unroll
    for (int k = 0; k < 4; ++k) Math::template pack<kKeys>(p[k], s[0], k);
  };
  const auto arrive = [&](int block) {
    ptx::copy_async_wait<0>();
    ptx::fence_shared_for_wgmma();
    __syncthreads();  // this stage is there for all, and nobody uses the other one any more
    if (block + 1 < key_blocks) load(block + 1);
  };
  ptx::copy_async_wait<1>();
  ptx::fence_shared_for_wgmma();
  __syncthreads();
  const KeptLeft<Rows, 1> queries(warp_queries);
  if (seen > 0) {
    begin_scores(s, queries.kept, keys_at(0));
    ptx::wgmma_wait<0>();
    ptx::wgmma_pin(s[0]);
    mask_scores(s, first_row, 0, num_keys, args.causal);
    softmax_rows(s, factor, maximum, sum, correction);
  }

  // ---- main loop over blocks of keys
#pragma unroll 1
  for (int block = 0; block + 1 < seen; ++block) {
    arrive(block);
    pack();
    begin_scores(s, queries.kept, keys_at(block + 1));
    begin_output(output, p, values_at(block));
    ptx::wgmma_wait<1>();
    ptx::wgmma_pin(s[0]);
    mask_scores(s, first_row, (block + 1) * kKeys, num_keys, args.causal);
    const bool corrects = softmax_rows(s, factor, maximum, sum, correction);
    ptx::wgmma_wait<0>();
    ptx::wgmma_pin(output[0]);
    if (corrects) scale_rows(output, correction);
  }
  if (seen > 0) {
    arrive(seen - 1);
    pack();
    begin_output(output, p, values_at(seen - 1));
    ptx::wgmma_wait<0>();
    ptx::wgmma_pin(output[0]);
  }
  for (int block = seen; block < key_blocks; ++block) arrive(block);

  // ---- epilogue: normalise, write
  ptx::copy_async_wait<0>();
  write_rows<Math, 1>(args, pair, first_row, output, maximum, sum, warp_queries);
}

template <int kWarps>
void launch_attention_forward_overlapped(const AttentionArguments& args, cudaStream_t stream) {
  using Shape = OverlappedShape<kWarps>;
  const auto kernel = attention_forward_overlapped<kWarps>;
  if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Shape::kSharedBytes) != cudaSuccess)
    return;  // the caller asks for the last error
  const uint32_t blocks = (args.num_queries + Shape::kQueries - 1) / Shape::kQueries;
  kernel<<<blocks * args.num_pairs, Shape::kThreads, Shape::kSharedBytes, stream>>>(args);
}

}  // namespace blutensor::cuda
