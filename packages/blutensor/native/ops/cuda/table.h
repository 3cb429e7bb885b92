// The CUDA kernel table: which launcher serves which operator on a CUDA device.
//
// Every family adds its launchers in ops/<family>/cuda.cu (or several files; one of them defines the function below).
// The registry asks here when an operator is registered; an operator without an entry has no CUDA kernel, and calling
// it on a CUDA device says so.
#pragma once

#include <string>
#include <unordered_map>

#include "ops/operator.h"

namespace blutensor {

class CudaTable {
 public:
  struct Entry {
    LaunchFn launch;
    WorkspaceFn workspace;  // optional; pointers of the Launch are null
  };

  // `launch` must not synchronize with the device and must not allocate: it runs inside CUDA graph capture. Everything
  // goes to launch.stream.
  void add(const std::string& name, LaunchFn launch, WorkspaceFn workspace = nullptr) {
    entries_[name] = {std::move(launch), std::move(workspace)};
  }
  const Entry* find(const std::string& name) const {
    const auto it = entries_.find(name);
    return it == entries_.end() ? nullptr : &it->second;
  }

 private:
  std::unordered_map<std::string, Entry> entries_;
};

// All launchers of this build; empty without CUDA.
const CudaTable& cuda_table();

#ifdef BLUTENSOR_HAVE_CUDA
void add_elementwise_cuda(CudaTable& table);
void add_copy_cuda(CudaTable& table);
void add_creation_cuda(CudaTable& table);
void add_reduce_cuda(CudaTable& table);
void add_scan_cuda(CudaTable& table);
void add_sort_cuda(CudaTable& table);
void add_random_cuda(CudaTable& table);
void add_matmul_cuda(CudaTable& table);
void add_linear_cuda(CudaTable& table);
void add_layer_norm_cuda(CudaTable& table);
void add_rotary_cuda(CudaTable& table);
void add_embedding_cuda(CudaTable& table);
void add_indexing_cuda(CudaTable& table);
void add_linear_cross_entropy_cuda(CudaTable& table);
void add_optimizer_cuda(CudaTable& table);
void add_softmax_cuda(CudaTable& table);
void add_cross_entropy_cuda(CudaTable& table);
void add_attention_cuda(CudaTable& table);
#endif

}  // namespace blutensor
