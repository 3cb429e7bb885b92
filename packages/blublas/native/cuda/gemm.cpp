// The dispatcher of GEMM on CUDA: empty products, batches by pointers, row sums; then kernels for compute capability
// 9.0, tile kernels, or the general one, and the second passes that these need.
#include <algorithm>
#include <string>
#include <utility>

#include "common/status.h"
#include "cuda/cuda.h"
#include "cuda/device.h"
#include "cuda/general.h"
#include "cuda/heuristics.h"
#include "cuda/launch.h"
#include "cuda/reduce.h"
#include "cuda/sm90/sm90.h"

namespace blublas {
namespace {

constexpr int64_t kMaxGridZ = 65535;
constexpr size_t kAlignment = 256;

size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }
int64_t ceil_div(int64_t x, int64_t y) { return (x + y - 1) / y; }

CudaProblem describe(const Problem& problem, const blublas_gemm_args& args) {
  CudaProblem result;
  static_cast<Problem&>(result) = problem;
  result.math = args.math;
  result.device = &cuda_device(args.device_index);
  result.stream = static_cast<cudaStream_t>(args.stream);
  result.workspace = static_cast<char*>(args.workspace);
  result.workspace_bytes = args.workspace_bytes;
  return result;
}

// How one product is done, and what lies where in the workspace. Row sums are done before everything else and use the
// same memory.
struct Stages {
  CudaLayout layout;
  CudaPlan plan;
  int64_t splits = 1, parts_stride = 0;  // of a row, in elements
  int64_t num_partials = 0;              // of column sums
  size_t parts_bytes = 0, partials_bytes = 0;
};

// The general kernel cuts K only where there are few tiles for a long K.
int64_t general_splits(const CudaProblem& p) {
  const int64_t tiles = ceil_div(p.m, 64) * ceil_div(p.n, 64) * p.batch;
  return std::clamp<int64_t>(std::min(p.k / 256, 512 / tiles), 1, 64);
}

Stages stages_for(const CudaProblem& p, const CudaLayout& layout) {
  Stages s;
  s.layout = layout;
  s.plan = choose_plan(p, s.layout);
  s.splits = s.plan.config != nullptr ? s.plan.splits : general_splits(p);
  if (s.splits > 1) {
    s.parts_stride = ceil_div(p.n, 4) * 4;
    s.parts_bytes = aligned(static_cast<size_t>(p.batch * s.splits * p.m * s.parts_stride * dtype_bytes(p.compute)));
  }
  if (p.epilogue & BLUBLAS_EPILOGUE_COLUMN_SUM) {
    const int64_t rows = s.splits > 1               ? finish_rows_per_partial()
                         : s.plan.config != nullptr ? s.plan.config->warp_m
                                                    : general_rows_per_partial();
    s.num_partials = ceil_div(p.m, rows);
    s.partials_bytes = aligned(static_cast<size_t>(p.batch * s.num_partials * p.n * dtype_bytes(p.compute)));
  }
  return s;
}

// As many of the batch as one launch takes, whatever the plan.
int64_t batch_per_launch() { return kMaxGridZ / 100; }

CudaProblem members(const CudaProblem& p, int64_t first, int64_t count) {
  CudaProblem part = p;
  for (Operand* x : {&part.a, &part.b, &part.c, &part.aux, &part.residual})
    if (x->array == nullptr && x->data != nullptr) x->data = x->of_batch(first);
  for (Vector* x : {&part.bias, &part.column_sum, &part.row_sum_a})
    if (x->data != nullptr) x->data = x->of_batch(first);
  part.batch = count;
  return part;
}

void add_column_sums(const CudaProblem& p, const char* partials, int64_t num_partials) {
  if (p.epilogue & BLUBLAS_EPILOGUE_COLUMN_SUM)
    add_partials_launch(p, partials, num_partials, p.n, p.column_sum,
                        p.epilogue & BLUBLAS_EPILOGUE_COLUMN_SUM_ACCUMULATE);
}

// C^T = B^T A^T, where that makes C row-major and nothing depends on which axis is which.
CudaProblem row_major(const CudaProblem& p) {
  constexpr int32_t kOneAxis = BLUBLAS_EPILOGUE_BIAS | BLUBLAS_EPILOGUE_COLUMN_SUM | BLUBLAS_EPILOGUE_ROW_SUM_A;
  if (p.c.row_stride != 1 || p.c.col_stride == 1 || (p.epilogue & kOneAxis)) return p;
  CudaProblem t = p;
  std::swap(t.a, t.b);
  std::swap(t.m, t.n);
  for (Operand* x : {&t.a, &t.b, &t.c, &t.aux, &t.residual}) std::swap(x->row_stride, x->col_stride);
  return t;
}

bool is_for_sm90(const CudaProblem& p) {
  return p.device->arch == 90 && p.k > 0 && !is_config_chosen(p) && sm90_supports(p);
}

void run_portable(const CudaProblem& p) {
  const Stages s = stages_for(p, cuda_layout(p));
  char* partials = p.workspace + s.parts_bytes;
  EpilogueParams finish = make_epilogue(p);
  finish.partials = s.num_partials > 0 ? partials : nullptr;
  finish.num_partials = s.num_partials;
  const EpilogueParams first = s.splits > 1 ? store_only(p, p.workspace, s.parts_stride, p.m * s.parts_stride) : finish;
  if (s.plan.config != nullptr)
    tile_launch(p, s.layout, s.plan, first);
  else
    general_launch(p, first, s.splits);
  if (s.splits > 1) finish_splits_launch(p, finish, p.workspace, s.splits, s.parts_stride);
  add_column_sums(p, partials, s.num_partials);
}

// One batch, without pointer arrays, that fits one launch.
void run(CudaProblem p) {
  const bool sums_rows = p.epilogue & BLUBLAS_EPILOGUE_ROW_SUM_A;
  if (p.m == 0 || p.n == 0) {
    // No element of C, but the sums have their values.
    if (p.n > 0) add_column_sums(p, nullptr, 0);
    if (p.m > 0 && sums_rows) row_sum_launch(p, p.workspace);
    return;
  }
  if (sums_rows && !(is_for_sm90(p) && sm90_sums_rows(p))) {
    row_sum_launch(p, p.workspace);
    p.epilogue &= ~(BLUBLAS_EPILOGUE_ROW_SUM_A | BLUBLAS_EPILOGUE_ROW_SUM_A_ACCUMULATE);
  }
  p = row_major(p);
  if (is_for_sm90(p)) return sm90_launch(p);
  run_portable(p);
}

void run_by_pointers(const CudaProblem& p) {
  for (int64_t t = 0; t < p.batch; ++t) {
    CudaProblem one = members(p, t, 1);
    for (Operand* x : {&one.a, &one.b, &one.c})
      if (x->array != nullptr) x->data = static_cast<char*>(x->array[t]), x->array = nullptr, x->batch_stride = 0;
    run(one);
  }
}

// The most that any alignment of the pointers needs.
size_t workspace_for(const CudaProblem& p) {
  const bool sums_rows = p.epilogue & BLUBLAS_EPILOGUE_ROW_SUM_A;
  size_t bytes = sums_rows && p.m > 0 ? row_sum_workspace(p) : 0;
  if (p.m == 0 || p.n == 0) return bytes;
  for (const bool row_sums_kept : {true, false}) {
    CudaProblem x = p;
    for (Operand* operand : {&x.a, &x.b, &x.c, &x.aux, &x.residual}) operand->data = nullptr, operand->array = nullptr;
    if (!row_sums_kept) x.epilogue &= ~(BLUBLAS_EPILOGUE_ROW_SUM_A | BLUBLAS_EPILOGUE_ROW_SUM_A_ACCUMULATE);
    x = row_major(x);
    if (is_for_sm90(x)) bytes = std::max(bytes, sm90_workspace(x));
    for (const CudaLayout& layout : {cuda_layout(x), CudaLayout{}}) {
      const Stages s = stages_for(x, layout);
      bytes = std::max(bytes, s.parts_bytes + s.partials_bytes);
    }
  }
  return bytes;
}

size_t workspace_bytes(const CudaProblem& p) {
  if (p.batch == 0) return 0;
  size_t bytes = 0;
  // Whole launches, the last one, and single products, which pointer arrays make of a batch.
  for (const int64_t batch : {std::min(p.batch, batch_per_launch()), p.batch % batch_per_launch(), int64_t{1}}) {
    if (batch == 0) continue;
    CudaProblem part = p;
    part.batch = batch;
    if (batch == 1)
      for (Operand* x : {&part.a, &part.b, &part.c, &part.aux, &part.residual}) x->batch_stride = 0;
    bytes = std::max(bytes, workspace_for(part));
  }
  return bytes;
}

}  // namespace

