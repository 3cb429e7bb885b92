#include "cuda/sm90/launch.h"

#include <algorithm>
#include <mutex>
#include <set>
#include <utility>

#include "cuda/sm90/passes.h"
#include "cuda/sm90/tensor_map.h"

namespace blublas::sm90 {
namespace {

constexpr int kThreads = 384;

// Lets a kernel have its shared memory; once per kernel and device.
void allow_shared(const Kernel& kernel, int device) {
  static std::mutex mutex;
  static std::set<std::pair<const void*, int>> allowed;
  const std::lock_guard lock(mutex);
  if (allowed.count({kernel.function, device}) != 0) return;
  check_cuda(cudaFuncSetAttribute(kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize, kernel.shared_bytes),
             "cudaFuncSetAttribute");
  allowed.insert({kernel.function, device});
}

// The map of an operand whose rows in memory run along K (Major::k), or along M or N.
CUtensorMap map_of(const void* data, int32_t dtype, Major major, int64_t extent, int64_t k, int64_t stride,
                   int32_t box_outer) {
  return major == Major::k ? tensor_map(data, dtype, k, extent, stride, box_outer)
                           : tensor_map(data, dtype, extent, k, stride, box_outer);
}

Finish finish_of(const CudaProblem& p) {
  const auto is = [](const Operand& x) { return x.dtype == BLUBLAS_BFLOAT16; };
  Finish f;
  f.alpha = static_cast<float>(p.alpha);
  f.c = p.c.data;
  f.ld_c = p.c.row_stride;
  f.flags |= is(p.c) ? c_is_bf16 : 0;
  const auto read = [&](const Operand& x) {
    f.side = x.data;
    f.ld_side = x.row_stride;
    f.flags |= is(x) ? side_is_bf16 : 0;
  };
  if (p.epilogue & BLUBLAS_EPILOGUE_BIAS) {
    f.bias = p.bias.data;
    f.flags |= p.bias.dtype == BLUBLAS_BFLOAT16 ? bias_is_bf16 : 0;
  }
  if (p.epilogue & BLUBLAS_EPILOGUE_STORE_PREACTIVATION) {
    f.aux = p.aux.data;
    f.ld_aux = p.aux.row_stride;
    f.flags |= is(p.aux) ? aux_is_bf16 : 0;
  } else if (p.epilogue & (BLUBLAS_EPILOGUE_GELU_TANH_GRADIENT | BLUBLAS_EPILOGUE_GELU_ERF_GRADIENT)) {
    read(p.aux);
  }
  if (p.epilogue & BLUBLAS_EPILOGUE_RESIDUAL) read(p.residual);
  if (p.epilogue & BLUBLAS_EPILOGUE_ACCUMULATE) read(p.c);
  if (p.beta != 0) {
    read(p.c);
    f.side_scale = static_cast<float>(p.beta);
    f.flags |= side_before_bias;
  }
  return f;
}

void launch(const Kernel& kernel, const CudaProblem& p, CUtensorMap a, CUtensorMap b, Finish finish, Cut cut) {
  allow_shared(kernel, p.device->index);
  const int32_t units = cut.rows * cut.columns * cut.splits;
  cudaLaunchConfig_t config{};
  config.gridDim =
      dim3(static_cast<unsigned>(std::min(units, p.device->num_multiprocessors / kernel.cluster) * kernel.cluster));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = static_cast<size_t>(kernel.shared_bytes);
  config.stream = p.stream;
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(kernel.cluster), 1, 1};
  config.attrs = &cluster;
  config.numAttrs = 1;
  void* arguments[] = {&a, &b, &finish, &cut};
  check_cuda(cudaLaunchKernelExC(&config, kernel.function, arguments), "gemm_sm90");
}

}  // namespace

void run(const CudaProblem& p, const Plan& plan) {
  const Kernel& kernel = *plan.kernel;
  const Cut& cut = plan.cut;
  const Operand &first = plan.swapped ? p.b : p.a, &second = plan.swapped ? p.a : p.b;
  const auto stride_of = [](const Operand& x) { return x.col_stride == 1 ? x.row_stride : x.col_stride; };
  const void* b = second.data;
  int64_t b_stride = stride_of(second);
  if (plan.copy_b) {
    float* copy = reinterpret_cast<float*>(p.workspace + plan.b_at);
    transpose_copy(static_cast<const float*>(b), b_stride, copy, padded(p.k), p.k, cut.n, p.stream);
    b = copy;
    b_stride = padded(p.k);
  }
  // In a cluster of two, each block loads half of B's tile.
  const CUtensorMap a_map = map_of(first.data, p.a.dtype, kernel.a, cut.m, p.k, stride_of(first),
                                   kernel.a == Major::k ? tile_m : kernel.tile_k);
  const CUtensorMap b_map = map_of(b, p.b.dtype, kernel.b, cut.n, p.k, b_stride,
                                   (kernel.b == Major::k ? kernel.tile_n : kernel.tile_k) / kernel.cluster);
  const Finish finish = finish_of(p);
  if (kernel.kind != Kind::partial) return launch(kernel, p, a_map, b_map, finish, cut);

  Finish sums;
  sums.c = p.workspace + plan.partials_at;
  sums.ld_c = padded(cut.n);
  RowSum row_sum;
  if (plan.sums_rows && p.epilogue & BLUBLAS_EPILOGUE_ROW_SUM_A) {
    sums.row_sums = reinterpret_cast<float*>(p.workspace + plan.row_sums_at);
    sums.ld_row_sums = padded_rows(plan);
    row_sum = {sums.row_sums, sums.ld_row_sums, row_sum_parts(cut), reinterpret_cast<float*>(p.row_sum_a.data),
               (p.epilogue & BLUBLAS_EPILOGUE_ROW_SUM_A_ACCUMULATE) != 0};
  }
  launch(kernel, p, a_map, b_map, sums, cut);
  finish_partials(reinterpret_cast<const float*>(sums.c), sums.ld_c, plan.swapped, cut.splits,
                  static_cast<int32_t>(p.m), static_cast<int32_t>(p.n), finish, plan.kind, row_sum, p.stream);
}

}  // namespace blublas::sm90
