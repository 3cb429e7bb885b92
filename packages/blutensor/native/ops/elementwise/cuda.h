// Elementwise launches on the device, for operators of other families too.
#pragma once

#include <cuda_runtime_api.h>

#include "ops/elementwise/elementwise_kernels.h"
#include "ops/elementwise/iteration.h"
#include "ops/operator.h"

namespace blutensor::cuda {

void run_unary(UnaryOp op, const View& out, const View& a, cudaStream_t stream);
// `dtype`: the common dtype of the operands. `out` may be one of them.
void run_binary(BinaryOp op, DType dtype, const View& out, const View& a, const View& b, cudaStream_t stream);

// Parts of these: integers and bool (`dtype`: the common one), and floats in float64.
void run_integer_unary(UnaryOp op, const Iteration& it, const View& out, const View& a, cudaStream_t stream);
void run_integer_binary(BinaryOp op, DType dtype, const Iteration& it, const View& out, const View& a, const View& b,
                        cudaStream_t stream);
void run_wide_unary(UnaryOp op, const Iteration& it, const View& out, const View& a, cudaStream_t stream);
void run_wide_binary(BinaryOp op, DType dtype, const Iteration& it, const View& out, const View& a, const View& b,
                     cudaStream_t stream);

void launch_where(const Launch& args);

}  // namespace blutensor::cuda
