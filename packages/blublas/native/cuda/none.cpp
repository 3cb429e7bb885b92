// What a build without CUDA has in place of native/cuda: clear errors.
#include "common/status.h"
#include "cuda/cuda.h"

namespace blublas {
namespace {

[[noreturn]] void fail_unsupported(const char* function) {
  throw Error(BLUBLAS_UNSUPPORTED, std::string("[") + function +
                                       "] this build has no CUDA kernels: device cpu:0 is the only one; build with "
                                       "-DBLU_CUDA=ON where nvcc is installed");
}

}  // namespace

size_t cuda_gemm_workspace(const Problem&, const blublas_gemm_args&) { fail_unsupported("gemm_workspace"); }
void cuda_gemm(const Problem&, const blublas_gemm_args&) { fail_unsupported("gemm"); }
void cuda_set_config(const char*) { fail_unsupported("set_cuda_config"); }
const char* cuda_config(int32_t) { return nullptr; }

}  // namespace blublas
