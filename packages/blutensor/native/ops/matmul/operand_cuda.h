// The copies that Execution makes on a CUDA device; stubs in no_cuda.cpp where the build has none.
#pragma once

#include "ops/operator.h"

namespace blutensor {

// copy_to_contiguous() and store_contiguous() (ops/matmul/operand.h) in the order of `stream`.
void copy_to_contiguous_cuda(const View& source, void* to, DType dtype, void* stream);
void store_contiguous_cuda(const void* from, DType dtype, const View& to, bool accumulate, void* stream);

}  // namespace blutensor
