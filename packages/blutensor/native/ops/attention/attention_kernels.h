// Kernel signatures of attention. One call handles one (batch, head) pair or a block of its queries; attention.cpp
// owns the loops over pairs and threads. Plain structs and pointers only.
//
// Legend: T queries, S keys, D head dimension. Strides are in elements. Scores are scale * q . k.
#pragma once

#include <cstdint>

namespace blutensor {

// A [rows, D] matrix of one (batch, head) pair.
template <class T>
struct AttentionMatrix {
  T* data = nullptr;
  int64_t row_stride = 0;
  int64_t col_stride = 1;
};

// Queries and keys are cut into blocks of this many rows, for every kernel and every number of threads.
inline constexpr int64_t kAttentionBlock = 64;
inline constexpr int64_t kAttentionMaxHeadDim = 256;

// Queries [query_begin, query_end) of one pair against all keys: writes their rows of `output` and `logsumexp`.
// query_begin is a multiple of kAttentionBlock and the range has at most that many rows.
template <class T, class Stat>
struct AttentionForward {
  AttentionMatrix<const T> query;  // [T, D]
  AttentionMatrix<const T> key;    // [S, D]
  AttentionMatrix<const T> value;  // [S, D]
  AttentionMatrix<T> output;       // [T, D], col_stride 1
  Stat* logsumexp = nullptr;       // [T], natural logarithm of the sum of exp(scores)
  int64_t num_keys = 0, head_dim = 0;
  int64_t query_begin = 0, query_end = 0;
  bool causal = false;  // query i sees keys 0 .. i
  double scale = 1;
};

// All of one pair: writes grad_query, grad_key and grad_value (col_stride 1) completely.
template <class T, class Stat>
struct AttentionBackward {
  AttentionMatrix<const T> query, key, value;    // as above
  AttentionMatrix<const T> output, grad_output;  // [T, D]
  const Stat* logsumexp = nullptr;               // [T]
  const Stat* grad_logsumexp = nullptr;          // [T] at grad_logsumexp_stride, or nullptr
  int64_t grad_logsumexp_stride = 1;
  Stat* delta = nullptr;  // [T], scratch
  AttentionMatrix<T> grad_query, grad_key, grad_value;
  int64_t num_queries = 0, num_keys = 0, head_dim = 0;
  bool causal = false;
  double scale = 1;
};

// One query row against num_keys cache rows.
template <class T>
struct AttentionDecode {
  AttentionMatrix<const T> query;       // [1, D]
  AttentionMatrix<const T> key, value;  // [num_keys, D]
  AttentionMatrix<T> output;            // [1, D], col_stride 1
  int64_t num_keys = 0, head_dim = 0;   // num_keys >= 1
  double scale = 1;
};

// The float32 kernels, in the version that suits the CPU.
struct AttentionKernels {
  void (*forward)(const AttentionForward<float, float>&) = nullptr;
  void (*backward)(const AttentionBackward<float, float>&) = nullptr;
  void (*decode)(const AttentionDecode<float>&) = nullptr;
};

void use_reference(AttentionKernels& kernels);
void use_avx2(AttentionKernels& kernels);
void use_avx512(AttentionKernels& kernels);

// Every floating dtype; statistics and sums in float32 (float64 for float64). Instantiated in reference.cpp.
template <class T, class Stat>
void attention_forward_reference(const AttentionForward<T, Stat>& args);
template <class T, class Stat>
void attention_backward_reference(const AttentionBackward<T, Stat>& args);
template <class T>
void attention_decode_reference(const AttentionDecode<T>& args);

}  // namespace blutensor
