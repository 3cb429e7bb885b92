#include "autograd/node.h"

#include <atomic>
#include <memory>
#include <mutex>

#include "ops/dispatch.h"
#include "ops/registry.h"
#include "tensor/device.h"

namespace blutensor {

namespace {

std::atomic<uint64_t> next_sequence{1};
std::atomic<uint64_t> num_live_nodes{0};
thread_local bool grad_mode = true;

class OpNode;

// A tensor as it was when it was saved; or, where it is cheaper to make anew than to keep, the output of the node that
// made it.
struct Saved {
  Tensor tensor;
  uint64_t version = 0;
  Ref<OpNode> producer;
  int output = 0;
};

class OpNode final : public Node, public GradContext {
 public:
  OpNode(const Operator& op, std::span<const Tensor> inputs, std::span<const Tensor> outputs, const Attrs& attrs,
         int64_t list_length)
      : Node(op.tag, static_cast<int>(outputs.size())), op_(op), attrs_(attrs), list_length_(list_length) {
    edges.reserve(inputs.size());
    input_specs_.reserve(inputs.size());
    for (const Tensor& t : inputs) {
      edges.push_back(t.defined() ? edge_to(t) : Edge{});
      input_specs_.push_back(t.defined() ? spec_of(t) : TensorSpec{});
      given_.push_back(t.defined());
    }
    for (const Tensor& t : outputs) output_specs.push_back(spec_of(t));
    for (const Tensor& t : inputs)
      if (t.defined()) device_ = t.device();
    save(saved_inputs_, inputs, op.save_inputs, false);
    save(saved_outputs_, outputs, op.save_outputs, true);
  }

  Tensors apply(const Tensors& grad_outputs, BackwardPass& pass) override {
    if (!op_.gradient) fail(Status::unsupported, "[", op_.name, "] has no gradient");
    if (released_)
      fail(Status::runtime, "[backward] the graph of '", op_.name,
           "' was already used and freed; pass retain_graph=True to the first backward to go through it again");
    grad_outputs_ = &grad_outputs;
    pass_ = &pass;
    struct Reset {
      OpNode& n;
      ~Reset() {
        n.grad_outputs_ = nullptr;
        n.pass_ = nullptr;
      }
    } reset{*this};
    const CreationDevice guard(device_);  // of the constants that it makes
    Tensors grads = op_.gradient(*this);
    if (grads.size() != edges.size())
      fail(Status::runtime, "[", op_.name, "] its gradient function gave ", grads.size(), " gradients for ",
           edges.size(), " inputs");
    if (!pass.retain_graph()) {
      saved_inputs_.clear();
      saved_outputs_.clear();
      released_ = true;
    }
    return grads;
  }

  const Attrs& attrs() const override { return attrs_; }
  int64_t list_length() const override { return list_length_; }
  int num_inputs() const override { return static_cast<int>(edges.size()); }
  Tensor input(int i) const override { return unpack(saved_inputs_, i, "input", false); }
  Tensor output(int i) const override { return unpack(saved_outputs_, i, "output", true); }
  bool has_input(int i) const override { return given_[static_cast<size_t>(i)]; }
  const TensorSpec& input_spec(int i) const override { return input_specs_[static_cast<size_t>(i)]; }
  const TensorSpec& output_spec(int i) const override { return output_specs[static_cast<size_t>(i)]; }
  Device device() const override { return device_; }
  Tensor grad_output(int i) const override { return (*grad_outputs_)[static_cast<size_t>(i)]; }
  bool needs(int i) const override { return edges[static_cast<size_t>(i)].defined(); }
  GradTarget target(int i) override {
    const Edge& edge = edges[static_cast<size_t>(i)];
    if (edge.leaf.defined()) return pass_->target(edge.leaf);
    return edge.node ? GradTarget{pass_->partial_sum(edge), true} : GradTarget{};
  }
  void consumed(int i) override {
    if (const Edge& edge = edges[static_cast<size_t>(i)]; edge.leaf.defined()) pass_->consumed(edge.leaf);
  }
  void done_with_input(int i) override { drop(saved_inputs_, i); }
  void done_with_output(int i) override { drop(saved_outputs_, i); }

