// Attention on float32 with vectors: one query against a cache of keys and values.
//
// Algorithm: blocks of 64 keys; a score is a dot product over the head dimension, the output grows by p * value row;
// online softmax between blocks. Reads every key and value once (8 D bytes per key) and does 4 D FLOPs with them:
// bound by memory.
// Assumes: output has unit column stride; keys, values and query may have any strides (rows with gaps are copied to
//   the stack).
#pragma once

#include <blublas/simd/exp2.h>

#include "ops/attention/blocks_simd.h"

namespace blutensor {
namespace {

struct DecodeScratch {
  alignas(64) float query[kAttentionMaxHeadDim];
  alignas(64) float scores[kBlock];
  alignas(64) float output[kAttentionMaxHeadDim];
  alignas(64) float copy[kBlock * kAttentionMaxHeadDim];  // touched only where a layout does not suit
};

// Rows as the loops below want them: unit column stride, a multiple of the vector width readable.
Rows decode_rows(const AttentionMatrix<const float>& m, int64_t begin, int64_t count, int64_t head_dim, int64_t width,
                 float* copy) {
  if (m.col_stride == 1 && head_dim == width) return {m.data + begin * m.row_stride, m.row_stride};
  copy_rows(m, begin, count, head_dim, count, width, copy);
  return {copy, width};
}

void attention_decode(const AttentionDecode<float>& args) {
  DecodeScratch s;
  const int64_t head_dim = args.head_dim, width = round_up(head_dim, kGroup);
  const float sign = args.scale < 0 ? -1.0f : 1.0f, c = sign * static_cast<float>(args.scale * 1.44269504088896340736);
  copy_rows(args.query, 0, 1, head_dim, 1, width, s.query);
  for (int64_t d = 0; d < width; ++d) s.output[d] = 0;
  float maximum = -kInfinity, total = 0;
  for (int64_t key = 0; key < args.num_keys; key += kBlock) {
    const int64_t count = smaller(kBlock, args.num_keys - key);
    const Rows keys = decode_rows(args.key, key, count, head_dim, width, s.copy);
    float top = maximum;
    for (int64_t j = 0; j < count; ++j) {
      const float* row = keys.data + j * keys.stride;
      F sum = simd::broadcast(0.0f);
      for (int64_t d = 0; d < width; d += simd::kLanes)
        sum = simd::fma(simd::load(s.query + d), simd::load(row + d), sum);
      s.scores[j] = sum_lanes(sum) * sign;
      top = s.scores[j] > top ? s.scores[j] : top;
    }
    for (int64_t j = count; j < kBlock; ++j) s.scores[j] = -kInfinity;
    const float shift = top == -kInfinity ? 0 : top;
    F sum = simd::broadcast(0.0f);
    for (int64_t j = 0; j < kBlock; j += simd::kLanes) {
      const F p = simd::exp2_flushed((simd::load(s.scores + j) - simd::broadcast(shift)) * simd::broadcast(c));
      simd::store(s.scores + j, p);
      sum = sum + p;
    }
    alignas(64) float correction[simd::kLanes];
    simd::store(correction, simd::exp2_flushed(simd::broadcast((maximum - shift) * c)));
    total = total * correction[0] + sum_lanes(sum);
    maximum = top;
    const Rows values = decode_rows(args.value, key, count, head_dim, width, s.copy);
    for (int64_t d = 0; d < width; d += simd::kLanes) {
      F out[2] = {simd::load(s.output + d) * simd::broadcast(correction[0]), simd::broadcast(0.0f)};
      const float* column = values.data + d;
      int64_t j = 0;
      for (; j + 2 <= count; j += 2) {
        out[0] = simd::fma(simd::broadcast(s.scores[j]), simd::load(column + j * values.stride), out[0]);
        out[1] = simd::fma(simd::broadcast(s.scores[j + 1]), simd::load(column + (j + 1) * values.stride), out[1]);
      }
      if (j < count) out[0] = simd::fma(simd::broadcast(s.scores[j]), simd::load(column + j * values.stride), out[0]);
      simd::store(s.output + d, out[0] + out[1]);
    }
  }
  for (int64_t d = 0; d < head_dim; ++d) args.output.data[d] = s.output[d] / total;
}

}  // namespace
}  // namespace blutensor
