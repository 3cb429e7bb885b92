// Attention on float32 with vectors: gradients. See forward_simd.h for the algorithm.
//
// One call does one (batch, head) pair, blocks of queries outside, blocks of keys inside, always in ascending order:
// dq of a block stays in scratch, dk and dv grow in the output. The order of sums is fixed by T and S alone.
#pragma once

#include <blublas/simd/exp2.h>

#include "ops/attention/blocks_simd.h"

namespace blutensor {
namespace {

struct BackwardScratch {
  alignas(64) float query_t[kAttentionMaxHeadDim * kBlock];
  alignas(64) float grad_t[kAttentionMaxHeadDim * kBlock];  // of the output
  alignas(64) float weights[kBlock * kBlock];               // scores, then P^T
  alignas(64) float grad_scores[kBlock * kBlock];           // dP^T, then dS^T
  alignas(64) float grad_query[kBlock * kAttentionMaxHeadDim];
  alignas(64) float logsumexp2[kBlock];  // base 2
  alignas(64) float delta[kBlock];
  // Touched only where a layout does not suit.
  alignas(64) float query_copy[kBlock * kAttentionMaxHeadDim];
  alignas(64) float grad_copy[kBlock * kAttentionMaxHeadDim];
  alignas(64) float key_copy[kBlock * kAttentionMaxHeadDim];
  alignas(64) float value_copy[kBlock * kAttentionMaxHeadDim];
  alignas(64) float partial[kBlock * kAttentionMaxHeadDim];
};

// Scores and dP (both [keys, queries]) become P and dS.
void softmax_gradient_block(const BlockPair& pair, float c, float scale, BackwardScratch& s) {
  const F lanes = lane_index(), base2 = simd::broadcast(c), factor = simd::broadcast(scale),
          none = simd::broadcast(0.0f);
  for (int64_t q = 0; q < pair.padded_queries(); q += simd::kLanes) {
    const int64_t keys = smaller(pair.keys_for(q / kGroup * kGroup), pair.num_keys);
    const F negative = simd::negate(simd::load(s.logsumexp2 + q)), delta = simd::load(s.delta + q);
    // Keys before `full` are seen by every lane.
    const int64_t full = pair.diagonal ? smaller(q, keys) : keys;
    float* weights = s.weights + q;
    float* grads = s.grad_scores + q;
#pragma GCC unroll 4
    for (int64_t k = 0; k < full; ++k) {
      const F p = simd::exp2_flushed(simd::fma(simd::load(weights + k * kBlock), base2, negative));
      simd::store(weights + k * kBlock, p);
      simd::store(grads + k * kBlock, (p * factor) * (simd::load(grads + k * kBlock) - delta));
    }
    for (int64_t k = full; k < keys; ++k) {
      const simd::M hidden = simd::less(lanes, simd::broadcast(static_cast<float>(k - q)));
      const F p = simd::exp2_flushed(simd::fma(simd::load(weights + k * kBlock), base2, negative));
      const F ds = (p * factor) * (simd::load(grads + k * kBlock) - delta);
      simd::store(weights + k * kBlock, simd::select(hidden, none, p));
      simd::store(grads + k * kBlock, simd::select(hidden, none, ds));
    }
  }
}

// Rows [begin, begin + count) of `to` (+)= sum over queries of weights * right.
void add_to_output(const BlockPair& pair, int64_t head_dim, int64_t width, const float* weights, Rows right,
                   const AttentionMatrix<float>& to, int64_t begin, bool add, float* partial) {
  float* out = to.data + begin * to.row_stride;
  if (head_dim == width && pair.num_keys == pair.padded_keys()) {
    sum_over_queries(pair, width, weights, right, out, to.row_stride, add);
    return;
  }
  sum_over_queries(pair, width, weights, right, partial, width, false);
  for (int64_t i = 0; i < pair.num_keys; ++i) {
    for (int64_t d = 0; d < head_dim; ++d) {
      float& element = out[i * to.row_stride + d];
      element = add ? element + partial[i * width + d] : partial[i * width + d];
    }
  }
}

void attention_backward(const AttentionBackward<float, float>& args) {
  BackwardScratch s;
  const int64_t head_dim = args.head_dim, width = round_up(head_dim, kGroup);
  const float scale = static_cast<float>(args.scale), c = static_cast<float>(args.scale * 1.44269504088896340736);
  int64_t written_keys = 0;  // rows of dk and dv that hold something

  for (int64_t query = 0; query < args.num_queries; query += kBlock) {
    // ---- prologue of a block of queries: both layouts of Q and dO, statistics
    const int64_t count = smaller(kBlock, args.num_queries - query);
    transpose_rows(args.query, query, count, head_dim, width, s.query_copy, s.query_t);
    transpose_rows(args.grad_output, query, count, head_dim, width, s.grad_copy, s.grad_t);
    const Rows outputs = block_rows(args.output, query, count, head_dim, count, width, s.key_copy);
    const Rows queries = block_rows(args.query, query, count, head_dim, count, width, s.query_copy);
    const Rows grads = block_rows(args.grad_output, query, count, head_dim, count, width, s.grad_copy);
    for (int64_t i = 0; i < kBlock; ++i) {
      s.logsumexp2[i] = s.delta[i] = 0;
      if (i >= count) continue;
      F sum = simd::broadcast(0.0f);
      for (int64_t d = 0; d < width; d += simd::kLanes) {
        sum = simd::fma(simd::load(outputs.data + i * outputs.stride + d),
                        simd::load(grads.data + i * grads.stride + d), sum);
      }
      s.delta[i] = sum_lanes(sum);
      if (args.grad_logsumexp) s.delta[i] -= args.grad_logsumexp[(query + i) * args.grad_logsumexp_stride];
      s.logsumexp2[i] = args.logsumexp[query + i] * kLog2E;
    }

    // ---- main loop over blocks of keys
    const int64_t visible = args.causal ? smaller(args.num_keys, query + count) : args.num_keys;
    for (int64_t key = 0; key < visible; key += kBlock) {
      const BlockPair pair{count, smaller(kBlock, args.num_keys - key), args.causal && key == query};
      const bool add = key < written_keys;
      const Rows keys = block_rows(args.key, key, pair.num_keys, head_dim, pair.padded_keys(), width, s.key_copy);
      const Rows values = block_rows(args.value, key, pair.num_keys, head_dim, pair.padded_keys(), width, s.value_copy);
      scores(pair, width, keys, s.query_t, s.weights);
      scores(pair, width, values, s.grad_t, s.grad_scores);
      softmax_gradient_block(pair, c, scale, s);
      add_to_output(pair, head_dim, width, s.weights, grads, args.grad_value, key, add, s.partial);
      add_to_output(pair, head_dim, width, s.grad_scores, queries, args.grad_key, key, add, s.partial);
      sum_over_keys(pair, width, s.grad_scores, keys, s.grad_query, {key > 0, nullptr});
    }
    written_keys = visible == 0 ? written_keys : smaller(args.num_keys, round_up(visible, kBlock));

    // ---- epilogue of a block of queries
    for (int64_t i = 0; i < count; ++i) {
      float* out = args.grad_query.data + (query + i) * args.grad_query.row_stride;
      for (int64_t d = 0; d < head_dim; ++d) out[d] = visible == 0 ? 0.0f : s.grad_query[i * width + d];
    }
  }

  // Keys that no query sees.
  for (int64_t key = written_keys; key < args.num_keys; ++key) {
    for (int64_t d = 0; d < head_dim; ++d) {
      args.grad_key.data[key * args.grad_key.row_stride + d] = 0;
      args.grad_value.data[key * args.grad_value.row_stride + d] = 0;
    }
  }
}

}  // namespace
}  // namespace blutensor
