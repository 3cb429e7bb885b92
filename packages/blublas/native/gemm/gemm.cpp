// The driver: turns a plan into ordered tasks. plan.h has the picture.
//
// All stages are one parallel call: tasks are handed out in order, so when a task is begun all earlier ones have been,
// and it may wait for them without risk of deadlock. A call that runs inline never waits.
#include "gemm/gemm.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>

#include "common/status.h"
#include "gemm/plan.h"
#include "pool/pool.h"

namespace blublas {
namespace {

template <typename T>
class Run {
 public:
  Run(const Plan& plan, const GemmKernels<T>& kernels, char* workspace)
      : plan_(plan), p_(plan.problem), kernels_(kernels), workspace_(workspace) {}

  void all() {
    const bool by_stage = plan_.method == Method::tiles;
    const int64_t num_tasks =
        by_stage ? all_stage_tasks() : p_.batch * (plan_.method == Method::per_batch ? 1 : plan_.num_tile_tasks);
    if (plan_.threads == 1) {
      for (int64_t task = 0; task < num_tasks; ++task) one(task, 0);
    } else {
      pool_run(
          num_tasks, [](void* run, int64_t task, int32_t thread) { static_cast<Run*>(run)->one(task, thread); }, this,
          plan_.threads);
    }
  }

 private:
  // Where one product's buffers are, for one thread.
  struct Place {
    char* shared;
    char* own;
    int64_t packed_a_key = -1;  // which part of A `own` holds, -1: none
  };

  void one(int64_t task, int32_t thread) {
    switch (plan_.method) {
      case Method::tiles: {
        Place& place = places_[thread];
        place.shared = workspace_;
        place.own = workspace_ + plan_.shared_bytes + static_cast<size_t>(thread) * plan_.thread_bytes;
        stage_task(task, place);
        break;
      }
      case Method::per_batch: {
        char* own = workspace_ + static_cast<size_t>(thread) * (plan_.shared_bytes + plan_.thread_bytes);
        Place place{own, own + plan_.shared_bytes};
        const int64_t tasks = plan_.num_chunks * plan_.num_groups * plan_.tasks_per_stage();
        for (int64_t i = 0; i < tasks; ++i) stage_task(task * tasks + i, place);
        break;
      }
      default:
        small_task(task, workspace_ + static_cast<size_t>(thread) * plan_.thread_bytes);
    }
  }

  // Stages ---------------------------------------------------------------------------------------------------------
  struct Stage {
    int64_t index, batch, chunk, group;
  };
  Stage stage_at(int64_t index) const {
    return {index, index / (plan_.num_groups * plan_.num_chunks), index / plan_.num_groups % plan_.num_chunks,
            index % plan_.num_groups};
  }

  // Finished tasks of the stages with the same index modulo kRing; tasks of kRing stages never overlap.
  static constexpr int64_t kRing = 8;
  struct alignas(64) Counter {
    std::atomic<int64_t> done{0};
  };
  void wait_for(const Counter (&counters)[kRing], int64_t stage, int64_t tasks) const {
    if (stage < 0 || plan_.threads == 1 || plan_.method == Method::per_batch) return;  // this thread did all of them
    const int64_t needed = (stage / kRing + 1) * tasks;
    Backoff backoff;
    while (counters[stage % kRing].done.load(std::memory_order_acquire) < needed) backoff.wait();
  }
  static void finished(Counter (&counters)[kRing], int64_t stage) {
    counters[stage % kRing].done.fetch_add(1, std::memory_order_release);
  }

  // Order of tasks: the first stage's packing when there is lookahead; then for each stage its packing (the next one's
  // with lookahead), tiles, reduction.
  int64_t all_stage_tasks() const {
    return plan_.lookahead * plan_.num_pack_tasks + plan_.num_stages() * plan_.tasks_per_stage();
  }