 private:
  using SavedList = std::pmr::vector<Saved>;

  // The node whose recomputation gives this tensor, or nullptr. Results in a graph are never written in place.
  static OpNode* recomputable(const Tensor& t) {
    const GradMeta* meta = grad_meta(t);
    OpNode* node = meta && meta->grad_fn ? dynamic_cast<OpNode*>(meta->grad_fn.get()) : nullptr;
    return node && node->op_.recompute ? node : nullptr;
  }

  // Output `output` once more: the same call on the same inputs, so the same bits.
  Tensor recomputed(int output) const {
    Tensors inputs;
    std::unique_lock guarded(lock);
    if (released_)
      fail(Status::runtime, "[backward] the graph of '", op_.name,
           "' was already used and freed; pass retain_graph=True to the first backward to go through it again");
    for (size_t i = 0; i < given_.size(); ++i) inputs.push_back(given_[i] ? input(static_cast<int>(i)) : Tensor{});
    guarded.unlock();
    const GradModeGuard guard(false);
    return call(op_, inputs, attrs_, list_length_)[static_cast<size_t>(output)];
  }

  // As the result of this node that it is.
  Tensor attached(Tensor t, int output) const {
    if (is_floating(t.dtype())) {
      GradMeta& meta = ensure_grad_meta(t);
      meta.grad_fn = Ref<Node>(const_cast<OpNode*>(this));
      meta.output_index = output;
    }
    return t;
  }

  // An output is saved without its autograd part: it would keep this node alive for ever.
  static void save(SavedList& list, std::span<const Tensor> tensors, uint64_t mask, bool strip) {
    if (!mask) return;
    list.resize(tensors.size());
    for (size_t i = 0; i < tensors.size() && i < 64; ++i) {
      const Tensor& t = tensors[i];
      if (!(mask >> i & 1) || !t.defined()) continue;
      if (OpNode* producer = strip ? nullptr : recomputable(t)) {
        list[i].producer = Ref<OpNode>(producer);
        list[i].output = grad_meta(t)->output_index;
        continue;
      }
      list[i].tensor = strip ? t.view(t.shape(), t.strides(), t.offset()) : t;
      list[i].version = t.storage().version();
    }
  }

  Tensor unpack(const SavedList& list, int i, const char* what, bool is_output) const {
    const auto k = static_cast<size_t>(i);
    if (k >= list.size()) return Tensor{};
    const Saved& saved = list[k];
    if (saved.producer) return saved.producer->attached(saved.producer->recomputed(saved.output), saved.output);
    if (!saved.tensor.defined()) return Tensor{};
    const Storage& storage = saved.tensor.storage();
    if (storage.version() != saved.version)
      fail(Status::runtime, "[backward] '", op_.name, "' saved its ", what, " ", i, " (", describe(saved.tensor),
           ") for backward, but '", storage.last_writer(),
           "' wrote to it in place since then; write to a copy, or call backward first");
    if (!is_output) return saved.tensor;
    return attached(saved.tensor.view(saved.tensor.shape(), saved.tensor.strides(), saved.tensor.offset()), i);
  }

  void drop(SavedList& list, int i) {
    if (!pass_->retain_graph() && static_cast<size_t>(i) < list.size()) list[static_cast<size_t>(i)] = {};
  }

