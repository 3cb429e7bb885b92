// Attention on float32 with vectors: forward, backward and decode. Include after vector_<isa>.h.
//
// What: output = softmax(scale * Q K^T [+ causal mask]) V and its gradients, for one (batch, head) pair.
// Algorithm: blocks of 64 queries x 64 keys. Scores are computed transposed, [keys, queries]: a lane is a query, so that the
//   statistics of the online softmax need no work across lanes. Only Q (and dO in backward) is transposed, once per block of
//   queries; K and V are read where they are, or copied to scratch where their layout does not suit. In a causal diagonal block,
//   16 x 16 tiles above the diagonal are skipped.
//     forward   S^T = K Q^T,  P^T = 2^(c S^T - m),  O = O * 2^(m_old - m) + P V          with c = scale * log2(e)
//     backward  S^T, P^T = 2^(c S^T - lse2),  dP^T = V dO^T,  dS^T = scale * P^T (dP^T - delta),
//               dV += P^T dO,  dK += dS^T Q,  dQ += dS K                                delta = rowsum(dO * O) - dlse
// Work: 4 T S D FLOPs forward, 10 T S D backward (half of it when causal); reads and writes T D and S D elements per block row.
// Scratch: on the stack, a few tens of KiB (see the structs), independent of T and S.
// Assumes: nothing about alignment or overlap of inputs; outputs have unit column stride.
#pragma once

#include "ops/attention/attention_kernels.h"
#include "ops/attention/product_simd.h"

namespace {

using blutensor::AttentionMatrix;
using blutensor::kAttentionMaxHeadDim;

constexpr int64_t kBlock = blutensor::kAttentionQueryBlock;  // queries, and keys, of a block
constexpr int64_t kGroup = 16;                               // granularity of causal skipping and of padding
constexpr float kLog2E = 1.44269504088896340736f;
constexpr float kLn2 = 0.693147180559945309417f;
constexpr float kInfinity = __builtin_inff();

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
        for (; d + Vector::kWidth <= head_dim; d += Vector::kWidth) Vector::store(out + d, Vector::load(row + d));
      }
      for (; d < head_dim; ++d) out[d] = row[d * m.col_stride];
    }
    for (; d < width; ++d) out[d] = 0;
  }
}

// Rows that lie a multiple of 1 KiB apart fall into few cache sets: 64 of them would evict each other.
bool crowds_cache(int64_t row_stride) { return row_stride % 1024 == 0; }

// The block itself when its layout allows, otherwise a copy in `scratch`.
Rows block_rows(const AttentionMatrix<const float>& m, int64_t begin, int64_t count, int64_t head_dim, int64_t padded,
                int64_t width, float* scratch) {
  if (m.col_stride == 1 && head_dim == width && count == padded && !crowds_cache(m.row_stride)) {
    return {m.data + begin * m.row_stride, m.row_stride};
  }
  copy_rows(m, begin, count, head_dim, padded, width, scratch);
  return {scratch, width};
}

// out[d][i] = sign * m[begin + i][d], kBlock columns, `width` rows; zeros outside the matrix. `scratch`: [kBlock, width].
[[gnu::noinline]] void transpose_rows(const AttentionMatrix<const float>& m, int64_t begin, int64_t count, int64_t head_dim,
                                      int64_t width, float* scratch, float* out) {
  alignas(64) static const float zeros[kAttentionMaxHeadDim] = {};
  const bool in_place = m.col_stride == 1 && head_dim == width;
  if (!in_place) copy_rows(m, begin, count, head_dim, count, width, scratch);
  const float* base = in_place ? m.data + begin * m.row_stride : scratch;
  const int64_t stride = in_place ? m.row_stride : width;
  for (int64_t i = 0; i < kBlock; i += Vector::kWidth) {
    const float* rows[Vector::kWidth];
    for (int64_t r = 0; r < Vector::kWidth; ++r) rows[r] = i + r < count ? base + (i + r) * stride : zeros;
    for (int64_t d = 0; d < width; d += 4) Vector::transpose_strip(rows, d, out + d * kBlock + i, kBlock);
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
    product<true>(kGroup, width, smaller(pair.keys_for(q), pair.num_keys), weights + q, kBlock, right.data, right.stride,
                  to + q * width, width, here);
  }
}

[[maybe_unused]]
// to[key] (+)= sum over queries of weights[key][query] * right[query]: dV from P^T and dO, dK from dS^T and Q.
void sum_over_queries(const BlockPair& pair, int64_t width, const float* weights, Rows right, float* to, int64_t to_stride,
                      bool add) {
  const int64_t keys = pair.padded_keys();
  if (!pair.diagonal) {
    product<false>(keys, width, pair.num_queries, weights, kBlock, right.data, right.stride, to, to_stride, {add, nullptr});
    return;
  }
  for (int64_t k = 0; k < keys; k += kGroup) {
    const int64_t depth = pair.num_queries > k ? pair.num_queries - k : 0;
    product<false>(kGroup, width, depth, weights + k * kBlock + k, kBlock, right.data + k * right.stride, right.stride,
                   to + k * to_stride, to_stride, {add, nullptr});
  }
}

// ---------------------------------------------------------------- forward

struct ForwardScratch {
  alignas(64) float query_t[kAttentionMaxHeadDim * kBlock];
  alignas(64) float weights[kBlock * kBlock];
  alignas(64) float output[kBlock * kAttentionMaxHeadDim];
  alignas(64) float copy[kBlock * kAttentionMaxHeadDim];
  alignas(64) float maximum[kBlock];  // of scores (before scale), per query
  alignas(64) float sum[kBlock];      // of 2^(c s - c max)
  alignas(64) float correction[kBlock];
};