  void stage_task(int64_t task, Place& place) {
    const int64_t first = plan_.lookahead * plan_.num_pack_tasks;
    if (task < first) return pack_task(0, task, place);
    const int64_t index = (task - first) / plan_.tasks_per_stage();
    int64_t local = (task - first) % plan_.tasks_per_stage();
    if (local < plan_.num_pack_tasks) return pack_task(index + plan_.lookahead, local, place);
    local -= plan_.num_pack_tasks;
    if (local < plan_.num_tile_tasks) return tile_task(index, local, place);
    wait_for(tiled_, index, plan_.num_tile_tasks);
    const Stage stage = stage_at(index);
    if (stage.group == plan_.num_groups - 1) reduce_column_sums(stage.batch, stage.chunk, place);
    finished(reduced_, index);
  }

  void pack_task(int64_t index, int64_t local, const Place& place) {
    if (index >= plan_.num_stages()) return;
    wait_for(tiled_, index - plan_.num_buffers, plan_.num_tile_tasks);  // whose buffer this is
    pack_b(stage_at(index), local, place);
    finished(packed_, index);
  }

  void tile_task(int64_t index, int64_t local, Place& place) {
    const Stage stage = stage_at(index);
    wait_for(packed_, index, plan_.num_pack_tasks);
    if (stage.group > 0 || plan_.shared_sums) wait_for(tiled_, index - 1, plan_.num_tile_tasks);
    if (plan_.num_reduce_tasks > 0) wait_for(reduced_, index - 1, plan_.num_reduce_tasks);
    tile(stage, local, place);
    finished(tiled_, index);
  }

  T* packed_b(const Stage& stage, const Place& place) const {
    return reinterpret_cast<T*>(place.shared + plan_.packed_b +
                                static_cast<size_t>(stage.index % plan_.num_buffers) * plan_.packed_b_bytes);
  }

  // Packing --------------------------------------------------------------------------------------------------------
  int64_t group_depth(int64_t group) const { return std::min(plan_.kg, p_.k - group * plan_.kg); }
  int64_t chunk_cols(int64_t chunk) const { return std::min(plan_.nc, p_.n - chunk * plan_.nc); }

  // Panel by panel, each over the whole group of K: element (k, j) of panel q at [q][k][j].
  void pack_b(const Stage& stage, int64_t index, const Place& place) {
    const int64_t nr = kernels_.nr, depth = group_depth(stage.group), cols = chunk_cols(stage.chunk);
    const int64_t begin = index * plan_.panels_per_pack * nr, size = std::min(cols - begin, plan_.panels_per_pack * nr);
    if (size <= 0) return;
    const int64_t k0 = stage.group * plan_.kg, j0 = stage.chunk * plan_.nc + begin;
    const char* source =
        p_.b.of_batch(stage.batch) + (k0 * p_.b.row_stride + j0 * p_.b.col_stride) * dtype_bytes(p_.b.dtype);
    kernels_.pack(source, p_.b.dtype, p_.b.col_stride, p_.b.row_stride, size, depth,
                  packed_b(stage, place) + begin * depth, nr);
  }

  // Tiles ----------------------------------------------------------------------------------------------------------
  // Where sums over K go while they grow: [rows, cols] of the tile.
  struct Sums {
    T* data;
    int64_t stride;
  };

