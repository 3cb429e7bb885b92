// One registration function per operator folder; registry.cpp calls them all, in this order.
#pragma once

namespace blutensor {

class OperatorRegistry;

void register_creation(OperatorRegistry& registry);
void register_views(OperatorRegistry& registry);
void register_elementwise(OperatorRegistry& registry);
void register_copy(OperatorRegistry& registry);
void register_reduce(OperatorRegistry& registry);
void register_scan(OperatorRegistry& registry);
void register_sort(OperatorRegistry& registry);
void register_random(OperatorRegistry& registry);
void register_matmul(OperatorRegistry& registry);
void register_linear(OperatorRegistry& registry);
void register_layer_norm(OperatorRegistry& registry);
void register_rms_norm(OperatorRegistry& registry);
void register_rotary(OperatorRegistry& registry);
void register_embedding(OperatorRegistry& registry);
void register_indexing(OperatorRegistry& registry);
void register_linear_cross_entropy(OperatorRegistry& registry);
void register_optimizer(OperatorRegistry& registry);
void register_softmax(OperatorRegistry& registry);
void register_cross_entropy(OperatorRegistry& registry);
void register_attention(OperatorRegistry& registry);

}  // namespace blutensor
