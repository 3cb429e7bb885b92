#include "ops/elementwise/elementwise.h"

#include "ops/all_operators.h"

namespace blutensor {

void register_elementwise(OperatorRegistry& registry) {
  register_unary(registry);
  register_binary(registry);
  register_functions(registry);
  register_binary_functions(registry);
}

}  // namespace blutensor