  void tile(const Stage& stage, int64_t index, Place& place) {
    const int64_t batch = stage.batch, chunk = stage.chunk, group = stage.group;
    const int64_t row_tile = index / plan_.num_col_tiles, col_tile = index % plan_.num_col_tiles;
    const int64_t i0 = row_tile * plan_.mt, rows = std::min(plan_.mt, p_.m - i0);
    const int64_t in_chunk = col_tile * plan_.nt, cols = std::min(plan_.nt, chunk_cols(chunk) - in_chunk);
    if (cols <= 0) return;
    const int64_t j0 = chunk * plan_.nc + in_chunk, depth = group_depth(group), mr = kernels_.mr, nr = kernels_.nr;

    const char* a =
        p_.a.of_batch(batch) + (i0 * p_.a.row_stride + group * plan_.kg * p_.a.col_stride) * dtype_bytes(p_.a.dtype);
    const T* rows_a = reinterpret_cast<const T*>(a);
    const T* panels_a = nullptr;
    if (!plan_.rows_in_place) {
      T* packed = reinterpret_cast<T*>(place.own + plan_.packed_a);
      const int64_t key = (batch * plan_.num_row_tiles + row_tile) * plan_.num_groups + group;
      if (place.packed_a_key != key)
        kernels_.pack(a, p_.a.dtype, p_.a.row_stride, p_.a.col_stride, rows, depth, packed, mr);
      place.packed_a_key = key;
      panels_a = packed;
    }
    if ((p_.epilogue & BLUBLAS_EPILOGUE_ROW_SUM_A) && j0 == 0) row_sums(batch, a, i0, rows, group, depth);

    const T* const panels_b = packed_b(stage, place) + in_chunk * depth;

    const bool last = group == plan_.num_groups - 1, finishing = last && plan_.finishing;
    // Sums that finish() takes on grow in one register tile's worth of memory, unless they were begun elsewhere.
    const bool in_tile = finishing && !plan_.shared_sums;
    const Sums sums =
        in_tile ? Sums{reinterpret_cast<T*>(place.own + plan_.tile), nr} : sums_of(batch, i0, j0, in_chunk, place);
    const First begin = first_block(batch, group, i0, j0, sums, in_tile);
    const FinishTile<T> finish =
        finishing ? finish_tile(batch, row_tile, i0, j0, in_chunk, cols, place) : FinishTile<T>{};

    for (int64_t i = 0; i < rows; i += plan_.row_step) {
      MicroTile<T> micro;
      micro.alpha = static_cast<T>(p_.alpha), micro.a_stride = p_.a.row_stride;
      micro.rows = std::min(plan_.row_step, rows - i), micro.c_stride = sums.stride;
      const T* const a_panel = panels_a != nullptr ? panels_a + i * depth : rows_a + i * p_.a.row_stride;
      const int64_t a_step = panels_a != nullptr ? mr : 1;
      for (int64_t j = 0; j < cols; j += nr) {
        micro.cols = std::min(nr, cols - j);
        micro.c = in_tile ? sums.data : sums.data + i * sums.stride + j;
        // The blocks of K one after the other while the sums are near.
        int64_t k0 = 0;
        do {
          const bool first = k0 == 0;
          micro.k = std::min(plan_.kc, depth - k0), micro.a = a_panel + k0 * a_step,
          micro.b = panels_b + j * depth + k0 * nr;
          micro.beta = first ? begin.beta : T{1};
          micro.addend = first ? begin.addend + i * begin.addend_stride + j : micro.c;
          micro.addend_stride = first ? begin.addend_stride : micro.c_stride;
          micro.bias = first && begin.bias != nullptr ? begin.bias + j : nullptr;
          (panels_a != nullptr ? kernels_.micro : kernels_.micro_in_place)(micro);
          k0 += plan_.kc;
        } while (k0 < depth);
        if (finishing)
          finish_part(finish, micro.c, micro.c_stride, i, j, micro.rows, micro.cols, static_cast<T>(p_.beta));
      }
    }
  }

  Sums sums_of(int64_t batch, int64_t i0, int64_t j0, int64_t in_chunk, const Place& place) const {
    if (plan_.shared_sums)
      return {reinterpret_cast<T*>(place.shared + plan_.sums) + i0 * plan_.nc + in_chunk, plan_.nc};
    return {reinterpret_cast<T*>(p_.c.of_batch(batch)) + i0 * p_.c.row_stride + j0, p_.c.row_stride};
  }

