// The choice of kernel and cut, by a model of the time: units of work in waves over the multiprocessors.
#include "cuda/sm90/plan.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace blublas::sm90 {
namespace {

constexpr int64_t kMaxSize = std::numeric_limits<int32_t>::max() / 2;
constexpr int32_t kMaxSplits = 32;
constexpr int32_t kGradients = BLUBLAS_EPILOGUE_GELU_TANH_GRADIENT | BLUBLAS_EPILOGUE_GELU_ERF_GRADIENT;
constexpr int32_t kUsesAux = BLUBLAS_EPILOGUE_STORE_PREACTIVATION | kGradients;

// Nanoseconds, measured on an H200: a tile's products per 128 bytes of K, and its epilogue, plain or with GELU or a side
// matrix. With alternating warpgroups the epilogue runs under the products of the next tile.
struct Cost {
  int tile_n;
  bool cooperative;
  double per_block, plain, heavy;
};
constexpr Cost kCosts[] = {
    {256, true, 818, 930, 7600},
    {192, true, 609, 970, 5500},
    {128, false, 400, 4500, 10000},
};
// Partial sums go through memory twice, shared by all multiprocessors; the second pass is one more launch.
constexpr double kBytesPerNanosecond = 2500, kPass = 3000;

// Of one multiprocessor that does `units` of them.
double time_of(const Cost& cost, double units, double blocks, bool heavy) {
  const double products = blocks * cost.per_block, epilogue = heavy ? cost.heavy : cost.plain;
  if (cost.cooperative) return units * (products + epilogue);
  return units * std::max(products, (products + epilogue) / 2) + epilogue;
}

bool is_matrix_supported(const Operand& x) {
  const int64_t item = dtype_bytes(x.dtype);
  // 8 neighbours of bfloat16 or 2 of float32 in one access.
  return (x.dtype == BLUBLAS_BFLOAT16 || x.dtype == BLUBLAS_FLOAT32) && x.col_stride == 1 &&
         is_aligned(x, item == 2 ? 16 : 8);
}

bool kind_of(const CudaProblem& p, Kind& kind) {
  constexpr int32_t gelu = BLUBLAS_EPILOGUE_GELU_TANH | BLUBLAS_EPILOGUE_GELU_ERF |
                           BLUBLAS_EPILOGUE_GELU_TANH_GRADIENT | BLUBLAS_EPILOGUE_GELU_ERF_GRADIENT;
  switch (p.epilogue & gelu) {
    case 0:
      kind = Kind::plain;
      return true;
    case BLUBLAS_EPILOGUE_GELU_TANH:
      kind = Kind::gelu_tanh;
      return true;
    case BLUBLAS_EPILOGUE_GELU_ERF:
      kind = Kind::gelu_erf;
      return true;
    case BLUBLAS_EPILOGUE_GELU_TANH_GRADIENT:
      kind = Kind::gelu_tanh_gradient;
      return true;
    case BLUBLAS_EPILOGUE_GELU_ERF_GRADIENT:
      kind = Kind::gelu_erf_gradient;
      return true;
    default:
      return false;
  }
}

bool is_supported(const CudaProblem& p) {
  if (p.batch != 1 || p.epilogue & BLUBLAS_EPILOGUE_COLUMN_SUM) return false;
  if (p.m > kMaxSize || p.n > kMaxSize || p.k > kMaxSize) return false;
  const bool bf16 = p.a.dtype == BLUBLAS_BFLOAT16, tf32 = p.a.dtype == BLUBLAS_FLOAT32 && p.math == BLUBLAS_MATH_TF32;
  if (p.b.dtype != p.a.dtype || !(bf16 || tf32)) return false;
  if (!is_aligned(p.a, 16) || !is_aligned(p.b, 16) || !is_matrix_supported(p.c)) return false;
  for (const Operand* x : {&p.a, &p.b}) {
    // Rows that overlap or run backwards are not for the copy engine.
    const int64_t inner = x->col_stride == 1 ? x->row_stride : x->col_stride;
    if ((x->col_stride != 1 && x->row_stride != 1) || inner < 1) return false;
  }
  const bool residual = p.epilogue & BLUBLAS_EPILOGUE_RESIDUAL, gradient = p.epilogue & kGradients;
  if (residual && !is_matrix_supported(p.residual)) return false;
  if (p.epilogue & kUsesAux && !is_matrix_supported(p.aux)) return false;
  // One matrix besides the operands is read.
  return residual + gradient + (p.beta != 0) + ((p.epilogue & BLUBLAS_EPILOGUE_ACCUMULATE) != 0) <= 1;
}

int32_t divide_up(int64_t a, int64_t b) { return static_cast<int32_t>((a + b - 1) / b); }

size_t reserve(size_t& bytes, int64_t rows, int64_t columns) {
  const size_t at = bytes;
  bytes += (static_cast<size_t>(rows * padded(columns)) * sizeof(float) + 255) / 256 * 256;
  return at;
}

}  // namespace

