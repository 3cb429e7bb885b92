// Attention on float32 with vectors: forward.
//
// What: output = softmax(scale * Q K^T [+ causal mask]) V and its gradients, for one (batch, head) pair.
// Algorithm: blocks of 64 queries x 64 keys (FlashAttention-2). Scores are computed transposed, [keys, queries]: a lane
//   is a query, so that the statistics of the online softmax need no work across lanes. Only Q (and dO in backward) is
//   transposed, once per block of queries; K and V are read where they are, or copied to scratch where their layout does
//   not suit. In a causal diagonal block, 16 x 16 tiles above the diagonal are skipped. With c = scale * log2(e):
//     forward   S^T = K Q^T,  P^T = 2^(c (S^T - m)),  O = O * 2^(c (m_old - m)) + P V
//     backward  S^T,  P^T = 2^(c S^T - lse2),  dP^T = V dO^T,  dS^T = scale * P^T (dP^T - delta),
//               dV += P^T dO,  dK += dS^T Q,  dQ += dS K,  with delta = rowsum(dO * O) - dlse
// Work: 4 T S D FLOPs forward, 10 T S D backward (half of it when causal); per block of queries, reads 2 S D elements.
// Scratch: on the stack, independent of T and S. At D = 64 a task touches 70 KiB (backward 90 KiB), at D = 256 up to
//   550 KiB.
// Assumes: nothing about alignment or overlap of inputs; outputs have unit column stride.
// Benchmark: benchmarks/bench_attention.py
#pragma once

#include <blublas/simd/exp2.h>

#include "ops/attention/blocks_simd.h"

namespace blutensor {
namespace {

struct ForwardScratch {
  alignas(64) float query_t[kAttentionMaxHeadDim * kBlock];
  alignas(64) float weights[kBlock * kBlock];
  alignas(64) float output[kBlock * kAttentionMaxHeadDim];
  alignas(64) float copy[kBlock * kAttentionMaxHeadDim];
  alignas(64) float maximum[kBlock];  // of scores (before scale), per query
  alignas(64) float sum[kBlock];      // of 2^(c (s - max))
  alignas(64) float correction[kBlock];
};

// Online softmax of one block of scores [keys, queries]: turns them into probabilities relative to the new maximum
// and brings maximum, sum and correction up to date.
void softmax_block(const BlockPair& pair, float c, bool first, ForwardScratch& s) {
  const F scale = simd::broadcast(c), lowest = simd::broadcast(-kInfinity), lanes = lane_index();
  for (int64_t q = 0; q < pair.padded_queries(); q += simd::kLanes) {
    float* column = s.weights + q;
    const int64_t keys = smaller(pair.keys_for(q / kGroup * kGroup), pair.num_keys);
    if (pair.diagonal) {  // mask the triangle: query lane sees key k when lane >= k - q
      for (int64_t k = q; k < keys; ++k) {
        const F x = simd::load(column + k * kBlock);
        simd::store(column + k * kBlock,
                    simd::select(simd::less(lanes, simd::broadcast(static_cast<float>(k - q))), lowest, x));
      }
    }
    F top[4] = {lowest, lowest, lowest, lowest};
    int64_t k = 0;
    for (; k + 4 <= keys; k += 4) {
#pragma GCC unroll 4
      for (int u = 0; u < 4; ++u) top[u] = simd::max(simd::load(column + (k + u) * kBlock), top[u]);
    }
    for (; k < keys; ++k) top[0] = simd::max(simd::load(column + k * kBlock), top[0]);
    const F before = first ? lowest : simd::load(s.maximum + q);
    const F now = simd::max(simd::max(simd::max(top[0], top[1]), simd::max(top[2], top[3])), before);
    // While every score is -inf there is nothing to be relative to: 0 keeps the exponents at -inf instead of NaN.
    const F shift = simd::select(simd::equal(now, lowest), simd::broadcast(0.0f), now);
    F total[4] = {simd::broadcast(0.0f), simd::broadcast(0.0f), simd::broadcast(0.0f), simd::broadcast(0.0f)};
    for (k = 0; k + 4 <= keys; k += 4) {
#pragma GCC unroll 4
      for (int u = 0; u < 4; ++u) {
        const F p = simd::exp2_flushed((simd::load(column + (k + u) * kBlock) - shift) * scale);
        simd::store(column + (k + u) * kBlock, p);
        total[u] = total[u] + p;
      }
    }
    for (; k < keys; ++k) {
      const F p = simd::exp2_flushed((simd::load(column + k * kBlock) - shift) * scale);
      simd::store(column + k * kBlock, p);
      total[0] = total[0] + p;
    }
    F sum = (total[0] + total[1]) + (total[2] + total[3]);
    if (!first) {
      const F correction = simd::exp2_flushed((before - shift) * scale);
      simd::store(s.correction + q, correction);
      sum = simd::fma(simd::load(s.sum + q), correction, sum);
    }
    simd::store(s.maximum + q, now);
    simd::store(s.sum + q, sum);
  }
}

void attention_forward(const AttentionForward<float, float>& args) {
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
    const F inverse = simd::broadcast(1.0f / s.sum[i]);
    const float* row = s.output + i * width;
    int64_t d = 0;
    for (; d + simd::kLanes <= head_dim; d += simd::kLanes) simd::store(out + d, simd::load(row + d) * inverse);
    if (d < head_dim) simd::store_first(out + d, simd::load(row + d) * inverse, head_dim - d);
    args.logsumexp[args.query_begin + i] =
        static_cast<float>(static_cast<double>(s.maximum[i]) * (args.scale < 0 ? -args.scale : args.scale) +
                           static_cast<double>(__builtin_logf(s.sum[i])));
  }
}

}  // namespace
}  // namespace blutensor