  // What a group's first block adds to its product. The sum over K grows from block to block in one order wherever it
  // is kept, and finish() adds beta C behind it, so that what C shares memory with does not change the bits.
  struct First {
    T beta = 0;
    const T* addend = nullptr;
    int64_t addend_stride = 0;
    const T* bias = nullptr;
  };
  First first_block(int64_t batch, int64_t group, int64_t i0, int64_t j0, const Sums& sums, bool in_tile) const {
    const auto rows_of = [&](const Operand& x) {
      return reinterpret_cast<const T*>(x.of_batch(batch)) + i0 * x.row_stride + j0;
    };
    if (group > 0 && !in_tile) return {1, sums.data, sums.stride};
    if (group > 0) return {1, rows_of(p_.c), p_.c.row_stride};  // begun in C, going on in the tile
    First first;
    if (!plan_.finishing && p_.beta != 0) first = {static_cast<T>(p_.beta), rows_of(p_.c), p_.c.row_stride};
    if (!plan_.simple) return first;
    if (p_.epilogue & BLUBLAS_EPILOGUE_BIAS) first.bias = reinterpret_cast<const T*>(p_.bias.of_batch(batch)) + j0;
    if (p_.epilogue & BLUBLAS_EPILOGUE_RESIDUAL) {
      first.beta = 1;
      first.addend = rows_of(p_.residual);
      first.addend_stride = p_.residual.row_stride;
    }
    return first;
  }

  void row_sums(int64_t batch, const char* a, int64_t i0, int64_t rows, int64_t group, int64_t depth) {
    T* sums = reinterpret_cast<T*>(p_.row_sum_a.of_batch(batch)) + i0;
    for (int64_t k0 = 0; k0 < std::max<int64_t>(1, depth); k0 += std::max<int64_t>(1, plan_.kc)) {
      const bool accumulate = group > 0 || k0 > 0 || (p_.epilogue & BLUBLAS_EPILOGUE_ROW_SUM_A_ACCUMULATE);
      kernels_.row_sum(a + k0 * p_.a.col_stride * dtype_bytes(p_.a.dtype), p_.a.dtype, p_.a.row_stride, p_.a.col_stride,
                       rows, std::min(plan_.kc, depth - k0), sums, accumulate);
    }
  }

  // Epilogue -------------------------------------------------------------------------------------------------------
  // Everything of the epilogue at the tile's first element; finish_part() moves it to a register tile.
  FinishTile<T> finish_tile(int64_t batch, int64_t row_tile, int64_t i0, int64_t j0, int64_t in_chunk, int64_t cols,
                            const Place& place) const {
    FinishTile<T> tile = finish_at(batch, i0, j0);
    if (plan_.num_reduce_tasks > 0) {
      tile.column_sum = reinterpret_cast<T*>(place.shared + plan_.column_sums) + row_tile * plan_.nc + in_chunk;
      std::fill_n(tile.column_sum, cols, T{0});
    }
    return tile;
  }

  FinishTile<T> finish_at(int64_t batch, int64_t i0, int64_t j0) const {
    FinishTile<T> tile;
    tile.epilogue = p_.epilogue;
    const auto at = [&](const Operand& x) {
      return x.of_batch(batch) + (i0 * x.row_stride + j0 * x.col_stride) * dtype_bytes(x.dtype);
    };
    tile.c = at(p_.c);
    tile.c_dtype = p_.c.dtype, tile.c_row_stride = p_.c.row_stride, tile.c_col_stride = p_.c.col_stride;
    if (p_.epilogue & BLUBLAS_EPILOGUE_BIAS) tile.bias = p_.bias.of_batch(batch) + j0 * dtype_bytes(p_.bias.dtype);
    tile.bias_dtype = p_.bias.dtype;
    if (p_.aux.data != nullptr) tile.aux = at(p_.aux);
    tile.aux_dtype = p_.aux.dtype, tile.aux_row_stride = p_.aux.row_stride, tile.aux_col_stride = p_.aux.col_stride;
    if (p_.epilogue & BLUBLAS_EPILOGUE_RESIDUAL) tile.residual = at(p_.residual);
    tile.residual_dtype = p_.residual.dtype, tile.residual_row_stride = p_.residual.row_stride,
    tile.residual_col_stride = p_.residual.col_stride;
    return tile;
  }