  const Operator& op_;
  Attrs attrs_;
  int64_t list_length_;
  Device device_;
  SavedList saved_inputs_{&GraphArena::instance()}, saved_outputs_{&GraphArena::instance()};
  std::pmr::vector<TensorSpec> input_specs_{&GraphArena::instance()};
  std::pmr::vector<char> given_{&GraphArena::instance()};
  bool released_ = false;
  const Tensors* grad_outputs_ = nullptr;
  BackwardPass* pass_ = nullptr;
};

class CustomNode final : public Node {
 public:
  CustomNode(const std::string& name, std::span<const Tensor> inputs, std::span<const Tensor> outputs,
             CustomGradient gradient)
      : Node(name, static_cast<int>(outputs.size())), gradient_(std::move(gradient)) {
    for (const Tensor& t : inputs) edges.push_back(edge_to(t));
    for (const Tensor& t : outputs) output_specs.push_back(spec_of(t));
  }
  Tensors apply(const Tensors& grad_outputs, BackwardPass& pass) override {
    if (!gradient_)
      fail(Status::runtime, "[backward] the graph of '", name(),
           "' was already used and freed; pass retain_graph=True to the first backward to go through it again");
    Tensors grads = gradient_(grad_outputs);
    if (grads.size() != edges.size())
      fail(Status::runtime, "[", name(), "] its gradient function gave ", grads.size(), " gradients for ", edges.size(),
           " inputs");
    if (!pass.retain_graph()) gradient_ = nullptr;
    return grads;
  }

 private:
  CustomGradient gradient_;
};

void attach(const Ref<Node>& node, std::span<const Tensor> outputs) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!is_floating(outputs[i].dtype())) continue;
    GradMeta& meta = ensure_grad_meta(outputs[i]);
    meta.grad_fn = node;
    meta.output_index = static_cast<int>(i);
  }
}

bool wanted(const Operator& op, std::span<const Tensor> inputs) {
  if (!grad_mode || op.effect == Effect::writes) return false;
  for (const Tensor& t : inputs)
    if (t.defined() && requires_grad(t)) return true;
  return false;
}

// Writes in place are not recorded: a gradient that would have to pass through one is an error, not a silent zero.
void check_sources(const Operator& op, std::span<const Tensor> inputs, int64_t list_length) {
  if (!grad_mode) return;
  for (size_t i = 0; i < inputs.size(); ++i)
    if (inputs[i].defined() && requires_grad(inputs[i]) && !op.is_written(static_cast<int>(i), list_length))
      fail(Status::autograd, "[", op.name, "] writes in place, which is not recorded for backward, but its input ", i,
           " (", describe(inputs[i]),
           ") requires a gradient; use an expression that makes a new tensor, .detach(), or no_grad()");
}

void record(const Operator& op, std::span<const Tensor> inputs, std::span<const Tensor> outputs, const Attrs& attrs,
            int64_t list_length) {
  bool floating = false;
  for (const Tensor& t : outputs) floating |= is_floating(t.dtype());
  if (floating) attach(Ref<Node>(new OpNode(op, inputs, outputs, attrs, list_length)), outputs);
}

void check_write(const Operator& op, const Tensor& written) {
  if (!grad_mode || !requires_grad(written)) return;
  const GradMeta* meta = grad_meta(written);
  if (meta->grad_fn)
    fail(Status::autograd, "[", op.name, "] cannot write in place to a result of '", meta->grad_fn->name(),
         "' that is part of the autograd graph; use .detach(), or no_grad()");
  fail(Status::autograd, "[", op.name, "] cannot write in place to a leaf that requires a gradient; use no_grad()");
}

}  // namespace

GradMeta* grad_meta(const Tensor& tensor) {
  return static_cast<GradMeta*>(tensor.impl()->autograd.load(std::memory_order_acquire));
}

GradMeta& ensure_grad_meta(const Tensor& tensor) {
  if (GradMeta* meta = grad_meta(tensor)) return *meta;
  auto made = std::make_unique<GradMeta>();
  AutogradMeta* other = nullptr;
  if (tensor.impl()->autograd.compare_exchange_strong(other, made.get(), std::memory_order_acq_rel))
    return *made.release();
  return static_cast<GradMeta&>(*other);  // another thread was first
}

