// linear and mlp on CUDA: GEMMs of blublas with fused epilogues, by the same functions as on the host.
#include "ops/cuda/table.h"
#include "ops/linear/linear.h"

namespace blutensor {

namespace {

template <void (*execute)(const Launch&, Execution&)>
void add(CudaTable& table, const char* name) {
  table.add(name, launch_of<execute>, workspace_of<execute>);
}

}  // namespace

void add_linear_cuda(CudaTable& table) {
  add<execute_linear>(table, "linear");
  add<execute_linear_input_grad>(table, "linear_input_grad");
  add<execute_linear_weight_grad>(table, "linear_weight_grad");
  add<execute_linear_weight_grad_in_place>(table, "linear_weight_grad_");
  add<execute_mlp>(table, "mlp");
}

}  // namespace blutensor
