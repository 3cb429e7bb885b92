// Which launcher serves layer_norm and rms_norm.
#include "ops/cuda/table.h"
#include "ops/layer_norm/norm.h"

namespace blutensor {

namespace {

template <NormForward (*operands)(const Launch&)>
void add_forward(CudaTable& table, const char* name) {
  table.add(
      name,
      [](const Launch& launch) {
        Execution run(launch, Execution::Mode::run);
        norm_forward_cuda(operands(launch), launch, run);
      },
      [](const Launch& launch) {
        Execution dry(launch, Execution::Mode::dry);
        norm_forward_cuda(operands(launch), launch, dry);
        return dry.peak_bytes();
      });
}

template <NormBackward (*operands)(const Launch&)>
void add_backward(CudaTable& table, const char* name) {
  table.add(
      name,
      [](const Launch& launch) {
        Execution run(launch, Execution::Mode::run);
        norm_backward_cuda(operands(launch), launch, run);
      },
      [](const Launch& launch) {
        Execution dry(launch, Execution::Mode::dry);
        norm_backward_cuda(operands(launch), launch, dry);
        return dry.peak_bytes();
      });
}

}  // namespace

void add_layer_norm_cuda(CudaTable& table) {
  add_forward<layer_norm_operands>(table, "layer_norm");
  add_backward<layer_norm_backward_operands>(table, "layer_norm_backward");
  add_backward<layer_norm_backward_in_place_operands>(table, "layer_norm_backward_");
  add_forward<rms_norm_operands>(table, "rms_norm");
  add_backward<rms_norm_backward_operands>(table, "rms_norm_backward");
  add_backward<rms_norm_backward_in_place_operands>(table, "rms_norm_backward_");
}

}  // namespace blutensor
