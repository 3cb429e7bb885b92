#include "ops/cuda/launch.h"
#include "ops/cuda/table.h"

namespace blutensor {

void add_layer_norm_cuda(CudaTable& table) { static_cast<void>(table); }

}  // namespace blutensor
