// The micro-kernels: a register tile of R rows and C vectors of columns, k rank-one updates, then the store.
//
//   per k: C loads of B, R broadcasts of A, R x C fused multiply-adds. 14 x 2 leaves 2 + 1 of 32 registers for operands; 6 x 2 the same of 16.
// Template over the vector type; include only in files compiled for it.
#pragma once

#include <cstdint>
#include <utility>

namespace blublas {
namespace {

// Where row r's elements are: a panel [k][MR], or rows in place at a stride. For rows in place only every third address is kept in a register;
// the others are reached through the stride (base, base + stride, base + 2 stride), or the compiler spills.
template <typename T, int R>
struct PackedRows {
  const T* at;
  int64_t step;
  T get(int r) const { return at[r]; }
  void next() { at += step; }
};
template <typename T, int R>
struct RowsInPlace {
  const T* base[(R + 2) / 3];
  int64_t stride;
  RowsInPlace(const T* a, int64_t a_stride) : stride(a_stride) {
    for (int g = 0; g < (R + 2) / 3; ++g) {
      base[g] = a + 3 * g * a_stride;
      asm("" : "+r"(base[g]));
    }
  }
  T get(int r) const { return base[r / 3][(r % 3) * stride]; }
  void next() {
#pragma GCC unroll 8
    for (int g = 0; g < (R + 2) / 3; ++g) ++base[g];
  }
};

template <typename V, int R, int C, typename Rows>
inline void accumulate(int64_t k, Rows rows, const typename V::Element* b, int64_t b_step, V (&sum)[R][C]) {
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) sum[r][c] = V::zero();
#pragma GCC unroll 4
  for (int64_t p = 0; p < k; ++p) {
    V column[C];
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) column[c] = V::load(b + c * V::width);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const V element = V::all(rows.get(r));
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) sum[r][c] = V::fma(element, column[c], sum[r][c]);
    }
    rows.next();
    b += b_step;
  }
}

template <typename V, int R, int C>
inline void write(const V (&sum)[R][C], typename V::Element* c, int64_t c_stride, int64_t cols, typename V::Element alpha, typename V::Element beta) {
  using T = typename V::Element;
  const V scale = V::all(alpha), old = V::all(beta);
  const int64_t rest = cols - (C - 1) * V::width;
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < C; ++v) {
      T* at = c + r * c_stride + v * V::width;
      const V product = scale * sum[r][v];
      if (v < C - 1 || rest == V::width)
        (beta == T{0} ? product : V::fma(old, V::load(at), product)).store(at);
      else
        (beta == T{0} ? product : V::fma(old, V::load(at, rest), product)).store(at, rest);
    }
}

template <typename V, int R, int C, int MR, int NR>
void micro_packed(int64_t k, const typename V::Element* a, int64_t, const typename V::Element* b, typename V::Element* c, int64_t c_stride, int64_t cols,
                  typename V::Element alpha, typename V::Element beta) {
  V sum[R][C];
  accumulate<V, R, C>(k, PackedRows<typename V::Element, R>{a, MR}, b, NR, sum);
  write<V, R, C>(sum, c, c_stride, cols, alpha, beta);
}

template <typename V, int R, int C, int MR, int NR>
void micro_in_place(int64_t k, const typename V::Element* a, int64_t a_stride, const typename V::Element* b, typename V::Element* c, int64_t c_stride,
                    int64_t cols, typename V::Element alpha, typename V::Element beta) {
  V sum[R][C];
  accumulate<V, R, C>(k, RowsInPlace<typename V::Element, R>(a, a_stride), b, NR, sum);
  write<V, R, C>(sum, c, c_stride, cols, alpha, beta);
}

// All sizes of tile up to MR x 2 vectors: [rows - 1][vectors - 1].
template <typename V, int MR>
struct Micro {
  using T = typename V::Element;
  using Kernel = void (*)(int64_t, const T*, int64_t, const T*, T*, int64_t, int64_t, T, T);
  static constexpr int nr = 2 * V::width;

  template <int... R>
  static void run_packed(std::integer_sequence<int, R...>, int64_t k, const T* a, const T* b, T* c, int64_t c_stride, int64_t rows, int64_t cols, T alpha, T beta) {
    static constexpr Kernel table[MR][2] = {{micro_packed<V, R + 1, 1, MR, nr>, micro_packed<V, R + 1, 2, MR, nr>}...};
    table[rows - 1][cols > V::width](k, a, 0, b, c, c_stride, cols, alpha, beta);
  }
  template <int... R>
  static void run_in_place(std::integer_sequence<int, R...>, int64_t k, const T* a, int64_t a_stride, const T* b, T* c, int64_t c_stride, int64_t rows,
                           int64_t cols, T alpha, T beta) {
    static constexpr Kernel table[MR][2] = {{micro_in_place<V, R + 1, 1, MR, nr>, micro_in_place<V, R + 1, 2, MR, nr>}...};
    table[rows - 1][cols > V::width](k, a, a_stride, b, c, c_stride, cols, alpha, beta);
  }

  static void packed(int64_t k, const T* a, const T* b, T* c, int64_t c_stride, int64_t rows, int64_t cols, T alpha, T beta) {
    run_packed(std::make_integer_sequence<int, MR>{}, k, a, b, c, c_stride, rows, cols, alpha, beta);
  }
  static void in_place(int64_t k, const T* a, int64_t a_stride, const T* b, T* c, int64_t c_stride, int64_t rows, int64_t cols, T alpha, T beta) {
    run_in_place(std::make_integer_sequence<int, MR>{}, k, a, a_stride, b, c, c_stride, rows, cols, alpha, beta);
  }
};

}  // namespace
}  // namespace blublas
