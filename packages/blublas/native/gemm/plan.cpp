#include "gemm/plan.h"

#include <algorithm>
#include <utility>

namespace blublas {
namespace {

constexpr int64_t ceil_div(int64_t x, int64_t y) { return (x + y - 1) / y; }
constexpr int64_t round_up(int64_t x, int64_t y) { return ceil_div(x, y) * y; }
constexpr size_t align(size_t bytes) { return (bytes + 63) & ~size_t{63}; }

constexpr int64_t kMaxTaskCols = 384;  // C of a task stays in L2
// Blocks of K that are one group: one when A is packed, more when it is in place, to pass over C less often.
constexpr int64_t kGroupKInPlace = 768;      // a panel of A stays in the first level of cache
constexpr int64_t kGroupKElsewhere = 1536;   // when sums of several groups would need workspace
constexpr int64_t kPackedInPlace = 1 << 18;  // B packed at a time, beside A in place: half the second level of cache
constexpr int64_t kPackedBoth = 1 << 19;     // beside A packed: twice that, since every chunk packs A again
constexpr int64_t kSharedSumElements = 8 << 20;  // float32 sums of a bfloat16 C, when K has several groups
constexpr int64_t kPackElements = 1 << 15;       // of B per pack task
constexpr int64_t kTaskFlops = 4 << 20;          // smaller tasks are not worth handing out
constexpr int64_t kPerBatchElements = 1 << 17;   // products whose B is smaller than this are one task each

// Flags that need finish(); the row sums do not.
constexpr int32_t kFinishFlags = ~(BLUBLAS_EPILOGUE_ROW_SUM_A | BLUBLAS_EPILOGUE_ROW_SUM_A_ACCUMULATE);
constexpr int32_t kUsesOldValue = BLUBLAS_EPILOGUE_GELU_TANH | BLUBLAS_EPILOGUE_GELU_ERF |
                                  BLUBLAS_EPILOGUE_GELU_TANH_GRADIENT | BLUBLAS_EPILOGUE_GELU_ERF_GRADIENT |
                                  BLUBLAS_EPILOGUE_STORE_PREACTIVATION;

// Without anything between sum and store, adding C afterwards is adding it at once. Never to a beta of 0: C would
// not be read, and a NaN in it has to come out.
void fold_accumulate(Problem& p) {
  if (p.epilogue & kUsesOldValue) return;
  if ((p.epilogue & BLUBLAS_EPILOGUE_ACCUMULATE) && p.beta != -1) {
    p.epilogue &= ~BLUBLAS_EPILOGUE_ACCUMULATE;
    p.beta += 1;
  }
  if ((p.epilogue & BLUBLAS_EPILOGUE_RESIDUAL) && p.residual_is_c && p.beta == 0) {
    p.epilogue &= ~BLUBLAS_EPILOGUE_RESIDUAL;
    p.residual_is_c = false;
    p.beta += 1;
  }
}

// Whether the micro-kernel itself can add what the epilogue adds.
bool is_simple(const Problem& p) {
  constexpr int32_t adds = BLUBLAS_EPILOGUE_BIAS | BLUBLAS_EPILOGUE_RESIDUAL;
  if ((p.epilogue & kFinishFlags) == 0 || (p.epilogue & kFinishFlags & ~adds) != 0) return false;
  if ((p.epilogue & BLUBLAS_EPILOGUE_BIAS) && p.bias.dtype != p.compute) return false;
  if (!(p.epilogue & BLUBLAS_EPILOGUE_RESIDUAL)) return true;
  return p.residual.dtype == p.compute && p.beta == 0 && (p.residual.col_stride == 1 || p.n == 1);
}

Operand transposed(Operand x) {
  std::swap(x.row_stride, x.col_stride);
  return x;
}

// C^T = B^T A^T: for C stored by columns, and for products with few columns.
void transpose(Problem& p) {
  std::swap(p.a, p.b);
  p.a = transposed(p.a);
  p.b = transposed(p.b);
  p.c = transposed(p.c);
  std::swap(p.m, p.n);
}

bool by_rows(const Problem& p) { return p.c.col_stride == 1 || p.n == 1; }

template <typename T>
void orient(Problem& p, const GemmKernels<T>& kernels) {
  if (p.epilogue != 0) return;
  const bool few_columns = p.n <= kernels.small_rows && p.m > kernels.small_rows;
  const bool by_columns = !by_rows(p) && (p.c.row_stride == 1 || p.m == 1);
  if (few_columns || by_columns) transpose(p);
}

// Few rows: B is read once and not packed, when its layout lets a kernel run along it.
template <typename T>
Method choose_method(const Problem& p, const GemmKernels<T>& kernels) {
  if (p.m <= kernels.small_rows && p.k > 0 && (p.a.col_stride == 1 || p.k == 1)) {
    if (p.b.row_stride == 1 || p.k == 1) return Method::small_dot;
    if (p.b.col_stride == 1 || p.n == 1) return Method::small_axpy;
  }
  return Method::tiles;
}

template <typename T>
void cut_small(Plan& plan, int32_t threads) {
  const Problem& p = plan.problem;
  // About 256 KiB of B per task, and no more than what keeps all threads busy.
  const int64_t fair = ceil_div(p.n, int64_t{4} * threads);
  plan.nt = std::clamp<int64_t>(round_up(std::min<int64_t>(fair, (int64_t{1} << 16) / std::max<int64_t>(1, p.k)), 64),
                                64, kMaxTaskCols);
  plan.num_col_tiles = ceil_div(p.n, plan.nt);
  plan.num_tile_tasks = plan.num_col_tiles;
  plan.finishing = true;
  plan.thread_bytes = align(static_cast<size_t>(p.m * plan.nt) * sizeof(T));
}

template <typename T>
void cut_k(Plan& plan, const GemmKernels<T>& kernels) {
  const Problem& p = plan.problem;
  plan.num_blocks = std::max<int64_t>(1, ceil_div(p.k, kernels.kc));
  plan.kc = round_up(ceil_div(p.k, plan.num_blocks), 8);
  plan.num_blocks = std::max<int64_t>(1, ceil_div(p.k, std::max<int64_t>(1, plan.kc)));

  const bool c_by_rows = by_rows(p) && p.c.dtype == p.compute;
  plan.simple = c_by_rows && is_simple(p);
  plan.finishing = !c_by_rows || (!plan.simple && (p.epilogue & kFinishFlags) != 0);
  // Partial sums go over C when it holds none of the values that finish() still needs.
  const bool c_needed = p.beta != 0 || p.aux_is_c || p.residual_is_c || (p.epilogue & BLUBLAS_EPILOGUE_ACCUMULATE);
  plan.direct_c = c_by_rows && !(plan.finishing && c_needed);

  plan.rows_in_place = p.a.dtype == p.compute && (p.a.col_stride == 1 || p.k == 1);
  const int64_t longest = !plan.direct_c ? kGroupKElsewhere : plan.rows_in_place ? kGroupKInPlace : 0;
  const int64_t together = std::max<int64_t>(1, longest / std::max<int64_t>(1, plan.kc));
  plan.num_groups = ceil_div(plan.num_blocks, together);
  plan.blocks_per_group = ceil_div(plan.num_blocks, plan.num_groups);
  plan.num_groups = ceil_div(plan.num_blocks, plan.blocks_per_group);
  plan.kg = std::min(p.k, plan.kc * plan.blocks_per_group);
  plan.shared_sums = plan.num_groups > 1 && !plan.direct_c;
}

template <typename T>
void cut_tiles(Plan& plan, const GemmKernels<T>& kernels, int32_t threads) {
  const Problem& p = plan.problem;
  const int64_t mr = kernels.mr, nr = kernels.nr;
  // Rows that lie along K are read in place. With a stride of a multiple of 4 KiB they all fall on one set of the first
  // level of cache, which has room for 8 or 12 lines: fewer rows at a time then beat packing them.
  const bool same_set = p.a.row_stride * static_cast<int64_t>(sizeof(T)) % 4096 == 0 && p.m > 1;
  plan.row_step = plan.rows_in_place && same_set ? std::min<int64_t>(10, mr) : mr;

  plan.num_row_tiles = ceil_div(p.m, kernels.mc);
  plan.mt = round_up(ceil_div(p.m, plan.num_row_tiles), plan.row_step);
  plan.num_row_tiles = ceil_div(p.m, plan.mt);

  const int64_t depth = std::max<int64_t>(1, plan.kg);
  int64_t nc = std::max(kMaxTaskCols, (plan.rows_in_place ? kPackedInPlace : kPackedBoth) / depth);
  if (plan.shared_sums) nc = std::min(nc, std::max<int64_t>(256, kSharedSumElements / p.m));
  plan.num_chunks = ceil_div(p.n, round_up(nc, nr));
  plan.nc = round_up(ceil_div(p.n, plan.num_chunks), nr);
  plan.num_chunks = ceil_div(p.n, plan.nc);

  // Narrow tasks balance the load; too narrow ones repeat the packing of A and the hand-out.
  int64_t nt = kMaxTaskCols;
  if (threads > 1) {
    const int64_t wanted = ceil_div(int64_t{8} * threads, plan.num_row_tiles);
    const int64_t least = std::max(3 * nr, kTaskFlops / (2 * plan.mt * depth));
    nt = std::clamp(ceil_div(plan.nc, wanted), std::min(least, kMaxTaskCols), kMaxTaskCols);
  }
  plan.num_col_tiles = ceil_div(plan.nc, round_up(nt, nr));
  plan.nt = round_up(ceil_div(plan.nc, plan.num_col_tiles), nr);
  plan.num_col_tiles = ceil_div(plan.nc, plan.nt);

  plan.panels_per_pack = std::max<int64_t>(1, kPackElements / (nr * depth));
  plan.num_pack_tasks = ceil_div(plan.nc / nr, plan.panels_per_pack);
  plan.num_tile_tasks = plan.num_row_tiles * plan.num_col_tiles;
  plan.num_reduce_tasks = (p.epilogue & BLUBLAS_EPILOGUE_COLUMN_SUM) ? 1 : 0;
  // Packing ahead needs a buffer to write, one to read, and one that a slow thread may still read.
  plan.lookahead = threads > 1 && plan.num_stages() > 1 ? 1 : 0;
  plan.num_buffers = plan.lookahead > 0 ? 3 : 1;
}

template <typename T>
void lay_out(Plan& plan, const GemmKernels<T>& kernels) {
  const auto bytes = [](int64_t elements) { return align(static_cast<size_t>(elements) * sizeof(T)); };
  size_t at = 0;
  const auto reserve = [&at, &bytes](bool needed, int64_t elements) {
    const size_t offset = at;
    if (needed) at += bytes(elements);
    return offset;
  };
  plan.packed_b_bytes = bytes(plan.nc * plan.kg);
  plan.packed_b = reserve(true, plan.num_buffers * static_cast<int64_t>(plan.packed_b_bytes / sizeof(T)));
  plan.column_sums = reserve(plan.num_reduce_tasks > 0, plan.num_row_tiles * plan.nc);
  plan.sums = reserve(plan.shared_sums, plan.problem.m * plan.nc);
  plan.shared_bytes = at;
  at = 0;
  plan.packed_a = reserve(!plan.rows_in_place, plan.mt * plan.kg);
  plan.tile = reserve(plan.finishing, kernels.mr * kernels.nr);
  plan.thread_bytes = at;
}

}  // namespace

template <typename T>
Plan make_plan(const Problem& problem, const GemmKernels<T>& kernels, int32_t threads) {
  Plan plan;
  plan.problem = problem;
  Problem& p = plan.problem;
  fold_accumulate(p);
  orient(p, kernels);
  plan.method = choose_method(p, kernels);
  const double flops = 2.0 * static_cast<double>(p.m) * static_cast<double>(p.n) *
                       static_cast<double>(std::max<int64_t>(1, p.k)) *
                       static_cast<double>(std::max<int64_t>(1, p.batch));
  // Waking a thread costs as much as about a million operations.
  plan.threads = static_cast<int32_t>(std::clamp(flops / (1 << 19), 1.0, static_cast<double>(threads)));
  if (p.m == 0 || p.n == 0 || p.batch == 0) return plan;
  if (plan.method != Method::tiles) {
    plan.threads = static_cast<int32_t>(std::clamp(flops / (1 << 15), 1.0, static_cast<double>(threads)));
    cut_small<T>(plan, plan.threads);
    return plan;
  }
  cut_k(plan, kernels);
  if (p.batch > 1 && p.n * plan.kg <= kPerBatchElements && p.m * p.n <= 4 * kPerBatchElements)
    plan.method = Method::per_batch;
  cut_tiles(plan, kernels, plan.method == Method::per_batch ? 1 : plan.threads);
  lay_out(plan, kernels);
  return plan;
}

template Plan make_plan<float>(const Problem&, const GemmKernels<float>&, int32_t);
template Plan make_plan<double>(const Problem&, const GemmKernels<double>&, int32_t);

}  // namespace blublas
