// What the host hands to a kernel of this folder. Legend: A [M, K], B [K, N], C [M, N] row-major.
#pragma once

#include <cstdint>

namespace blublas::sm90 {

constexpr int tile_m = 128;
// Warps that sum A's rows, each over its share of K, in every unit with one of the first columns of tiles: what they read
// comes on top of what the products take from shared memory, so that the work is shared out.
constexpr int row_sum_warps = 2, max_row_sum_columns = 4;

enum class Major { k, mn };  // which dimension of an operand is contiguous

// The last part of a kernel, by what it does with a finished tile. `partial` stores sums over a part of K.
enum class Kind { plain, gelu_tanh, gelu_erf, gelu_tanh_gradient, gelu_erf_gradient, partial };

// Bits of Finish::flags.
constexpr uint32_t bias_is_bf16 = 1 << 0, aux_is_bf16 = 1 << 1, side_is_bf16 = 1 << 2, c_is_bf16 = 1 << 3;
constexpr uint32_t side_before_bias = 1 << 4;

// The epilogue of blublas.h in the form that a kernel reads, of which it does what a layer needs: at most one matrix is
// read, and it has C's dtype, as aux has. Pointers are null where a part is not wanted.
//
//   plain      v = alpha sum; v += side_scale side (side_before_bias); v += bias; aux = v; v += side_scale side; C = v
//   GELU       v = alpha sum; v += bias; aux = v; v = gelu(v); C = v
//   gradients  v = alpha sum; v += bias; v *= gelu'(side); C = v
// The pass after partial sums does all of it in any combination.
struct Finish {
  char* c = nullptr;  // partial: float [splits, M, ld_c]
  const char* bias = nullptr;
  char* aux = nullptr;         // written
  const char* side = nullptr;  // residual, C itself, or the pre-activation of a gradient
  int64_t ld_c = 0, ld_aux = 0, ld_side = 0;
  float* row_sums = nullptr;  // partial: sums of A's rows, float [row_sum_parts, ld_row_sums]
  int64_t ld_row_sums = 0;    // M, up to whole tiles
  float alpha = 1, side_scale = 1;
  uint32_t flags = 0;
};

// How the work is cut: units are tiles of C (pairs of tiles along M with a cluster of two), times parts of K. Part by
// part, then groups of `group_m` rows of tiles, column by column: what runs at one time shares its operands in L2.
struct Cut {
  int32_t m = 0, n = 0;
  int32_t rows = 0, columns = 0;  // of units
  int32_t group_m = 8;
  int32_t splits = 1;
  int32_t k_blocks = 0, k_blocks_per_split = 0;
  int32_t row_sum_columns = 1;  // of tiles, which share the sums of A's rows
};

}  // namespace blublas::sm90
