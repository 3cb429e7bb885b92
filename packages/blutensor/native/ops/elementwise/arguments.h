// Inference and launching that the elementwise families share.
#pragma once

#include "ops/elementwise/block_loop.h"
#include "ops/operator.h"

namespace blutensor {

inline void run_unary(UnaryOp op, const View& out, const View& a) {
  const DType compute = compute_dtype(op, a.dtype);
  const UnaryKernel kernel = kernels().elementwise.unary[static_cast<int>(op)][static_cast<int>(compute)];
  const BlockOperand inputs[] = {{&a, compute}};
  block_loop({&out, has_bool_result(op) ? DType::boolean : compute}, inputs, false,
             [kernel](int64_t n, void* o, const auto& in, int64_t) { kernel(n, o, in[0].data); });
}

// `dtype`: the common dtype of the operands.
inline void run_binary(BinaryOp op, DType dtype, const View& out, const View& a, const View& b) {
  const DType compute = compute_dtype(op, dtype);
  const BinaryKernel kernel = kernels().elementwise.binary[static_cast<int>(op)][static_cast<int>(compute)];
  const BlockOperand inputs[] = {{&a, compute}, {&b, compute}};
  block_loop({&out, has_bool_result(op) ? DType::boolean : compute}, inputs, true,
             [kernel](int64_t n, void* o, const auto& in, int64_t) {
               kernel(n, o, in[0].data, in[1].data,
                      in[0].scalar   ? Scalar::first
                      : in[1].scalar ? Scalar::second
                                     : Scalar::none);
             });
}

}  // namespace blutensor
