#include "cuda/sm90/tensor_map.h"

#include <string>

#include "common/status.h"
#include "cuda/problem.h"

namespace blublas::sm90 {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

// The driver's function, without linking to the driver: the library also loads where there is none.
Encode encode_function() {
  static const Encode function = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
    check_cuda(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result),
               "cudaGetDriverEntryPointByVersion");
    if (result != cudaDriverEntryPointSuccess)
      throw Error(BLUBLAS_UNSUPPORTED, "[gemm] the driver has no cuTensorMapEncodeTiled");
    return reinterpret_cast<Encode>(found);
  }();
  return function;
}

}  // namespace

CUtensorMap tensor_map(const void* data, int32_t dtype, int64_t inner, int64_t outer, int64_t stride,
                       int32_t box_outer) {
  const bool bf16 = dtype == BLUBLAS_BFLOAT16;
  const int64_t item = dtype_bytes(dtype);
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(inner), static_cast<cuuint64_t>(outer)};
  // A single row may say anything about its stride, but the copy engine wants one that it accepts.
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(outer > 1 ? stride * item : (inner * item + 15) / 16 * 16)};
  const cuuint32_t box[2] = {static_cast<cuuint32_t>(128 / item), static_cast<cuuint32_t>(box_outer)};
  const cuuint32_t every[2] = {1, 1};
  CUtensorMap map;
  const CUresult status = encode_function()(
      &map, bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_TFLOAT32, 2, const_cast<void*>(data),
      sizes, strides, box, every, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS)
    throw Error(BLUBLAS_RUNTIME_ERROR, "[gemm] cuTensorMapEncodeTiled failed with " + std::to_string(status));
  return map;
}

}  // namespace blublas::sm90
