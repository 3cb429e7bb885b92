#include "cuda/launch.h"

#include <atomic>
#include <limits>

#include "common/status.h"

namespace blublas {
namespace {

// Kernels with more than 48 KiB of shared memory have to be told once per device.
void allow_shared_memory(const void* kernel, int bytes) {
  if (bytes > 48 * 1024)
    check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
               "cudaFuncSetAttribute");
}

int64_t ceil_div(int64_t x, int64_t y) { return (x + y - 1) / y; }

}  // namespace

void tile_launch(const CudaProblem& problem, const CudaLayout& layout, const CudaPlan& plan,
                 const EpilogueParams& epilogue) {
  const CudaConfig& config = *plan.config;
  GemmParams p;
  p.a = problem.a.data, p.b = problem.b.data;
  p.a_stride = layout.k_major_a ? problem.a.row_stride : problem.a.col_stride;
  p.b_stride = layout.k_major_b ? problem.b.col_stride : problem.b.row_stride;
  p.a_batch_stride = problem.a.batch_stride, p.b_batch_stride = problem.b.batch_stride;
  p.m = static_cast<int32_t>(problem.m), p.n = static_cast<int32_t>(problem.n), p.k = static_cast<int32_t>(problem.k);
  p.tiles_m = static_cast<int32_t>(ceil_div(problem.m, config.block_m));
  p.tiles_n = static_cast<int32_t>(ceil_div(problem.n, config.block_n));
  p.splits = static_cast<int32_t>(plan.splits);
  p.k_per_split = static_cast<int32_t>(plan.k_per_split);
  p.epilogue = epilogue;
  const int64_t tiles = static_cast<int64_t>(p.tiles_m) * p.tiles_n;
  if (tiles > std::numeric_limits<int32_t>::max())
    fail_value("[gemm] expected at most 2^31 tiles of " + std::to_string(config.block_m) + " x " +
               std::to_string(config.block_n) + ", got " + std::to_string(tiles));
  const auto& kernels = plan.has_totals() ? config.kernels_with_totals : config.kernels;
  const void* kernel = kernels[layout.k_major_a][layout.k_major_b];
  const int shared_bytes = plan.shared_bytes();
  allow_shared_memory(kernel, shared_bytes);
  const dim3 grid(static_cast<unsigned>(tiles), 1, static_cast<unsigned>(problem.batch * plan.splits));
  void* arguments[] = {&p};
  check_cuda(cudaLaunchKernel(kernel, grid, dim3(static_cast<unsigned>(config.threads)), arguments,
                              static_cast<size_t>(shared_bytes), problem.stream),
             config.name);
}

}  // namespace blublas
