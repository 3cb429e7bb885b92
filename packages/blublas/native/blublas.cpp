// The C edge: copies arguments, catches everything.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>

#include "blublas/blublas.h"
#include "common/cpu.h"
#include "common/status.h"
#include "cuda/cuda.h"
#include "gemm/gemm.h"
#include "gemm/kernels.h"
#include "pool/pool.h"

namespace blublas {
namespace {

// The caller may have been compiled against an older, shorter struct.
blublas_gemm_args copy(const blublas_gemm_args* args) {
  if (args == nullptr) fail_value("[gemm] expected a pointer to blublas_gemm_args, got NULL");
  constexpr size_t least = offsetof(blublas_gemm_args, workspace_bytes) + sizeof(size_t);
  if (args->struct_size < least)
    fail_value("[gemm] expected struct_size of at least " + std::to_string(least) + ", got " +
               std::to_string(args->struct_size) + ": set it to sizeof(blublas_gemm_args)");
  blublas_gemm_args result{};
  std::memcpy(&result, args, std::min<size_t>(args->struct_size, sizeof(result)));
  return result;
}

}  // namespace
}  // namespace blublas

using namespace blublas;

extern "C" {

uint32_t blublas_abi_version(void) { return (static_cast<uint32_t>(BLUBLAS_ABI_MAJOR) << 16) | BLUBLAS_ABI_MINOR; }
const char* blublas_last_error(void) { return last_error(); }

int32_t blublas_gemm_workspace(const blublas_gemm_args* args, size_t* bytes) {
  return guarded([&] {
    if (bytes == nullptr) fail_value("[gemm_workspace] expected a pointer for the number of bytes, got NULL");
    const blublas_gemm_args own = copy(args);
    const Problem problem = check(own, Pointers::ignored);
    *bytes = own.device_type == BLUBLAS_CUDA ? cuda_gemm_workspace(problem, own) : gemm_workspace(problem);
  });
}

int32_t blublas_gemm(const blublas_gemm_args* args) {
  return guarded([&] {
    const blublas_gemm_args own = copy(args);
    const Problem problem = check(own, Pointers::checked);
    if (own.device_type == BLUBLAS_CUDA)
      cuda_gemm(problem, own);
    else
      gemm(problem, own.workspace, own.workspace_bytes);
  });
}

int32_t blublas_num_threads(void) { return pool_num_threads(); }
int32_t blublas_max_threads(void) { return kMaxThreads; }
int32_t blublas_set_num_threads(int32_t num_threads) {
  return guarded([&] { pool_set_num_threads(num_threads); });
}
void blublas_parallel(int64_t num_tasks, blublas_task task, void* arg) { pool_run(num_tasks, task, arg, 0); }
void blublas_parallel_limited(int64_t num_tasks, blublas_task task, void* arg, int32_t max_threads) {
  pool_run(num_tasks, task, arg, max_threads);
}
int32_t blublas_in_parallel(void) { return pool_in_parallel() ? 1 : 0; }

uint32_t blublas_cpu_features(void) { return cpu_features(); }
const char* blublas_kernel_name(int32_t dtype) {
  const KernelSet& set = kernel_set();
  if (dtype == BLUBLAS_FLOAT64) return set.float64.name;
  return dtype == BLUBLAS_FLOAT32 || dtype == BLUBLAS_BFLOAT16 ? set.float32.name : "";
}
int32_t blublas_set_kernel(const char* name) {
  return guarded([&] { choose_kernel_set(name); });
}
const char* blublas_cuda_config_name(int32_t index) { return cuda_config(index); }
int32_t blublas_set_cuda_config(const char* name) {
  return guarded([&] { cuda_set_config(name); });
}
}
