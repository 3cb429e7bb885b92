// Nodes run in falling order of creation. A consumer is always younger than its producers, so when a node is taken all
// gradients of its outputs are complete, and the order (hence every sum's order) is the same in every run.
#include "autograd/engine.h"

#include <map>
#include <mutex>
#include <unordered_map>

#include "ops/dispatch.h"
#include "ops/registry.h"
#include "tensor/device.h"

namespace blutensor {

namespace {

const OpRef add{"add"}, astype{"astype"}, add_into{"add_"}, copy_into{"copy_"}, full{"full"};

class Engine final : public BackwardPass {
 public:
  Engine(const BackwardOptions& options, const Tensors* wanted) : options_(options), wanted_(wanted) {
    if (!wanted_) return;
    results_.resize(wanted_->size());
    for (size_t i = 0; i < wanted_->size(); ++i) {
      const Tensor& t = (*wanted_)[i];
      require(requires_grad(t), "[grad] expected inputs that require a gradient, input ", i, " does not");
      const GradMeta* meta = grad_meta(t);
      if (meta->grad_fn) {
        wanted_results_[{meta->grad_fn.get(), meta->output_index}].push_back(i);
      } else {
        wanted_leaves_[t.impl()].push_back(i);
      }
    }
  }

  Tensors run(const Tensors& roots, const Tensors& grads) {
    const GradModeGuard guard(options_.create_graph);
    for (size_t i = 0; i < roots.size(); ++i) start(roots[i], i < grads.size() ? grads[i] : Tensor{}, i);
    while (!queue_.empty()) {
      const auto last = std::prev(queue_.end());
      Pending pending = std::move(last->second);
      queue_.erase(last);
      run_node(pending);
    }
    finish_leaves();
    return results_;
  }

  GradTarget target(const Tensor& leaf) override {
    if (wanted_ || options_.create_graph) return {};
    GradMeta& meta = ensure_grad_meta(leaf);
    // Ours until the node is done; where another thread, or another input of the node, has it, the gradient is added later.
    if (!meta.lock.try_lock()) return {};
    held_.push_back(leaf);
    if (!meta.hooks.empty()) return {};
    if (!meta.grad.defined()) {
      meta.grad = Tensor::empty(leaf.shape(), grad_dtype(leaf), leaf.device(), intern("gradient"));
      meta.grad_stale = true;
    }
    if (!meta.grad.contiguous()) return {};
    return {meta.grad, !meta.grad_stale};
  }
  Tensor partial_sum(const Edge& edge) override {
    const auto pending = queue_.find(edge.node->sequence());
    if (pending == queue_.end()) return {};
    const Tensor& sum = pending->second.grads[static_cast<size_t>(edge.index)];
    return sum.defined() && is_ours_alone(sum) ? sum : Tensor{};
  }
  void consumed(const Tensor& leaf) override { set_grad_stale(leaf, false); }
  bool retain_graph() const override { return options_.retain_graph || options_.create_graph; }

 private:
  struct Pending {
    Ref<Node> node;
    Tensors grads;  // of its outputs
  };

  void start(const Tensor& root, Tensor grad, size_t i) {
    require(requires_grad(root), "[backward] root ", i, " (", describe(root),
            ") does not require a gradient: no operator on a tensor with requires_grad led to it");
    if (!grad.defined()) {
      require(root.numel() == 1, "[backward] expected a gradient for root ", i, " of shape ", root.shape(),
              "; only a root of one element has the default of 1");
      const CreationDevice guard(root.device());
      grad = full({}, {Attr::of_ints(root.shape()), Attr::of_float(1.0), Attr::of_dtype(root.dtype())});
    }
    require(grad.shape() == root.shape(), "[backward] expected a gradient of shape ", root.shape(), ", got ",
            grad.shape());
    require_type(grad.device() == root.device(), "[backward] expected a gradient on ", device_name(root.device()),
                 ", got one on ", device_name(grad.device()));
    require_type(grad.dtype() == root.dtype(), "[backward] expected a gradient of dtype ", dtype_name(root.dtype()),
                 ", got ", dtype_name(grad.dtype()));
    deliver(edge_to(root), std::move(grad), "backward");
  }

  void run_node(Pending& pending) {
    Node& node = *pending.node;
    for (int k = 0; k < node.num_outputs(); ++k) {
      Tensor& grad = pending.grads[static_cast<size_t>(k)];
      if (!grad.defined()) continue;
      apply_hooks(hooks_of(node, k), grad);
      if (wanted_) {
        const auto it = wanted_results_.find({&node, k});
        if (it != wanted_results_.end())
          for (size_t i : it->second) results_[i] = grad;
      }
    }
    Tensors grads = apply(node, pending.grads);
    pending.grads.clear();
    for (size_t i = 0; i < grads.size(); ++i)
      if (grads[i].defined() && node.edges[i].defined()) deliver(node.edges[i], std::move(grads[i]), node.name());
  }

  Tensors apply(Node& node, const Tensors& grad_outputs) {
    struct Release {
      Tensors& leaves;
      ~Release() {
        for (const Tensor& leaf : leaves) grad_meta(leaf)->lock.unlock();
        leaves.clear();
      }
    } release{held_};
    const std::lock_guard lock(node.lock);
    return node.apply(grad_outputs, *this);
  }

  // Copies of the lists: a hook may remove itself or others.
  static std::vector<GradHook> hooks_of(const Node& node, int output) {
    const std::lock_guard lock(node.lock);
    return node.hooks.empty() ? std::vector<GradHook>{} : node.hooks[static_cast<size_t>(output)];
  }
  static std::vector<GradHook> hooks_of(const Tensor& leaf) {
    GradMeta& meta = ensure_grad_meta(leaf);
    const std::lock_guard lock(meta.lock);
    return meta.hooks;
  }