  void finish_part(const FinishTile<T>& whole, const T* sum, int64_t stride, int64_t i, int64_t j, int64_t rows,
                   int64_t cols, T c_scale) const {
    FinishTile<T> part = whole;
    part.rows = rows, part.cols = cols, part.sum = sum, part.sum_stride = stride, part.c_scale = c_scale;
    part.c += (i * p_.c.row_stride + j * p_.c.col_stride) * dtype_bytes(p_.c.dtype);
    if (part.bias) part.bias += j * dtype_bytes(p_.bias.dtype);
    if (part.aux) part.aux += (i * p_.aux.row_stride + j * p_.aux.col_stride) * dtype_bytes(p_.aux.dtype);
    if (part.residual)
      part.residual += (i * p_.residual.row_stride + j * p_.residual.col_stride) * dtype_bytes(p_.residual.dtype);
    if (part.column_sum) part.column_sum += j;
    kernels_.finish(part);
  }

  void reduce_column_sums(int64_t batch, int64_t chunk, const Place& place) {
    const int64_t cols = chunk_cols(chunk);
    T* out = reinterpret_cast<T*>(p_.column_sum.of_batch(batch)) + chunk * plan_.nc;
    const T* tiles = reinterpret_cast<const T*>(place.shared + plan_.column_sums);
    if (!(p_.epilogue & BLUBLAS_EPILOGUE_COLUMN_SUM_ACCUMULATE)) std::fill_n(out, cols, T{0});
    for (int64_t row_tile = 0; row_tile < plan_.num_row_tiles; ++row_tile)
      for (int64_t j = 0; j < cols; ++j) out[j] += tiles[row_tile * plan_.nc + j];
  }

  // Few rows -------------------------------------------------------------------------------------------------------
  void small_task(int64_t task, char* own) {
    const int64_t batch = task / plan_.num_col_tiles, j0 = task % plan_.num_col_tiles * plan_.nt,
                  cols = std::min(plan_.nt, p_.n - j0);
    SmallProduct<T> product;
    product.rows = p_.m, product.cols = cols, product.k = p_.k, product.dtype = p_.a.dtype,
    product.alpha = static_cast<T>(p_.alpha);
    product.a = p_.a.of_batch(batch), product.a_row_stride = p_.a.row_stride;
    product.b = p_.b.of_batch(batch) + j0 * p_.b.col_stride * dtype_bytes(p_.b.dtype);
    product.b_stride = plan_.method == Method::small_dot ? p_.b.col_stride : p_.b.row_stride;
    product.sum = reinterpret_cast<T*>(own), product.sum_stride = plan_.nt;
    (plan_.method == Method::small_dot ? kernels_.small_dot : kernels_.small_axpy)(product);

    FinishTile<T> tile = finish_at(batch, 0, j0);
    tile.rows = p_.m, tile.cols = cols, tile.sum = product.sum, tile.sum_stride = plan_.nt,
    tile.c_scale = static_cast<T>(p_.beta);
    if (p_.epilogue & BLUBLAS_EPILOGUE_COLUMN_SUM) {
      tile.column_sum = reinterpret_cast<T*>(p_.column_sum.of_batch(batch)) + j0;
      if (!(p_.epilogue & BLUBLAS_EPILOGUE_COLUMN_SUM_ACCUMULATE)) std::fill_n(tile.column_sum, cols, T{0});
    }
    kernels_.finish(tile);
    if ((p_.epilogue & BLUBLAS_EPILOGUE_ROW_SUM_A) && j0 == 0)
      kernels_.row_sum(product.a, p_.a.dtype, p_.a.row_stride, p_.a.col_stride, p_.m, p_.k,
                       reinterpret_cast<T*>(p_.row_sum_a.of_batch(batch)),
                       p_.epilogue & BLUBLAS_EPILOGUE_ROW_SUM_A_ACCUMULATE);
  }

