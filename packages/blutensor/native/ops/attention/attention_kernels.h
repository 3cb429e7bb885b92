// Kernel signatures of attention. One call handles one (batch, head) pair or a part of it; attention.cpp owns the loops
// over pairs and threads. Plain structs and pointers only: the ISA files include this header and nothing of the library.
//
// Legend: T queries, S keys, D head dimension. Strides are in elements. Scores are scale * q.k.
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

// Queries are cut into blocks of this many rows, for every kernel and every number of threads.
inline constexpr int64_t kAttentionQueryBlock = 64;
inline constexpr int64_t kAttentionMaxHeadDim = 256;

// Queries [query_begin, query_end) of one pair against all keys: writes their rows of `output` and `logsumexp`.
// query_begin is a multiple of kAttentionQueryBlock and the range has at most that many rows.
template <class T, class Stat>
struct AttentionForward {
  AttentionMatrix<const T> query;   // [T, D]
  AttentionMatrix<const T> key;     // [S, D]
  AttentionMatrix<const T> value;   // [S, D]
  AttentionMatrix<T> output;        // [T, D], col_stride 1
  Stat* logsumexp = nullptr;        // [T]
  int64_t num_keys = 0, head_dim = 0;
  int64_t query_begin = 0, query_end = 0;
  bool causal = false;
  double scale = 1;
};

// All of one pair: writes dq, dk and dv (col_stride 1) completely.
template <class T, class Stat>
struct AttentionBackward {
  AttentionMatrix<const T> query, key, value;      // as above
  AttentionMatrix<const T> output, grad_output;    // [T, D]
  const Stat* logsumexp = nullptr;                 // [T]
  const Stat* grad_logsumexp = nullptr;            // [T] at grad_logsumexp_stride, or nullptr
  int64_t grad_logsumexp_stride = 1;
  AttentionMatrix<T> grad_query, grad_key, grad_value;
  int64_t num_queries = 0, num_keys = 0, head_dim = 0;
  bool causal = false;
  double scale = 1;
};

// One query row against cache rows 0 .. num_keys - 1.
template <class T>
struct AttentionDecode {
  AttentionMatrix<const T> query;  // [1, D]
  AttentionMatrix<const T> key, value;
  AttentionMatrix<T> output;
  int64_t num_keys = 0, head_dim = 0;
  double scale = 1;
};

// float32 kernels that exist in several versions; the other dtypes use the reference templates.
struct AttentionKernels {
  void (*forward)(const AttentionForward<float, float>&) = nullptr;
  void (*backward)(const AttentionBackward<float, float>&) = nullptr;
  void (*decode)(const AttentionDecode<float>&) = nullptr;
};

extern const AttentionKernels kAttentionReference;
extern const AttentionKernels kAttentionAvx2;    // only where the build has AVX2
extern const AttentionKernels kAttentionAvx512;  // only where the build has AVX-512

}  // namespace blutensor
