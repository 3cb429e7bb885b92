// Elementwise launches on the device, for operators of other families too.
#pragma once

#include <cuda_runtime_api.h>

#include "ops/elementwise/elementwise_kernels.h"
#include "ops/operator.h"

namespace blutensor::cuda {

void run_unary(UnaryOp op, const View& out, const View& a, cudaStream_t stream);
// `dtype`: the common dtype of the operands. `out` may be one of them.
void run_binary(BinaryOp op, DType dtype, const View& out, const View& a, const View& b, cudaStream_t stream);

void launch_where(const Launch& args);

}  // namespace blutensor::cuda