size_t cuda_gemm_workspace(const Problem& problem, const blublas_gemm_args& args) {
  return workspace_bytes(describe(problem, args));
}

void cuda_gemm(const Problem& problem, const blublas_gemm_args& args) {
  const CudaProblem p = describe(problem, args);
  if (p.batch == 0) return;
  const size_t needed = workspace_bytes(p);
  if (p.workspace_bytes < needed)
    fail_value("[gemm] expected a workspace of at least " + std::to_string(needed) + " bytes, got " +
               std::to_string(p.workspace_bytes) + ": ask blublas_gemm_workspace");
  if (needed > 0 && (p.workspace == nullptr || reinterpret_cast<uintptr_t>(p.workspace) % kAlignment != 0))
    fail_value("[gemm] expected a workspace aligned to 256 bytes, got one that is NULL or not aligned");
  const CurrentDevice current(p.device->index);
  if (p.a.array != nullptr || p.b.array != nullptr || p.c.array != nullptr) return run_by_pointers(p);
  for (int64_t first = 0; first < p.batch; first += batch_per_launch())
    run(members(p, first, std::min(batch_per_launch(), p.batch - first)));
}

void cuda_set_config(const char* name) { set_cuda_config(name); }
const char* cuda_config(int32_t index) { return cuda_config_name(index); }

}  // namespace blublas
