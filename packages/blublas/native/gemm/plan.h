// How one GEMM is cut: blocks of K, tiles of C, tasks, and the workspace they use.
//
//   for each batch, each chunk of columns (nc), each group of blocks of K (kg): one stage
//     pack tasks:    B[kg, nc] -> panels of nr columns, shared by all threads, of a size for L2
//     tile tasks:    C[mt, nt], one task each: A[mt, kg] -> panels of mr rows, private to the thread, or used in place;
//                    for each panel of A (stays in L1), each panel of B (streams from L2), each block of K (kc):
//                    micro-kernel
//     reduce tasks:  column sums of the tiles, added from the first row of tiles to the last
//
// Blocks of K, and rows of C per tile, follow from the shape alone, so that the order of every sum does. How wide a
// task is depends on the number of threads; no sum does.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gemm/kernels.h"
#include "gemm/problem.h"

namespace blublas {

enum class Method {
  tiles,       // as above, all threads on one product after the other
  per_batch,   // as above, one task per product of the batch
  small_dot,   // few rows, B's columns contiguous along K: streamed once
  small_axpy,  // few rows, B's rows contiguous
};

struct Plan {
  Problem problem;  // perhaps transposed, with ACCUMULATE turned into beta where that is the same
  Method method = Method::tiles;
  int64_t kc = 0, num_blocks = 1;  // K
  int64_t blocks_per_group = 1, kg = 0, num_groups = 1;
  int64_t mt = 0, num_row_tiles = 1;  // M
  int64_t nc = 0, num_chunks = 1;     // N: chunks
  int64_t nt = 0, num_col_tiles = 1;  // N: tasks within a chunk
  bool rows_in_place = false;         // A is used where it is
  int64_t row_step = 0;               // rows per micro-kernel: mr, or fewer
  bool direct_c = true;               // partial sums over K live in C
  bool finishing = false;             // the last block of K goes through finish()
  bool simple = false;                // bias and residual are added by the micro-kernel, in the first block
  bool shared_sums = false;           // partial sums live in workspace
  int64_t panels_per_pack = 1, num_pack_tasks = 0, num_tile_tasks = 0, num_reduce_tasks = 0;
  int64_t lookahead = 0;    // 1: the next stage's B is packed before this stage's tiles, so that no thread idles
  int64_t num_buffers = 1;  // for packed B
  int32_t threads = 1;

  int64_t num_stages() const noexcept { return problem.batch * num_chunks * num_groups; }
  int64_t tasks_per_stage() const noexcept { return num_pack_tasks + num_tile_tasks + num_reduce_tasks; }

  // Workspace: offsets in bytes, multiples of 64.
  size_t packed_b = 0, packed_b_bytes = 0, column_sums = 0, sums = 0, shared_bytes = 0;  // for all
  size_t packed_a = 0, tile = 0, thread_bytes = 0;                                       // in each thread's part

  size_t workspace() const noexcept {
    return method == Method::per_batch ? static_cast<size_t>(threads) * (shared_bytes + thread_bytes)
                                       : shared_bytes + static_cast<size_t>(threads) * thread_bytes;
  }
};

template <typename T>
Plan make_plan(const Problem& problem, const GemmKernels<T>& kernels, int32_t threads);

}  // namespace blublas