Plan make_plan(const CudaProblem& p, const Choice& choice) {
  Plan best;
  if (!is_supported(p) || !kind_of(p, best.kind)) return best;
  const bool bf16 = p.a.dtype == BLUBLAS_BFLOAT16;
  Major a = p.a.col_stride == 1 ? Major::k : Major::mn, b = p.b.row_stride == 1 ? Major::k : Major::mn;
  int64_t m = p.m, n = p.n;
  if (!bf16 && b == Major::mn) {
    // tf32 takes A in both layouts, but B with K contiguous only: the narrower one is copied.
    best.copy_b = true;
    best.swapped = a == Major::mn && n > m;
    if (best.swapped) std::swap(m, n);
    b = Major::k;
  }

  // What the kernels' own epilogue does (Finish); the second pass after partial sums takes anything.
  const bool gelu = best.kind == Kind::gelu_tanh || best.kind == Kind::gelu_erf;
  const bool reads_side = p.beta != 0 || p.epilogue & (BLUBLAS_EPILOGUE_RESIDUAL | BLUBLAS_EPILOGUE_ACCUMULATE);
  const bool direct = !(gelu && reads_side) &&
                      (!(p.epilogue & BLUBLAS_EPILOGUE_RESIDUAL) || p.residual.dtype == p.c.dtype) &&
                      (!(p.epilogue & kUsesAux) || p.aux.dtype == p.c.dtype);
  double best_time = std::numeric_limits<double>::infinity();
  for (const Kernel& kernel : bf16 ? bf16_kernels() : tf32_kernels()) {
    const bool partial = kernel.kind == Kind::partial;
    if (kernel.a != a || kernel.b != b || !(partial || (kernel.kind == best.kind && direct))) continue;
    if (choice.tile_n != 0 && choice.tile_n != kernel.tile_n) continue;
    if (choice.cluster != 0 && choice.cluster != kernel.cluster) continue;
    if (choice.cooperative >= 0 && (choice.cooperative != 0) != kernel.cooperative) continue;
    const Cost* cost = std::find_if(std::begin(kCosts), std::end(kCosts), [&](const Cost& c) {
      return c.tile_n == kernel.tile_n && c.cooperative == kernel.cooperative;
    });
    Cut cut;
    cut.m = static_cast<int32_t>(m);
    cut.n = static_cast<int32_t>(n);
    cut.rows = divide_up(m, int64_t{tile_m} * kernel.cluster);
    cut.columns = divide_up(n, kernel.tile_n);
    cut.row_sum_columns = std::min(cut.columns, max_row_sum_columns);
    cut.group_m = choice.group_m != 0 ? choice.group_m : 16 / kernel.cluster;
    // With A from registers, blocks of K go in pairs; what lies beyond K is 0.
    const bool pairs = !bf16 && a == Major::mn;
    const int32_t unit = pairs ? 2 : 1, k_units = divide_up(p.k, kernel.tile_k * unit);
    cut.k_blocks = k_units * unit;
    const int32_t most = partial ? std::min(kMaxSplits, k_units) : 1;
    for (int32_t splits = partial && !pairs && direct ? 2 : 1; splits <= most; ++splits) {
      cut.k_blocks_per_split = divide_up(k_units, splits) * unit;
      cut.splits = divide_up(cut.k_blocks, cut.k_blocks_per_split);
      if (choice.splits != 0 && choice.splits != splits) continue;
      const double waves =
          divide_up(int64_t{cut.rows} * cut.columns * cut.splits, p.device->num_multiprocessors / kernel.cluster);
      double time = time_of(*cost, waves, cut.k_blocks_per_split, !partial && (best.kind != Kind::plain || reads_side));
      if (partial) time += kPass + 4.0 * static_cast<double>(p.m * p.n) * cut.splits / kBytesPerNanosecond;
      if (time < best_time) {
        best_time = time;
        best.kernel = &kernel;
        best.cut = cut;
      }
    }
  }
  if (best.kernel == nullptr) return best;
  if (best.copy_b) best.b_at = reserve(best.bytes, n, p.k);
  // Tiles of float32 are rounded to tf32 on their way; the sums are of the operand itself.
  if (bf16 && best.kernel->kind == Kind::partial && a == Major::mn && !best.swapped) {
    best.sums_rows = true;
    best.row_sums_at = reserve(best.bytes, row_sum_parts(best.cut), padded_rows(best));
  }
  if (best.kernel->kind == Kind::partial) best.partials_at = reserve(best.bytes, m * best.cut.splits, n);
  return best;
}

}  // namespace blublas::sm90
