// softmax(scale Q K^T) V in bfloat16 on the tensor cores of sm_90a: cuda_forward.cuh with the products of neighbouring
// blocks of keys overlapped (FlashAttention-3, Shah et al. 2024).
//
// Four warps own 64 queries. The scores of the next block are begun before the present
// block is added to the output, so that they go through softmax while the tensor cores do that. They need the next
// block's keys one block before its values: a stage holds the values of a block and the keys of the next. Nothing stays
// in flight from one iteration to the next: with that, ptxas cannot tell which product a wait covers, and serialises.
// Tiles of keys and values are panels of 64 columns: 128 bytes a row, swizzled as the descriptors want it.
// Work and memory as cuda_forward.cuh. Benchmark: benchmarks/bench_attention_cuda.py
#pragma once

#include <type_traits>

#include "ops/attention/cuda_forward.cuh"
#include "ops/attention/ptx/wgmma.cuh"

namespace blutensor::cuda {

// kRows rows of kHeadDim columns in panels of 64.
template <int kHeadDim, int kRows_>
struct PanelTile {
  static constexpr int kRows = kRows_, kChunks = kHeadDim / 8, kPanels = (kHeadDim + 63) / 64;
  static constexpr int kPanelBytes = kRows * 128, kBytes = kPanels * kPanelBytes;
  static_assert(kChunks % 4 == 0);

  __device__ static int offset(int row, int chunk) {
    return chunk / 8 * kPanelBytes + row * 128 + (((chunk ^ row) & 7) << 4);
  }
};

// Copies tiles of a global matrix, with kThreads threads; rows from num_rows on and columns from head_dim on are zeros.
template <class Panels, int kThreads>
class PanelLoader {
 public:
  __device__ PanelLoader(const __nv_bfloat16* matrix, int row_stride, int num_rows, int head_dim)
      : matrix_(matrix),
        row_stride_(row_stride),
        num_rows_(num_rows),
        head_dim_(head_dim),
        offset_(Panels::offset(row_at(0), chunk_at(0))) {}

  __device__ __forceinline__ void load_async(uint32_t tile, int first) const {
    constexpr int kCopies = Panels::kRows * Panels::kChunks;
    if (kEven && first + Panels::kRows <= num_rows_ &&
        head_dim_ == Panels::kChunks * 8) {  // for all threads; nearly always
      constexpr int kRowsAtOnce = kThreads / Panels::kChunks;
      static_assert(!kEven || kRowsAtOnce % 8 == 0, "the swizzle repeats");
      const __nv_bfloat16* from = matrix_ + static_cast<int64_t>(first + row_at(0)) * row_stride_ + chunk_at(0) * 8;
#pragma unroll
      for (int i = 0; i < Panels::kRows / kRowsAtOnce; ++i)
        ptx::copy_async_16(tile + offset_ + i * kRowsAtOnce * 128,
                           from + static_cast<int64_t>(i * kRowsAtOnce) * row_stride_);
      return;
    }
#pragma unroll
    for (int i = 0; i < kCopies; i += kThreads) {
      if (kCopies % kThreads != 0 && i + static_cast<int>(threadIdx.x) >= kCopies) break;
      const int row = row_at(i), chunk = chunk_at(i);
      const bool valid = first + row < num_rows_ && chunk * 8 < head_dim_;
      const int64_t at = static_cast<int64_t>(first + row) * row_stride_ + chunk * 8;
      ptx::copy_async_16(tile + Panels::offset(row, chunk), matrix_ + (valid ? at : 0), valid ? 16 : 0);
    }
  }

 private:
  static constexpr bool kEven = kThreads % Panels::kChunks == 0 && Panels::kRows * Panels::kChunks % kThreads == 0;

  // What this thread copies in the turn that begins with copy i.
  __device__ static int row_at(int i) { return (i + static_cast<int>(threadIdx.x)) / Panels::kChunks; }
  __device__ static int chunk_at(int i) { return (i + static_cast<int>(threadIdx.x)) % Panels::kChunks; }

