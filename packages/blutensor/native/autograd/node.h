// The backward graph: nodes are closures over saved tensors, edges lead from a node to the producers of its inputs.
#pragma once

#include <functional>
#include <memory_resource>
#include <optional>
#include <string>
#include <vector>

#include "autograd/graph_arena.h"
#include "ops/operator.h"
#include "tensor/autograd_meta.h"
#include "tensor/fork.h"

namespace blutensor {

class Node;

// May return a replacement; an undefined tensor keeps the gradient.
struct GradHook {
  uint64_t id = 0;
  std::function<Tensor(const Tensor&)> call;
};

// Autograd's part of a tensor.
class GradMeta final : public AutogradMeta {
 public:
  bool requires_grad = false;  // of a leaf
  Ref<Node> grad_fn;           // of a result
  int output_index = 0;
  Tensor grad;                                // of a leaf
  bool grad_stale = false;                    // grad is a buffer that the next backward overwrites
  std::vector<GradHook> hooks;                // of a leaf; a result's hooks live in its node
  std::optional<DType> grad_dtype;            // of a leaf's gradient where it is not the leaf's own
  ForkLock lock{"the gradient of a tensor"};  // of all that a backward pass changes: grad, grad_stale, hooks
};
GradMeta* grad_meta(const Tensor& tensor);  // nullptr when there is none
GradMeta& ensure_grad_meta(const Tensor& tensor);
// Notes whether the next backward overwrites the leaf's gradient buffer; a running capture is told. Under the leaf's lock.
void set_grad_stale(const Tensor& leaf, bool stale);
// The dtype of a leaf's gradient: its own, or what set_grad_dtype() chose. float32 for a 16-bit leaf keeps the sums of
// gradient operators as they are, unrounded.
DType grad_dtype(const Tensor& leaf);
// The leaf's own dtype, or float32 for a 16-bit one. Drops a gradient of another dtype.
void set_grad_dtype(const Tensor& leaf, DType dtype);
bool requires_grad(const Tensor& tensor);
bool is_leaf(const Tensor& tensor);

bool grad_enabled();  // of this thread
void set_grad_enabled(bool enabled);
class GradModeGuard {
 public:
  explicit GradModeGuard(bool enabled) : before_(grad_enabled()) { set_grad_enabled(enabled); }
  ~GradModeGuard() { set_grad_enabled(before_); }
  GradModeGuard(const GradModeGuard&) = delete;
  GradModeGuard& operator=(const GradModeGuard&) = delete;

 private:
  bool before_;
};

// Where the gradient of an input goes: to the output `index` of a node, or to a leaf, or nowhere.
struct Edge {
  Ref<Node> node;
  int index = 0;
  Tensor leaf;
  bool defined() const { return node || leaf.defined(); }
};
Edge edge_to(const Tensor& tensor);

// What one backward pass offers a node.
class BackwardPass {
 public:
  virtual GradTarget target(const Tensor& leaf) = 0;
  // The sum of what has been delivered along this edge to a node, where one may add to it in place; else undefined.
  virtual Tensor partial_sum(const Edge& edge) = 0;
  virtual void consumed(const Tensor& leaf) = 0;
  virtual bool retain_graph() const = 0;

 protected:
  ~BackwardPass() = default;
};

class Node : public RefCounted {
 public:
  Node(std::string_view name, int num_outputs);
  ~Node() override;
  // The gradients of the inputs, one per edge.
  virtual Tensors apply(const Tensors& grad_outputs, BackwardPass& pass) = 0;

  const char* name() const { return name_; }
  uint64_t sequence() const { return sequence_; }
  int num_outputs() const { return num_outputs_; }

  std::pmr::vector<Edge> edges{&GraphArena::instance()};
  std::pmr::vector<TensorSpec> output_specs{&GraphArena::instance()};
  std::vector<std::vector<GradHook>> hooks;  // per output; empty when there are none
  // Held while it is applied, made anew or changed: threads may go through one graph at a time.
  mutable ForkLock lock{"a node of the autograd graph"};

  static void* operator new(size_t bytes) { return GraphArena::instance().allocate(bytes, alignof(std::max_align_t)); }
  static void operator delete(void* p, size_t bytes) {
    GraphArena::instance().deallocate(p, bytes, alignof(std::max_align_t));
  }
  static uint64_t live_nodes();

 private:
  const char* name_;
  uint64_t sequence_;  // order of creation: a node's producers have smaller numbers
  int num_outputs_;
};

// A node whose gradient somebody else computes (Python functions, recompute).
using CustomGradient = std::function<Tensors(const Tensors& grad_outputs)>;
void record_custom(const std::string& name, std::span<const Tensor> inputs, std::span<const Tensor> outputs,
                   CustomGradient gradient);

// Installs autograd in the dispatcher.
void install_autograd();

TensorSpec spec_of(const Tensor& tensor);

}  // namespace blutensor
