// What linear, mlp and their gradients do, on any device: launch_of<> and workspace_of<> make launchers of it.
#pragma once

#include "ops/matmul/operand.h"

namespace blutensor {

void execute_linear(const Launch& launch, Execution& run);
void execute_linear_input_grad(const Launch& launch, Execution& run);
void execute_linear_weight_grad(const Launch& launch, Execution& run);
void execute_linear_weight_grad_in_place(const Launch& launch, Execution& run);
void execute_mlp(const Launch& launch, Execution& run);

}  // namespace blutensor
