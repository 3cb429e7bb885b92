// Sums of float32, bfloat16 and float16 in packs of 16 bytes, accumulated in float32.
//
// Rows: each output's elements lie side by side; a warp or a block per row, long rows cut into splits. Columns:
// neighbouring outputs lie side by side (bias gradients); 32 packs of outputs by 8 rows a block, rows cut into splits.
// Splits are added by a second launch of the same kernels. Bytes: the operand, once.
#pragma once

#include <cuda_runtime_api.h>

#include "ops/reduce/geometry.h"

namespace blutensor {
class CudaTable;
void add_statistics_cuda(CudaTable& table);  // a part of add_reduce_cuda()
}  // namespace blutensor

namespace blutensor::cuda {

enum class SumKind { rows, columns, any };

struct SumPlan {
  SumKind kind = SumKind::any;
  int64_t splits = 1, split_length = 0;  // rows: in packs; columns: in rows
};

// `data` may be nullptr (when workspace is asked for): taken as aligned then.
SumPlan plan_sum(const ReduceGeometry& g, const View& x);
size_t sum_workspace(const ReduceGeometry& g, const SumPlan& plan);
// For the plans of kind rows and columns. out = sum / divisor.
void run_sum(const SumPlan& plan, const ReduceGeometry& g, const View& x, const View& out, double divisor,
             void* workspace, cudaStream_t stream);

}  // namespace blutensor::cuda
