#include "cuda/heuristics.h"

#include <algorithm>
#include <atomic>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "cuda/tuned.h"

namespace blublas {
namespace {

// What a configuration reaches on 132 multiprocessors when there is enough to do, TFLOP/s. Only ratios matter.
double rate(const CudaConfig& config, const CudaLayout& layout) {
  const double full = config.math == CudaMath::float32 ? 50 : config.math == CudaMath::tf32 ? 260 : 430;
  const int size = config.block_m * config.block_n;
  if (size < 128 * 128) return (config.math == CudaMath::float32 ? 0.83 : 0.6) * full;
  // Measured on an H200 at 16384 tokens: 48.2 instead of 47.2 where B is K-major, otherwise 48.4 instead of 49.1.
  if (config.math == CudaMath::float32 && size > 128 * 128) return (layout.k_major_b ? 1.02 : 0.98) * full;
  return full;
}

CudaMath math_of(const CudaProblem& p) {
  if (p.a.dtype == BLUBLAS_BFLOAT16) return CudaMath::bfloat16;
  return p.math == BLUBLAS_MATH_TF32 ? CudaMath::tf32 : CudaMath::float32;
}

std::span<const CudaConfig> configs_for(CudaMath math) {
  return math == CudaMath::float32 ? float32_configs() : math == CudaMath::tf32 ? tf32_configs() : bfloat16_configs();
}

const std::vector<const CudaConfig*>& all_configs() {
  static const std::vector<const CudaConfig*> all = [] {
    std::vector<const CudaConfig*> list;
    for (const CudaMath math : {CudaMath::float32, CudaMath::tf32, CudaMath::bfloat16})
      for (const CudaConfig& config : configs_for(math)) list.push_back(&config);
    return list;
  }();
  return all;
}

// What set_cuda_config chose: -1 nothing, the number of configurations the general kernel; and the parts, 0: any.
struct Chosen {
  int32_t index = -1, splits = 0;
};
std::atomic<Chosen>& chosen() {
  static std::atomic<Chosen> value{Chosen{}};
  return value;
}

int64_t ceil_div(int64_t x, int64_t y) { return (x + y - 1) / y; }

CudaPlan plan(const CudaProblem& p, const CudaConfig& config, int64_t splits) {
  const int64_t k_blocks = ceil_div(p.k, config.block_k), per_split = ceil_div(k_blocks, splits);
  return {&config, ceil_div(k_blocks, per_split), per_split * config.block_k};  // no part is empty
}

bool has_memory(const CudaProblem& p, const CudaPlan& plan) { return plan.shared_bytes() <= p.device->shared_bytes; }

// Blocks on a multiprocessor, which has 1 KiB more than a block may have and takes 1 KiB for each.
int blocks_at_once(const CudaProblem& p, const CudaPlan& plan) {
  const int room = (p.device->shared_bytes + 1024) / (plan.shared_bytes() + 1024);
  return std::clamp(room, 1, plan.config->blocks);
}

// Least of K in a part.
constexpr int64_t kLeastK = 64;

// Seconds, by a model: waves of as many tiles as the device holds at once, each with a start and an end that cost as much
// as 3 blocks of K and 64 of k; parts are written and read once at 3 TB/s, by a second kernel. The tiles of a wave end
// together, so that a part of a wave takes as long as a whole one: a tile that is alone on a multiprocessor made for
// several is hardly faster.
double seconds(const CudaProblem& p, const CudaLayout& layout, const CudaPlan& plan) {
  const CudaConfig& config = *plan.config;
  const int64_t tiles = ceil_div(p.m, config.block_m) * ceil_div(p.n, config.block_n) * p.batch * plan.splits;
  const int64_t sms = p.device->num_multiprocessors;
  const int blocks = blocks_at_once(p, plan);
  const double alone = std::max(1.1, 0.8 * blocks);
  const double in_turn = tiles <= sms ? alone : static_cast<double>(ceil_div(tiles, sms * blocks) * blocks);
  const double k = static_cast<double>(plan.k_per_split + 3 * config.block_k + 64);
  double total = in_turn * 2.0 * config.block_m * config.block_n * k / (rate(config, layout) * 1e12 / 132);
  if (plan.splits > 1) total += 2.5e-6 + 8.0 * static_cast<double>(p.m * p.n * p.batch * plan.splits) / 3e12;
  return total;
}

CudaPlan best_plan(const CudaProblem& p, const CudaLayout& layout, CudaMath math) {
  CudaPlan best;
  double least = 0;
  for (const CudaConfig& config : configs_for(math)) {
    int64_t before = 0;
    for (int64_t splits = 1; splits <= 32; ++splits) {
      const CudaPlan candidate = plan(p, config, splits);
      if (candidate.splits == before) continue;
      if (splits > 1 && candidate.k_per_split < kLeastK) break;
      before = candidate.splits;
      if (!has_memory(p, candidate)) continue;
      const double time = seconds(p, layout, candidate);
      if (best.config == nullptr || time < least) best = candidate, least = time;
    }
  }
  return best;
}

bool fits(const Operand& x, int64_t outer, int64_t outer_stride, int64_t inner, int64_t inner_stride) {
  const int64_t item = dtype_bytes(x.dtype);
  return (inner_stride == 1 || inner == 1) && (outer == 1 || outer_stride * item % 16 == 0) &&
         reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && x.batch_stride * item % 16 == 0;
}

}  // namespace

CudaLayout cuda_layout(const CudaProblem& p) {
  constexpr int64_t kLimit = int64_t{1} << 28;  // kernels count bytes along an axis in 32 bits
  if (p.compute != BLUBLAS_FLOAT32 || p.k == 0 || std::max({p.m, p.n, p.k}) >= kLimit) return {};
  CudaLayout layout;
  layout.k_major_a = fits(p.a, p.m, p.a.row_stride, p.k, p.a.col_stride);
  layout.k_major_b = fits(p.b, p.n, p.b.col_stride, p.k, p.b.row_stride);
  layout.fits = (layout.k_major_a || fits(p.a, p.k, p.a.col_stride, p.m, p.a.row_stride)) &&
                (layout.k_major_b || fits(p.b, p.k, p.b.row_stride, p.n, p.b.col_stride));
  return layout;
}

CudaPlan choose_plan(const CudaProblem& p, const CudaLayout& layout) {
  const auto& all = all_configs();
  const Chosen named = chosen().load(std::memory_order_relaxed);
  if (!layout.fits || named.index == static_cast<int32_t>(all.size())) return {};
  const CudaMath math = math_of(p);
  if (named.index >= 0) {
    const CudaConfig& config = *all[static_cast<size_t>(named.index)];
    if (config.math == math) {
      const CudaPlan wanted = plan(p, config, std::max(1, named.splits));
      if (has_memory(p, wanted)) return wanted;
    }
  }
  for (const TunedChoice& tuned : kTunedChoices) {
    if (tuned.arch != p.device->arch || tuned.m != p.m || tuned.n != p.n || tuned.k != p.k || p.batch != 1 ||
        tuned.k_major_a != layout.k_major_a || tuned.k_major_b != layout.k_major_b)
      continue;
    for (const CudaConfig& config : configs_for(math))
      if (std::string_view(config.name) == tuned.config) return plan(p, config, tuned.splits);
  }
  return best_plan(p, layout, math);
}

void set_cuda_config(const char* name) {
  const std::string wanted = name != nullptr ? name : "";
  if (wanted == "auto") return chosen().store({});
  const auto& all = all_configs();
  if (wanted == "general") return chosen().store({static_cast<int32_t>(all.size()), 0});
  const size_t slash = wanted.find('/');
  int32_t splits = 0;
  if (slash != std::string::npos) {
    const std::string number = wanted.substr(slash + 1);
    if (number.empty() || number.size() > 2 || number.find_first_not_of("0123456789") != std::string::npos)
      fail_value("[set_cuda_config] expected a number of parts after \"/\", got \"" + wanted + "\"");
    splits = std::stoi(number);
  }
  for (size_t i = 0; i < all.size(); ++i)
    if (wanted.substr(0, slash) == all[i]->name) return chosen().store({static_cast<int32_t>(i), splits});
  fail_value("[set_cuda_config] expected \"auto\", \"general\" or a name that blublas_cuda_config_name knows, got \"" +
             wanted + "\"");
}

bool is_config_chosen(const CudaProblem& p) {
  const Chosen named = chosen().load(std::memory_order_relaxed);
  if (named.index < 0) return false;
  const auto& all = all_configs();
  return named.index == static_cast<int32_t>(all.size()) || all[static_cast<size_t>(named.index)]->math == math_of(p);
}

const char* cuda_config_name(int32_t index) {
  const auto& all = all_configs();
  if (index == static_cast<int32_t>(all.size())) return "general";
  return index >= 0 && index < static_cast<int32_t>(all.size()) ? all[static_cast<size_t>(index)]->name : nullptr;
}

}  // namespace blublas