  const __nv_bfloat16* matrix_;
  int row_stride_, num_rows_, head_dim_;
  int offset_;  // of the first of this thread's copies
};

template <int kHeadDim, int kWarps, int kKeys>
struct OverlappedShape {
  using Math = Bf16<kHeadDim, kWarps>;
  using Panels = PanelTile<kHeadDim, kKeys>;  // of keys and values
  static constexpr int kThreads = 32 * kWarps, kQueries = 16 * kWarps;
  static constexpr int kQueryBytes = kQueries * Math::Rows::kRowBytes;
  static constexpr int kFirstTile = (kQueryBytes + 1023) / 1024 * 1024;
  static constexpr int kUnread = kFirstTile + 4 * Panels::kBytes;  // 4 bytes a thread
  static constexpr int kSharedBytes = kUnread + 4 * kThreads;
  static_assert(kWarps % 4 == 0 && kSharedBytes <= 227 * 1024);
};

// s = Q K^T: begins, wgmma_wait ends. Queries of 64 columns are read from shared memory, for which registers are scarce.
template <class Panels, class Left, int kBlocks>
__device__ __forceinline__ void begin_scores(float (&s)[1][kBlocks][4], const Left& queries, uint32_t keys) {
  const uint64_t right = ptx::wgmma_descriptor(keys);
  ptx::wgmma_pin(s[0]);
  ptx::wgmma_fence();
#pragma unroll
  for (int step = 0; step < Panels::kChunks / 2; ++step) {
    const uint64_t columns = right + (step / 4 * Panels::kPanelBytes + step % 4 * 32) / 16;
    if constexpr (std::is_same_v<Left, uint64_t>)
      ptx::wgmma_64x64x16(s[0], queries + 2 * step, columns, step);
    else
      ptx::wgmma_64xNx16<false>(s[0], queries.kept[step][0], columns, step);
  }
  ptx::wgmma_commit();
}

// o += P V, P packed: begins.
template <class Panels, int kBlocks, int kSteps>
__device__ __forceinline__ void begin_output(float (&o)[1][kBlocks][4], const uint32_t (&p)[kSteps][4],
                                             uint32_t values) {
  const uint64_t right = ptx::wgmma_panel_descriptor(values, Panels::kPanelBytes);
  ptx::wgmma_pin(o[0]);
  ptx::wgmma_fence();
#pragma unroll
  for (int k = 0; k < kSteps; ++k) ptx::wgmma_64xNx16<true>(o[0], p[k], right + 128 * k, 1);
  ptx::wgmma_commit();
}

template <int kHeadDim, int kWarps, int kKeys, int kBlocksPerSm>
__global__ void __launch_bounds__(32 * kWarps, kBlocksPerSm)
    attention_forward_overlapped(const __grid_constant__ AttentionArguments args) {
  using Shape = OverlappedShape<kHeadDim, kWarps, kKeys>;
  using Math = typename Shape::Math;
  using Rows = typename Math::Rows;
  using Panels = typename Shape::Panels;
  using Element = typename Math::Element;
  extern __shared__ __align__(1024) unsigned char shared[];

  // ---- prologue: which rows, first loads
  const ForwardBlock where(args, Shape::kQueries);
  const int first_query = where.first_query, num_keys = args.num_keys;
  const int key_blocks = (where.visible + kKeys - 1) / kKeys;

  const auto loader_of = [&](const AttentionOperand& operand) {
    return PanelLoader<Panels, Shape::kThreads>(matrix_of<Element>(args, operand, where.pair),
                                                static_cast<int>(operand.row_stride), num_keys, args.head_dim);
  };
  const auto keys = loader_of(args.key), values = loader_of(args.value);
  const uint32_t query_tile = ptx::shared_address(shared), stages = query_tile + Shape::kFirstTile;
  const auto values_at = [&](int block) { return stages + (block & 1) * 2 * Panels::kBytes; };
  const auto keys_at = [&](int block) { return values_at(block - 1) + Panels::kBytes; };
  const auto load = [&](int block) {
    values.load_async(values_at(block), block * kKeys);
    if (block + 1 < key_blocks) keys.load_async(keys_at(block + 1), (block + 1) * kKeys);
    ptx::copy_async_commit();
  };
  Rows::template load_async<Shape::kQueries>(query_tile, matrix_of<Element>(args, args.query, where.pair),
                                             static_cast<int>(args.query.row_stride), first_query, args.num_queries,
                                             args.head_dim);
  if (key_blocks > 0) keys.load_async(keys_at(0), 0);
  ptx::copy_async_commit();
  load(0);

  const int warp = threadIdx.x / 32, warp_row = warp * 16;
  const int first_row = first_query + warp_row;
  const uint32_t warp_queries = query_tile + warp_row * Rows::kRowBytes;
  const float factor = static_cast<float>(args.scale * 1.44269504088896340736);
  // Blocks of keys that a row of the warpgroup sees: the same for its four warps.
  const int seen = args.causal ? min(key_blocks, (first_query + warp_row / 64 * 64 + 63) / kKeys + 1) : key_blocks;

  float output[1][kHeadDim / 8][4] = {}, maximum[1][2] = {{-INFINITY, -INFINITY}}, sum[1][2] = {};
  float s[1][kKeys / 8][4], correction[1][2];
  uint32_t p[kKeys / 16][4];
  const auto pack = [&] {
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) Math::template pack<kKeys>(p[k], s[0], k);
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
  const auto queries = [&] {
    if constexpr (kHeadDim == 64)  // descriptors live in uniform registers
      return ptx::wgmma_descriptor(__shfl_sync(~0u, query_tile + warp_row / 64 * 64 * Rows::kRowBytes, 0));
    else
      return KeptLeft<Rows, 1>(warp_queries);
  }();
  const uint32_t unread = query_tile + Shape::kUnread + 4 * threadIdx.x;
  if (seen > 0) {
    begin_scores<Panels>(s, queries, keys_at(0));
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
    begin_scores<Panels>(s, queries, keys_at(block + 1));
    begin_output<Panels>(output, p, values_at(block));
    ptx::wgmma_wait<1>();
    ptx::wgmma_pin(s[0]);
    mask_scores(s, first_row, (block + 1) * kKeys, num_keys, args.causal);
    const bool corrects = softmax_rows(s, factor, maximum, sum, correction);
    // Nothing but a write to memory, of what depends on all exponentials, keeps ptxas from waiting before they are computed.
    ptx::store_shared_1(unread, __float_as_uint(sum[0][0] + sum[0][1]));
    ptx::wgmma_wait<0>();
    ptx::wgmma_pin(output[0]);
    if (corrects) scale_rows(output, correction);
  }
  if (seen > 0) {
    arrive(seen - 1);
    pack();
    begin_output<Panels>(output, p, values_at(seen - 1));
    ptx::wgmma_wait<0>();
    ptx::wgmma_pin(output[0]);
  }
  for (int block = seen; block < key_blocks; ++block) arrive(block);

  // ---- epilogue: normalise, write
  ptx::copy_async_wait<0>();
  write_rows<Math, 1>(args, where.pair, first_row, output, maximum, sum, warp_queries);
}

template <int kHeadDim, int kWarps, int kKeys, int kBlocksPerSm>
void launch_attention_forward_overlapped(const AttentionArguments& args, cudaStream_t stream) {
  using Shape = OverlappedShape<kHeadDim, kWarps, kKeys>;
  const auto kernel = attention_forward_overlapped<kHeadDim, kWarps, kKeys, kBlocksPerSm>;
  if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Shape::kSharedBytes) != cudaSuccess)
    return;  // the caller asks for the last error
  const uint32_t blocks = (args.num_queries + Shape::kQueries - 1) / Shape::kQueries;
  kernel<<<blocks * args.num_pairs, Shape::kThreads, Shape::kSharedBytes, stream>>>(args);
}

}  // namespace blutensor::cuda
