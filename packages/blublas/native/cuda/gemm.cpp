// The dispatcher of GEMM on CUDA: which family of kernels does a problem.
#include "common/status.h"
#include "cuda/cuda.h"
#include "cuda/device.h"
#include "cuda/sm90/sm90.h"

namespace blublas {
namespace {

CudaProblem describe(const Problem& problem, const blublas_gemm_args& args) {
  CudaProblem result;
  static_cast<Problem&>(result) = problem;
  result.math = args.math;
  result.device = &cuda_device(args.device_index);
  result.stream = static_cast<cudaStream_t>(args.stream);
  result.workspace = static_cast<char*>(args.workspace);
  result.workspace_bytes = args.workspace_bytes;
  return result;
}

[[noreturn]] void fail_no_kernel() {
  throw Error(BLUBLAS_UNSUPPORTED, "[gemm] this build has no CUDA kernel for such a product");
}

}  // namespace

size_t cuda_gemm_workspace(const Problem& problem, const blublas_gemm_args& args) {
  const CudaProblem p = describe(problem, args);
  if (p.device->arch == 90 && sm90_supports(p)) return sm90_workspace(p);
  fail_no_kernel();
}

void cuda_gemm(const Problem& problem, const blublas_gemm_args& args) {
  const CudaProblem p = describe(problem, args);
  const CurrentDevice current(p.device->index);
  if (p.device->arch == 90 && sm90_supports(p)) return sm90_launch(p);
  fail_no_kernel();
}

}  // namespace blublas
