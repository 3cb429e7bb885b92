// What forward and backward of attention share: blocks of queries and keys, their layout in scratch, and the three
// products between them with causal skipping. Float32, vectors; internal linkage; ISA files only.
#pragma once

#include "ops/attention/attention_kernels.h"
#include "ops/attention/product_simd.h"
#include "ops/attention/transpose.h"

namespace blutensor {
namespace {

constexpr int64_t kBlock = kAttentionBlock;  // queries, and keys, of a block
constexpr int64_t kGroup = 16;               // granularity of causal skipping and of padding
constexpr float kInfinity = __builtin_inff();
constexpr float kLog2E = 1.44269504088896340736f;

constexpr int64_t round_up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }
constexpr int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// A block of rows that the products may read: 16-column multiples, unit column stride.
struct Rows {
  const float* data;
  int64_t stride;
};

// Copies rows [begin, begin + count) to scratch with `width` columns, zeros outside the matrix, `padded` rows.
[[gnu::noinline]] void copy_rows(const AttentionMatrix<const float>& m, int64_t begin, int64_t count, int64_t head_dim,
                                 int64_t padded, int64_t width, float* to) {
  for (int64_t i = 0; i < padded; ++i) {
    float* out = to + i * width;
    int64_t d = 0;
    if (i < count) {
      const float* row = m.data + (begin + i) * m.row_stride;
      if (m.col_stride == 1) {
        for (; d + simd::kLanes <= head_dim; d += simd::kLanes) simd::store(out + d, simd::load(row + d));
      }
      for (; d < head_dim; ++d) out[d] = row[d * m.col_stride];
    }
    for (; d < width; ++d) out[d] = 0;
  }
}

// Rows that lie a multiple of 1 KiB apart fall into few cache sets: 64 of them would evict each other.
bool crowds_cache(int64_t row_stride) { return row_stride % 256 == 0; }

// The block itself when its layout allows, otherwise a copy in `scratch`.
Rows block_rows(const AttentionMatrix<const float>& m, int64_t begin, int64_t count, int64_t head_dim, int64_t padded,
                int64_t width, float* scratch) {
  if (m.col_stride == 1 && head_dim == width && count == padded && !crowds_cache(m.row_stride)) {
    return {m.data + begin * m.row_stride, m.row_stride};
  }
  copy_rows(m, begin, count, head_dim, padded, width, scratch);
  return {scratch, width};
}

// out[d][i] = m[begin + i][d], kBlock columns, `width` rows; zeros outside the matrix. `scratch`: [kBlock, width].
[[gnu::noinline]] void transpose_rows(const AttentionMatrix<const float>& m, int64_t begin, int64_t count,
                                      int64_t head_dim, int64_t width, float* scratch, float* out) {
  alignas(64) static const float zeros[kAttentionMaxHeadDim] = {};
  const bool in_place = m.col_stride == 1 && head_dim == width;
  if (!in_place) copy_rows(m, begin, count, head_dim, count, width, scratch);
  const float* base = in_place ? m.data + begin * m.row_stride : scratch;
  const int64_t stride = in_place ? m.row_stride : width;
  for (int64_t i = 0; i < kBlock; i += simd::kLanes) {
    const float* rows[simd::kLanes];
    for (int64_t r = 0; r < simd::kLanes; ++r) rows[r] = i + r < count ? base + (i + r) * stride : zeros;
    for (int64_t d = 0; d < width; d += 4) transpose_strip(rows, d, out + d * kBlock + i, kBlock);
  }
}

// Where the scores of a pair of blocks are wanted: all of it, or the causal half of a diagonal block.
struct BlockPair {
  int64_t num_queries, num_keys;  // real ones, at most kBlock
  bool diagonal;                  // query i sees keys 0..i of the block
  int64_t padded_keys() const { return round_up(num_keys, kGroup); }
  int64_t padded_queries() const { return round_up(num_queries, kGroup); }
  // Keys (a multiple of kGroup, or all) that queries up to the end of group q of kGroup see.
  int64_t keys_for(int64_t first_query) const {
    return diagonal ? smaller(first_query + kGroup, padded_keys()) : padded_keys();
  }
};

// to[key][query] = left[key] . right[:, query], skipping tiles above the diagonal.
void scores(const BlockPair& pair, int64_t width, Rows left, const float* right, float* to) {
  const int64_t keys = pair.padded_keys(), queries = pair.padded_queries();
  if (!pair.diagonal) {
    product<false>(keys, queries, width, left.data, left.stride, right, kBlock, to, kBlock);
    return;
  }
  for (int64_t k = 0; k < keys && k < queries; k += kGroup) {
    product<false>(kGroup, queries - k, width, left.data + k * left.stride, left.stride, right + k, kBlock,
                   to + k * kBlock + k, kBlock);
  }
}

// to[query] (+)= sum over keys of weights[key][query] * right[key]: O from P^T and V, dQ from dS^T and K.
void sum_over_keys(const BlockPair& pair, int64_t width, const float* weights, Rows right, float* to, Accumulate how) {
  const int64_t queries = pair.padded_queries();
  if (!pair.diagonal) {
    product<true>(queries, width, pair.num_keys, weights, kBlock, right.data, right.stride, to, width, how);
    return;
  }
  for (int64_t q = 0; q < queries; q += kGroup) {
    Accumulate here = how;
    if (here.row_scale != nullptr) here.row_scale += q;
    product<true>(kGroup, width, smaller(pair.keys_for(q), pair.num_keys), weights + q, kBlock, right.data,
                  right.stride, to + q * width, width, here);
  }
}

// to[key] (+)= sum over queries of weights[key][query] * right[query]: dV from P^T and dO, dK from dS^T and Q.
void sum_over_queries(const BlockPair& pair, int64_t width, const float* weights, Rows right, float* to,
                      int64_t to_stride, bool add) {
  const int64_t keys = pair.padded_keys();
  if (!pair.diagonal) {
    product<false>(keys, width, pair.num_queries, weights, kBlock, right.data, right.stride, to, to_stride,
                   {add, nullptr});
    return;
  }
  for (int64_t k = 0; k < keys; k += kGroup) {
    const int64_t depth = pair.num_queries > k ? pair.num_queries - k : 0;
    product<false>(kGroup, width, depth, weights + k * kBlock + k, kBlock, right.data + k * right.stride, right.stride,
                   to + k * to_stride, to_stride, {add, nullptr});
  }
}

}  // namespace
}  // namespace blutensor
