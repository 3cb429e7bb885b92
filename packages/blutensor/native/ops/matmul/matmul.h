// What the launchers of matmul share between devices.
#pragma once

#include "ops/matmul/operand.h"

namespace blutensor {

// The operands as batches of matrices (vectors got an axis of size 1), and the axes of the batch.
struct MatmulOperands {
  View a, b;    // [..., M, K], [..., K, N]
  Shape batch;  // what their leading axes broadcast to
};
MatmulOperands matmul_operands(const Launch& launch);
// Strides of an operand's leading axes as broadcast to `batch`.
Strides batch_strides(const View& view, const Shape& batch);

// Floating dtypes, on any device; does nothing for integers.
void execute_matmul(const Launch& launch, Execution& run);

}  // namespace blutensor