  static void apply_hooks(const std::vector<GradHook>& hooks, Tensor& grad) {
    for (const GradHook& hook : hooks)
      if (Tensor replacement = hook.call(grad); replacement.defined()) {
        require(replacement.shape() == grad.shape(), "[hook] expected a gradient of shape ", grad.shape(), ", got ",
                replacement.shape());
        grad = std::move(replacement);
      }
  }

  void deliver(const Edge& edge, Tensor grad, const char* from) {
    if (edge.leaf.defined()) return deliver_leaf(edge.leaf, std::move(grad), from);
    Pending& pending = queue_[edge.node->sequence()];
    if (!pending.node) {
      pending.node = edge.node;
      pending.grads.resize(static_cast<size_t>(edge.node->num_outputs()));
    }
    check_shape(grad, edge.node->output_specs[static_cast<size_t>(edge.index)].shape, from);
    sum_into(pending.grads[static_cast<size_t>(edge.index)], std::move(grad));
  }

  static void check_shape(const Tensor& grad, const Shape& shape, const char* from) {
    if (!(grad.shape() == shape))
      fail(Status::runtime, "[", from, "] its gradient has shape ", grad.shape(), ", the tensor has ", shape);
  }

  // Whether a sum may be added to in place: nobody else can see it.
  bool is_ours_alone(const Tensor& sum) const {
    return !options_.create_graph && sum.impl()->use_count() == 1 && sum.storage().use_count() == 1 &&
           sum.contiguous() && !sum.storage().foreign();
  }

  void sum_into(Tensor& sum, Tensor grad) {
    if (!sum.defined()) {
      sum = std::move(grad);
    } else if (is_ours_alone(sum)) {
      add_into.many({sum, grad});
    } else {
      sum = add({sum, grad});
    }
  }

  static Tensor in_dtype(Tensor grad, DType dtype) {
    return grad.dtype() == dtype ? grad : astype({grad}, {Attr::of_dtype(dtype)});
  }

  void deliver_leaf(const Tensor& leaf, Tensor grad, const char* from) {
    check_shape(grad, leaf.shape(), from);
    if (wanted_) {
      const auto it = wanted_leaves_.find(leaf.impl());
      if (it != wanted_leaves_.end())
        for (size_t i : it->second) sum_into(results_[i], grad);
      return;
    }
    if (hooks_of(leaf).empty()) return accumulate(leaf, std::move(grad));
    // Hooks see the complete gradient, in the dtype that it is kept in.
    grad = in_dtype(std::move(grad), grad_dtype(leaf));
    for (auto& [tensor, sum] : hooked_)
      if (tensor.same(leaf)) return sum_into(sum, std::move(grad));
    hooked_.emplace_back(leaf, std::move(grad));
  }

  void accumulate(const Tensor& leaf, Tensor grad) {
    GradMeta& meta = ensure_grad_meta(leaf);
    const std::lock_guard lock(meta.lock);
    if (options_.create_graph) {
      grad = in_dtype(std::move(grad), grad_dtype(leaf));
      meta.grad = meta.grad.defined() && !meta.grad_stale ? add({meta.grad, grad}) : grad;
      set_grad_stale(leaf, false);
      return;
    }
    if (!meta.grad.defined()) {
      // A fresh result that only we hold becomes the buffer; anything else is copied into one.
      if (grad.impl()->use_count() == 1 && grad.storage().use_count() == 1 && grad.contiguous() && grad.offset() == 0 &&
          !grad.storage().foreign() && grad.dtype() == grad_dtype(leaf) && !keeps_buffers()) {
        meta.grad = std::move(grad);
        meta.grad_stale = false;
        return;
      }
      meta.grad = Tensor::empty(leaf.shape(), grad_dtype(leaf), leaf.device(), intern("gradient"));
      meta.grad_stale = true;
    }
    if (meta.grad_stale) {
      copy_into.many({meta.grad, grad});
    } else {
      add_into.many({meta.grad, grad});
    }
    set_grad_stale(leaf, false);
  }

  // In a capture the first recording has to make the same calls as the second, where the buffers exist already.
  static bool keeps_buffers();

  void finish_leaves() {
    for (auto& [leaf, grad] : hooked_) {
      apply_hooks(hooks_of(leaf), grad);
      accumulate(leaf, std::move(grad));
    }
  }

  BackwardOptions options_;
  const Tensors* wanted_;
  Tensors results_;
  std::map<uint64_t, Pending> queue_;  // by sequence
  std::map<std::pair<Node*, int>, std::vector<size_t>> wanted_results_;
  std::unordered_map<TensorImpl*, std::vector<size_t>> wanted_leaves_;
  std::vector<std::pair<Tensor, Tensor>> hooked_;
  Tensors held_;  // leaves whose lock the running node holds
};

bool Engine::keeps_buffers() { return call_recorder() != nullptr; }

}  // namespace

void backward(const Tensors& roots, const Tensors& grads, const BackwardOptions& options) {
  Engine(options, nullptr).run(roots, grads);
}

Tensors gradients(const Tensors& roots, const Tensors& grads, const Tensors& inputs, const BackwardOptions& options) {
  return Engine(options, &inputs).run(roots, grads);
}

Tensor read_grad(const Tensor& leaf) {
  GradMeta* meta = grad_meta(leaf);
  if (!meta) return {};
  const std::lock_guard lock(meta->lock);
  if (!meta->grad.defined()) return {};
  if (meta->grad_stale) {
    static const OpRef fill{"fill_"};
    const GradModeGuard guard(false);
    fill.many({meta->grad}, {Attr::of_float(0.0)});
    set_grad_stale(leaf, false);
  }
  return meta->grad;
}

}  // namespace blutensor