void set_grad_stale(const Tensor& leaf, bool stale) {
  GradMeta& meta = ensure_grad_meta(leaf);
  if (CallRecorder* recorder = call_recorder()) recorder->on_grad_flag(leaf, meta.grad_stale, stale);
  meta.grad_stale = stale;
}

DType grad_dtype(const Tensor& leaf) {
  const GradMeta* meta = grad_meta(leaf);
  return meta && meta->grad_dtype ? *meta->grad_dtype : leaf.dtype();
}

void set_grad_dtype(const Tensor& leaf, DType dtype) {
  require(is_leaf(leaf), "[grad_dtype] expected a leaf, got a result of '",
          is_leaf(leaf) ? "" : grad_meta(leaf)->grad_fn->name(), "'");
  const bool narrow = leaf.dtype() == DType::bfloat16 || leaf.dtype() == DType::float16;
  require_type(dtype == leaf.dtype() || (narrow && dtype == DType::float32), "[grad_dtype] expected ",
               dtype_name(leaf.dtype()), narrow ? " or float32" : "", " for the gradient of ", describe(leaf), ", got ",
               dtype_name(dtype));
  GradMeta& meta = ensure_grad_meta(leaf);
  const std::lock_guard lock(meta.lock);
  meta.grad_dtype = dtype;
  if (meta.grad.defined() && meta.grad.dtype() != dtype) {
    meta.grad = {};
    meta.grad_stale = false;
  }
}

bool requires_grad(const Tensor& tensor) {
  const GradMeta* meta = grad_meta(tensor);
  return meta && (meta->requires_grad || meta->grad_fn);
}

bool is_leaf(const Tensor& tensor) {
  const GradMeta* meta = grad_meta(tensor);
  return !meta || !meta->grad_fn;
}

bool grad_enabled() { return grad_mode; }
void set_grad_enabled(bool enabled) { grad_mode = enabled; }

Edge edge_to(const Tensor& tensor) {
  const GradMeta* meta = grad_meta(tensor);
  if (!meta) return {};
  if (meta->grad_fn) return {meta->grad_fn, meta->output_index, {}};
  if (meta->requires_grad) return {{}, 0, tensor};
  return {};
}

TensorSpec spec_of(const Tensor& t) { return {t.dtype(), t.shape(), t.strides(), true}; }

Node::Node(std::string_view name, int num_outputs)
    : name_(intern(std::string(name))),
      sequence_(next_sequence.fetch_add(1, std::memory_order_relaxed)),
      num_outputs_(num_outputs) {
  num_live_nodes.fetch_add(1, std::memory_order_relaxed);
}

// Chains of a million nodes are freed in a loop, not by recursion through the edges.
Node::~Node() {
  num_live_nodes.fetch_sub(1, std::memory_order_relaxed);
  thread_local std::vector<Ref<Node>>* pending = nullptr;
  if (pending) {
    for (Edge& e : edges)
      if (e.node) pending->push_back(std::move(e.node));
    return;
  }
  std::vector<Ref<Node>> queue;
  for (Edge& e : edges)
    if (e.node) queue.push_back(std::move(e.node));
  pending = &queue;
  while (!queue.empty()) {
    const Ref<Node> next = std::move(queue.back());
    queue.pop_back();
  }
  pending = nullptr;
}

uint64_t Node::live_nodes() { return num_live_nodes.load(std::memory_order_relaxed); }

void record_custom(const std::string& name, std::span<const Tensor> inputs, std::span<const Tensor> outputs,
                   CustomGradient gradient) {
  for (const Tensor& t : outputs)
    require(!requires_grad(t), "[", name,
            "] expected outputs that are not part of a graph; compute them under no_grad()");
  bool any = false;
  for (const Tensor& t : inputs) any |= requires_grad(t);
  if (any && grad_mode) attach(Ref<Node>(new CustomNode(name, inputs, outputs, std::move(gradient))), outputs);
}

void install_autograd() { set_autograd_hooks({wanted, record, check_write, check_sources}); }

}  // namespace blutensor
