// Stands in for operand_cuda.cu in builds without CUDA, where no tensor lies on a CUDA device.
#include "ops/matmul/operand_cuda.h"

namespace blutensor {

void copy_to_contiguous_cuda(const View&, void*, DType, void*) {
  fail(Status::unsupported, "[copy] this build has no CUDA kernels");
}

void store_contiguous_cuda(const void*, DType, const View&, bool, void*) {
  fail(Status::unsupported, "[store] this build has no CUDA kernels");
}

}  // namespace blutensor
