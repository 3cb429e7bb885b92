// The micro-kernels: a register tile of R rows and C vectors of columns, k rank-one updates, then the store.
//
//   per k: C loads of B, R broadcasts of A, R x C fused multiply-adds. 14 x 2 leaves 2 + 1 of 32 registers for
//   operands; 6 x 2 the same of 16.
// Template over the vector type; include only in files compiled for it.
#pragma once

#include <cstdint>
#include <utility>

#include "gemm/kernels.h"

namespace blublas {
namespace {

// Where row r's elements are: a panel [k][MR], or rows in place at a stride. For rows in place only every third address
// is kept in a register, and the others are reached through the stride (base, base + stride, base + 2 stride): with an
// address per row the compiler spills.
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

// One rank-one update.
template <typename V, int R, int C, typename Rows>
[[gnu::always_inline]] inline void step(Rows& rows, const typename V::Element*& b, int64_t b_step, V (&sum)[R][C]) {
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
  asm volatile("" ::: "memory");  // or the compiler mixes the steps, runs out of registers and spills sums
}

template <typename V, int R, int C, typename Rows>
[[gnu::always_inline]] inline void accumulate(int64_t k, Rows rows, const typename V::Element* b, int64_t b_step,
                                              V (&sum)[R][C]) {
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) sum[r][c] = V::zero();
#pragma GCC unroll 4
  for (int64_t p = 0; p < k; ++p) step(rows, b, b_step, sum);
}

template <typename V, int R, int C>
[[gnu::always_inline]] inline void write(const V (&sum)[R][C], const MicroTile<typename V::Element>& t) {
  using T = typename V::Element;
  const V alpha = V::all(t.alpha), beta = V::all(t.beta);
#pragma GCC unroll 4
  for (int v = 0; v < C; ++v) {
    const int64_t n = v < C - 1 ? V::width : t.cols - (C - 1) * V::width, j = v * V::width;
    const V bias = t.bias == nullptr ? V::zero() : n == V::width ? V::load(t.bias + j) : V::load(t.bias + j, n);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      V value = t.bias == nullptr ? alpha * sum[r][v] : V::fma(alpha, sum[r][v], bias);
      if (t.beta != T{0}) {
        const T* addend = t.addend + r * t.addend_stride + j;
        value = V::fma(beta, n == V::width ? V::load(addend) : V::load(addend, n), value);
      }
      T* at = t.c + r * t.c_stride + j;
      n == V::width ? value.store(at) : value.store(at, n);
    }
  }
}

// C is loaded or stored at the end: its lines are called for at the start.
template <int R, int C, typename T>
inline void prefetch_tile(const MicroTile<T>& t) {
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < C; ++v) __builtin_prefetch(t.c + r * t.c_stride + v * 16, 1, 3);
    __builtin_prefetch(t.c + r * t.c_stride + t.cols - 1, 1, 3);
  }
}

template <typename V, int R, int C, int MR, int NR>
void micro_packed(const MicroTile<typename V::Element>& t) {
  V sum[R][C];
  prefetch_tile<R, C>(t);
  accumulate<V, R, C>(t.k, PackedRows<typename V::Element, R>{t.a, MR}, t.b, NR, sum);
  write<V, R, C>(sum, t);
}

template <typename V, int R, int C, int MR, int NR>
void micro_in_place(const MicroTile<typename V::Element>& t) {
  V sum[R][C];
  prefetch_tile<R, C>(t);
  accumulate<V, R, C>(t.k, RowsInPlace<typename V::Element, R>(t.a, t.a_stride), t.b, NR, sum);
  write<V, R, C>(sum, t);
}

// All sizes of tile up to MR rows x C vectors: [rows - 1][vectors - 1].
template <typename V, int MR, int C>
struct Micro {
  using Tile = MicroTile<typename V::Element>;
  using Kernel = void (*)(const Tile&);
  static constexpr int nr = C * V::width;

  template <int... I>
  static void run_packed(std::integer_sequence<int, I...>, const Tile& t) {
    static constexpr Kernel table[MR * C] = {micro_packed<V, I / C + 1, I % C + 1, MR, nr>...};
    table[(t.rows - 1) * C + (t.cols - 1) / V::width](t);
  }
  template <int... I>
  static void run_in_place(std::integer_sequence<int, I...>, const Tile& t) {
    static constexpr Kernel table[MR * C] = {micro_in_place<V, I / C + 1, I % C + 1, MR, nr>...};
    table[(t.rows - 1) * C + (t.cols - 1) / V::width](t);
  }

  static void packed(const Tile& t) { run_packed(std::make_integer_sequence<int, MR * C>{}, t); }
  static void in_place(const Tile& t) { run_in_place(std::make_integer_sequence<int, MR * C>{}, t); }
};

}  // namespace
}  // namespace blublas
