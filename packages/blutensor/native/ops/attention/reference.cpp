// Attention for every floating dtype, in plain C++: what the vectorised kernels must agree with, and what serves
// float64 and the 16-bit floats.
//
// Forward is the online softmax over blocks of keys for one query at a time. Backward takes two passes that recompute
// the probabilities, one per query (dq) and one per key (dk, dv): every sum is local and in a fixed order. All
// arithmetic is float64.
// Work: 4 T S D FLOPs forward, 14 T S D backward.
#include <cmath>
#include <limits>

#include "ops/attention/attention_kernels.h"
#include "tensor/dtype.h"

namespace blutensor {

namespace {

template <class T>
double to_double(T x) {
  return static_cast<double>(static_cast<compute_t<T>>(x));
}
template <class T>
T from_double(double x) {
  return static_cast<T>(static_cast<compute_t<T>>(x));
}

// One row of D elements.
struct Row {
  double at[kAttentionMaxHeadDim];

  template <class T>
  void read(const AttentionMatrix<const T>& m, int64_t row, int64_t head_dim) {
    const T* p = m.data + row * m.row_stride;
    for (int64_t d = 0; d < head_dim; ++d) at[d] = to_double(p[d * m.col_stride]);
  }
  template <class T>
  void write(const AttentionMatrix<T>& m, int64_t row, int64_t head_dim, double factor) const {
    T* p = m.data + row * m.row_stride;
    for (int64_t d = 0; d < head_dim; ++d) p[d] = from_double<T>(at[d] * factor);
  }
  void clear(int64_t head_dim) {
    for (int64_t d = 0; d < head_dim; ++d) at[d] = 0;
  }
  template <class T>
  double dot(const AttentionMatrix<const T>& m, int64_t row, int64_t head_dim) const {
    const T* p = m.data + row * m.row_stride;
    double sum = 0;
    for (int64_t d = 0; d < head_dim; ++d) sum += at[d] * to_double(p[d * m.col_stride]);
    return sum;
  }
  template <class T>
  void add(double factor, const AttentionMatrix<const T>& m, int64_t row, int64_t head_dim) {
    const T* p = m.data + row * m.row_stride;
    for (int64_t d = 0; d < head_dim; ++d) at[d] += factor * to_double(p[d * m.col_stride]);
  }
};

// Writes one row of output; returns its logsumexp.
template <class T>
double attend(const AttentionMatrix<const T>& query, int64_t row, const AttentionMatrix<const T>& key,
              const AttentionMatrix<const T>& value, int64_t num_keys, int64_t head_dim, double scale,
              const AttentionMatrix<T>& output) {
  constexpr double kLowest = -std::numeric_limits<double>::infinity();
  Row q, sum;
  q.read(query, row, head_dim);
  sum.clear(head_dim);
  double maximum = kLowest, total = 0, score[kAttentionBlock];
  for (int64_t begin = 0; begin < num_keys; begin += kAttentionBlock) {
    const int64_t count = num_keys - begin < kAttentionBlock ? num_keys - begin : kAttentionBlock;
    double top = maximum;
    for (int64_t j = 0; j < count; ++j) {
      score[j] = scale * q.dot(key, begin + j, head_dim);
      if (score[j] > top) top = score[j];
    }
    // While every score is -inf there is nothing to be relative to: 0 keeps the exponents at -inf instead of NaN.
    const double shift = top == kLowest ? 0.0 : top;
    const double correction = std::exp(maximum - shift);
    total *= correction;
    for (int64_t d = 0; d < head_dim; ++d) sum.at[d] *= correction;
    for (int64_t j = 0; j < count; ++j) {
      const double p = std::exp(score[j] - shift);
      total += p;
      sum.add(p, value, begin + j, head_dim);
    }
    maximum = top;
  }
  if (num_keys == 0) {
    sum.write(output, row, head_dim, 1);
    return kLowest;
  }
  sum.write(output, row, head_dim, 1 / total);
  return maximum + std::log(total);
}

}  // namespace

template <class T, class Stat>
void attention_forward_reference(const AttentionForward<T, Stat>& args) {
  for (int64_t i = args.query_begin; i < args.query_end; ++i) {
    const int64_t visible = args.causal && i + 1 < args.num_keys ? i + 1 : args.num_keys;
    args.logsumexp[i] =
        static_cast<Stat>(attend(args.query, i, args.key, args.value, visible, args.head_dim, args.scale, args.output));
  }
}

template <class T, class Stat>
void attention_backward_reference(const AttentionBackward<T, Stat>& args) {
  const int64_t head_dim = args.head_dim;
  const double scale = args.scale;
  Row query, grad, sum;
  for (int64_t i = 0; i < args.num_queries; ++i) {
    query.read(args.query, i, head_dim);
    grad.read(args.grad_output, i, head_dim);
    sum.clear(head_dim);
    double delta = grad.dot(args.output, i, head_dim);
    if (args.grad_logsumexp) delta -= args.grad_logsumexp[i * args.grad_logsumexp_stride];
    args.delta[i] = static_cast<Stat>(delta);
    const int64_t visible = args.causal && i + 1 < args.num_keys ? i + 1 : args.num_keys;
    for (int64_t j = 0; j < visible; ++j) {
      const double p = std::exp(scale * query.dot(args.key, j, head_dim) - args.logsumexp[i]);
      sum.add(p * (grad.dot(args.value, j, head_dim) - delta), args.key, j, head_dim);
    }
    sum.write(args.grad_query, i, head_dim, scale);
  }
  Row key, value, key_sum, value_sum;
  for (int64_t j = 0; j < args.num_keys; ++j) {
    key.read(args.key, j, head_dim);
    value.read(args.value, j, head_dim);
    key_sum.clear(head_dim);
    value_sum.clear(head_dim);
    for (int64_t i = args.causal ? j : 0; i < args.num_queries; ++i) {
      const double p = std::exp(scale * key.dot(args.query, i, head_dim) - args.logsumexp[i]);
      value_sum.add(p, args.grad_output, i, head_dim);
      key_sum.add(p * (value.dot(args.grad_output, i, head_dim) - args.delta[i]), args.query, i, head_dim);
    }
    key_sum.write(args.grad_key, j, head_dim, scale);
    value_sum.write(args.grad_value, j, head_dim, 1);
  }
}

template <class T>
void attention_decode_reference(const AttentionDecode<T>& args) {
  attend(args.query, 0, args.key, args.value, args.num_keys, args.head_dim, args.scale, args.output);
}

template void attention_forward_reference(const AttentionForward<float, float>&);
template void attention_forward_reference(const AttentionForward<double, double>&);
template void attention_forward_reference(const AttentionForward<bfloat16, float>&);
template void attention_forward_reference(const AttentionForward<float16, float>&);
template void attention_backward_reference(const AttentionBackward<float, float>&);
template void attention_backward_reference(const AttentionBackward<double, double>&);
template void attention_backward_reference(const AttentionBackward<bfloat16, float>&);
template void attention_backward_reference(const AttentionBackward<float16, float>&);
template void attention_decode_reference(const AttentionDecode<float>&);
template void attention_decode_reference(const AttentionDecode<double>&);
template void attention_decode_reference(const AttentionDecode<bfloat16>&);
template void attention_decode_reference(const AttentionDecode<float16>&);

void use_reference(AttentionKernels& kernels) {
  kernels = {attention_forward_reference<float, float>, attention_backward_reference<float, float>,
             attention_decode_reference<float>};
}

}  // namespace blutensor
