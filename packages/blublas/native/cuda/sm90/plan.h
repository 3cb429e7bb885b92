// How a problem is done: which kernel, how the work is cut, what the workspace holds.
#pragma once

#include <cstddef>

#include "cuda/problem.h"
#include "cuda/sm90/table.h"

namespace blublas::sm90 {

// For tests and measurements: overrides what the cost model would choose. -1 and 0: its own choice.
struct Choice {
  int tile_n = 0, cooperative = -1, cluster = 0, splits = 0, group_m = 0;
};

struct Plan {
  const Kernel* kernel = nullptr;  // null: no kernel of this folder does the problem
  Kind kind = Kind::plain;         // of the epilogue, also where the kernel only makes partial sums
  Cut cut;
  bool swapped = false;    // the kernel does the transpose, C^T = B^T A^T; cut.m is N then
  bool copy_b = false;     // the kernel's B is transposed into the workspace first
  bool sums_rows = false;  // row_sum_a on the way; needs row_sum_parts sums of each row in the workspace
  size_t b_at = 0, partials_at = 0, row_sums_at = 0, bytes = 0;
};

Plan make_plan(const CudaProblem& problem, const Choice& choice = {});

// M up to whole tiles.
inline int64_t padded_rows(const Plan& plan) { return int64_t{plan.cut.rows} * tile_m * plan.kernel->cluster; }
// Partial sums of a row of A.
inline int row_sum_parts(const Cut& cut) { return cut.splits * cut.row_sum_columns * row_sum_warps; }
// The leading dimension of copies and partial sums with this many columns: whole groups of 16 bytes.
inline int64_t padded(int64_t columns) { return (columns + 3) / 4 * 4; }

}  // namespace blublas::sm90
