// Parts of register_elementwise().
#pragma once

namespace blutensor {

class OperatorRegistry;

void register_unary(OperatorRegistry& registry);
void register_binary(OperatorRegistry& registry);
void register_functions(OperatorRegistry& registry);
void register_binary_functions(OperatorRegistry& registry);

}  // namespace blutensor
