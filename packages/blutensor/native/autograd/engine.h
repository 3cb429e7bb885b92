// The backward pass.
#pragma once

#include "autograd/node.h"

namespace blutensor {

struct BackwardOptions {
  bool retain_graph = false;
  bool create_graph = false;
};

// Accumulates d(roots)/d(leaf) into every leaf's gradient. `grads`: one per root; undefined means ones for a root of one element.
void backward(const Tensors& roots, const Tensors& grads, const BackwardOptions& options);

// d(roots)/d(inputs), touching no leaf; undefined where there is no path.
Tensors gradients(const Tensors& roots, const Tensors& grads, const Tensors& inputs, const BackwardOptions& options);

// The gradient of a leaf for a reader: a stale buffer is zeroed first.
Tensor read_grad(const Tensor& leaf);

}  // namespace blutensor
