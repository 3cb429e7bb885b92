#include "ops/cuda/table.h"

namespace blutensor {

const CudaTable& cuda_table() {
  static const CudaTable table = [] {
    CudaTable t;
#ifdef BLUTENSOR_HAVE_CUDA
    add_elementwise_cuda(t);
    add_copy_cuda(t);
    add_creation_cuda(t);
    add_reduce_cuda(t);
    add_scan_cuda(t);
    add_sort_cuda(t);
    add_random_cuda(t);
    add_matmul_cuda(t);
    add_linear_cuda(t);
    add_layer_norm_cuda(t);
    add_rotary_cuda(t);
    add_embedding_cuda(t);
    add_indexing_cuda(t);
    add_linear_cross_entropy_cuda(t);
    add_optimizer_cuda(t);
    add_softmax_cuda(t);
    add_cross_entropy_cuda(t);
    add_attention_cuda(t);
#endif
    return t;
  }();
  return table;
}

}  // namespace blutensor