  const Plan& plan_;
  const Problem& p_;
  const GemmKernels<T>& kernels_;
  char* workspace_;
  Counter packed_[kRing], tiled_[kRing], reduced_[kRing];
  Place places_[kMaxThreads];
};

// M or N is 0: no element of C, but the sums have their values.
template <typename T>
void sums_alone(const Problem& p, const GemmKernels<T>& kernels) {
  for (int64_t t = 0; t < p.batch; ++t) {
    if ((p.epilogue & BLUBLAS_EPILOGUE_COLUMN_SUM) && !(p.epilogue & BLUBLAS_EPILOGUE_COLUMN_SUM_ACCUMULATE) && p.n > 0)
      std::fill_n(reinterpret_cast<T*>(p.column_sum.of_batch(t)), p.n, T{0});
    if ((p.epilogue & BLUBLAS_EPILOGUE_ROW_SUM_A) && p.m > 0)
      kernels.row_sum(p.a.of_batch(t), p.a.dtype, p.a.row_stride, p.a.col_stride, p.m, p.k,
                      reinterpret_cast<T*>(p.row_sum_a.of_batch(t)),
                      p.epilogue & BLUBLAS_EPILOGUE_ROW_SUM_A_ACCUMULATE);
  }
}

int32_t threads_for(const Problem& problem) {
  const int32_t available = pool_in_parallel() ? 1 : pool_num_threads();
  return problem.num_threads > 0 ? std::min(problem.num_threads, available) : available;
}

template <typename T>
void run(const Problem& problem, void* workspace, size_t bytes) {
  const GemmKernels<T>& table = kernels<T>(kernel_set());
  if (problem.m == 0 || problem.n == 0) return sums_alone(problem, table);
  Plan plan = make_plan(problem, table, threads_for(problem));
  while (plan.workspace() > bytes && plan.threads > 1) plan = make_plan(problem, table, plan.threads - 1);
  if (plan.workspace() > bytes)
    fail_value("[gemm] expected a workspace of at least " + std::to_string(plan.workspace()) + " bytes, got " +
               std::to_string(bytes) + ": ask blublas_gemm_workspace");
  if (plan.workspace() > 0 && (workspace == nullptr || reinterpret_cast<uintptr_t>(workspace) % 64 != 0))
    fail_value("[gemm] expected a workspace aligned to 64 bytes, got one that is NULL or not aligned");
  Run<T>(plan, table, static_cast<char*>(workspace)).all();
}

}  // namespace

size_t gemm_workspace(const Problem& problem) {
  if (problem.m == 0 || problem.n == 0 || problem.batch == 0) return 0;
  const KernelSet& set = kernel_set();
  const int32_t threads = threads_for(problem);
  const auto bytes = [&](const Problem& p) {
    return p.compute == BLUBLAS_FLOAT64 ? make_plan(p, kernels<double>(set), threads).workspace()
                                        : make_plan(p, kernels<float>(set), threads).workspace();
  };
  // Whether residual or aux is C itself shows only when pointers are there: enough for both.
  Problem aliased = problem;
  aliased.residual_is_c = (problem.epilogue & BLUBLAS_EPILOGUE_RESIDUAL) != 0;
  aliased.aux_is_c =
      (problem.epilogue & (BLUBLAS_EPILOGUE_GELU_TANH_GRADIENT | BLUBLAS_EPILOGUE_GELU_ERF_GRADIENT)) != 0;
  return aliased.residual_is_c || aliased.aux_is_c ? std::max(bytes(problem), bytes(aliased)) : bytes(problem);
}

void gemm(const Problem& problem, void* workspace, size_t workspace_bytes) {
  if (problem.batch == 0) return;
  if (problem.compute == BLUBLAS_FLOAT64)
    run<double>(problem, workspace, workspace_bytes);
  else
    run<float>(problem, workspace, workspace_bytes);
}

}  // namespace blublas