// Online softmax of one block of scores [keys, queries]: turns them into probabilities relative to the new maximum and
// brings maximum, sum and correction up to date.
void softmax_block(const BlockPair& pair, float c, bool first, ForwardScratch& s) {
  using V = Vector;
  const V::Reg scale = V::set1(c), lowest = V::set1(-kInfinity), lanes = V::lane_index();
  for (int64_t q = 0; q < pair.padded_queries(); q += V::kWidth) {
    float* column = s.weights + q;
    const int64_t keys = smaller(pair.keys_for(q / kGroup * kGroup), pair.num_keys);
    if (pair.diagonal) {  // mask the triangle: query lane sees key k when lane >= k - q
      for (int64_t k = q; k < keys; ++k) {
        const V::Reg x = V::load(column + k * kBlock);
        V::store(column + k * kBlock, V::select_ge(lanes, V::set1(static_cast<float>(k - q)), x, lowest));
      }
    }
    V::Reg top[4] = {lowest, lowest, lowest, lowest};
    int64_t k = 0;
    for (; k + 4 <= keys; k += 4) {
#pragma GCC unroll 4
      for (int u = 0; u < 4; ++u) top[u] = V::max(V::load(column + (k + u) * kBlock), top[u]);
    }
    for (; k < keys; ++k) top[0] = V::max(V::load(column + k * kBlock), top[0]);
    const V::Reg before = first ? lowest : V::load(s.maximum + q);
    const V::Reg now = V::max(V::max(V::max(top[0], top[1]), V::max(top[2], top[3])), before);
    // While every score is -inf there is nothing to be relative to: 0 keeps the exponents at -inf instead of NaN.
    const V::Reg shift = V::mul(V::select_eq(now, lowest, V::zero(), now), scale);
    const V::Reg negative = V::sub(V::zero(), shift);
    V::Reg total[4] = {V::zero(), V::zero(), V::zero(), V::zero()};
    for (k = 0; k + 4 <= keys; k += 4) {
#pragma GCC unroll 4
      for (int u = 0; u < 4; ++u) {
        const V::Reg p = V::exp2(V::fma(V::load(column + (k + u) * kBlock), scale, negative));
        V::store(column + (k + u) * kBlock, p);
        total[u] = V::add(total[u], p);
      }
    }
    for (; k < keys; ++k) {
      const V::Reg p = V::exp2(V::fma(V::load(column + k * kBlock), scale, negative));
      V::store(column + k * kBlock, p);
      total[0] = V::add(total[0], p);
    }
    V::Reg sum = V::add(V::add(total[0], total[1]), V::add(total[2], total[3]));
    if (!first) {
      const V::Reg correction = V::exp2(V::fma(before, scale, negative));
      V::store(s.correction + q, correction);
      sum = V::fma(V::load(s.sum + q), correction, sum);
    }
    V::store(s.maximum + q, now);
    V::store(s.sum + q, sum);
  }
}

void attention_forward(const blutensor::AttentionForward<float, float>& args) {
  using V = Vector;
  ForwardScratch s;
  const int64_t head_dim = args.head_dim, width = round_up(head_dim, kGroup);
  const int64_t num_queries = args.query_end - args.query_begin;
  // A negative scale moves its sign into the queries, so that the largest score stays the largest after scaling.
  const float c = static_cast<float>(args.scale * 1.44269504088896340736);
  const float magnitude = c < 0 ? -c : c;

  // ---- prologue: queries, transposed
  transpose_rows(args.query, args.query_begin, num_queries, head_dim, width, s.copy, s.query_t);
  if (c < 0) {
    for (int64_t i = 0; i < width * kBlock; ++i) s.query_t[i] = -s.query_t[i];
  }

  // ---- main loop over blocks of keys
  const int64_t visible = args.causal ? smaller(args.num_keys, args.query_end) : args.num_keys;
  for (int64_t key = 0; key < visible; key += kBlock) {
    BlockPair pair{num_queries, smaller(kBlock, args.num_keys - key), args.causal && key == args.query_begin};
    const bool first = key == 0;
    const Rows keys = block_rows(args.key, key, pair.num_keys, head_dim, pair.padded_keys(), width, s.copy);
    scores(pair, width, keys, s.query_t, s.weights);
    softmax_block(pair, magnitude, first, s);
    const Rows values = block_rows(args.value, key, pair.num_keys, head_dim, pair.num_keys, width, s.copy);
    sum_over_keys(pair, width, s.weights, values, s.output, {!first, first ? nullptr : s.correction});
  }

  // ---- epilogue: normalise, write rows and logsumexp
  for (int64_t i = 0; i < num_queries; ++i) {
    float* out = args.output.data + (args.query_begin + i) * args.output.row_stride;
    if (visible == 0) {
      for (int64_t d = 0; d < head_dim; ++d) out[d] = 0;
      args.logsumexp[args.query_begin + i] = -kInfinity;
      continue;
    }
    const V::Reg inverse = V::set1(1.0f / s.sum[i]);
    const float* row = s.output + i * width;
    int64_t d = 0;
    for (; d + V::kWidth <= head_dim; d += V::kWidth) V::store(out + d, V::mul(V::load(row + d), inverse));
    if (d < head_dim) V::store_partial(out + d, head_dim - d, V::mul(V::load(row + d), inverse));
    args.logsumexp[args.query_begin + i] = s.maximum[i] * (magnitude * kLn2) + __builtin_logf(s.sum[i]);
  }
}

}  // namespace
