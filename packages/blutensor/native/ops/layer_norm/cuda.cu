#include "ops/cuda/table.h"
#include "ops/layer_norm/layer_norm_cuda.h"

namespace blutensor {

void add_layer_norm_cuda(CudaTable& table) {
  table.add("layer_norm", launch_of<layer_norm_forward_cuda>, workspace_of<layer_norm_forward_cuda>);
  table.add("layer_norm_backward", launch_of<layer_norm_backward_cuda>, workspace_of<layer_norm_backward_cuda>);
  table.add("layer_norm_backward_", launch_of<layer_norm_backward_in_place_cuda>,
            workspace_of<layer_norm_backward_in_place_cuda>);
}

}  // namespace blutensor
