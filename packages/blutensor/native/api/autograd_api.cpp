// Gradients: modes, backward passes, hooks, nodes of the user's own.
#include <atomic>
#include <mutex>

#include "api/handles.h"
#include "autograd/engine.h"

using namespace blutensor;
using namespace blutensor::api;

namespace {

[[noreturn]] void callback_failed(int32_t status) { throw Error(static_cast<Status>(status), blutensor_last_error()); }

Tensors checked_handles(blutensor_tensor* const* handles, int32_t count, const char* function) {
  Tensors list = from_handles(handles, count);
  for (const Tensor& t : list) require_type(t.defined(), "[", function, "] expected tensors, got NULL");
  return list;
}

}  // namespace

extern "C" {

int32_t blutensor_set_requires_grad(blutensor_tensor* tensor, int32_t value) {
  return guarded([&] {
    const Tensor t = needed(tensor, "requires_grad");
    require(is_leaf(t) || value, "[requires_grad] cannot be switched off on a result of '",
            is_leaf(t) ? "" : grad_meta(t)->grad_fn->name(), "'; use .detach()");
    if (!is_leaf(t)) return;
    require_type(is_floating(t.dtype()) || !value, "[requires_grad] expected a floating-point tensor, got ",
                 dtype_name(t.dtype()));
    if (value || grad_meta(t)) ensure_grad_meta(t).requires_grad = value != 0;
  });
}

int32_t blutensor_get_grad(blutensor_tensor* tensor, blutensor_tensor** out) {
  return guarded([&] { *out = to_handle(read_grad(needed(tensor, "grad"))); });
}

int32_t blutensor_set_grad(blutensor_tensor* tensor, blutensor_tensor* grad) {
  return guarded([&] {
    const Tensor t = needed(tensor, "grad"), g = from_handle(grad);
    if (!g.defined()) {
      if (GradMeta* meta = grad_meta(t)) {
        const std::lock_guard lock(meta->lock);
        meta->grad = {};
        meta->grad_stale = false;
      }
      return;
    }
    require(g.shape() == t.shape(), "[grad] expected a gradient of shape ", t.shape(), ", got ", g.shape());
    require_type(g.dtype() == grad_dtype(t), "[grad] expected a gradient of dtype ", dtype_name(grad_dtype(t)),
                 ", got ", dtype_name(g.dtype()));
    GradMeta& meta = ensure_grad_meta(t);
    const std::lock_guard lock(meta.lock);
    meta.grad = g;
    meta.grad_stale = false;
  });
}

int32_t blutensor_set_grad_dtype(blutensor_tensor* tensor, int32_t dtype) {
  return guarded([&] {
    require_type(dtype >= 0 && dtype < kNumDTypes, "[grad_dtype] unknown dtype ", dtype);
    set_grad_dtype(needed(tensor, "grad_dtype"), static_cast<DType>(dtype));
  });
}

int32_t blutensor_get_grad_dtype(const blutensor_tensor* tensor, int32_t* out) {
  return guarded([&] { *out = static_cast<int32_t>(grad_dtype(needed(tensor, "grad_dtype"))); });
}

int32_t blutensor_mark_grad_stale(blutensor_tensor* tensor) {
  return guarded([&] {
    const Tensor t = needed(tensor, "zero_grad");
    GradMeta* meta = grad_meta(t);
    if (!meta) return;
    const std::lock_guard lock(meta->lock);
    if (meta->grad.defined()) set_grad_stale(t, true);
  });
}

int32_t blutensor_has_fresh_grad(const blutensor_tensor* tensor, int32_t* out) {
  return guarded([&] {
    const GradMeta* meta = grad_meta(needed(tensor, "grad"));
    *out = meta && meta->grad.defined() && !meta->grad_stale;
  });
}

int32_t blutensor_detach(blutensor_tensor* tensor, blutensor_tensor** out) {
  return guarded([&] {
    const Tensor t = needed(tensor, "detach");
    *out = to_handle(t.view(t.shape(), t.strides(), t.offset()));
  });
}

int32_t blutensor_grad_enabled(void) { return grad_enabled(); }
void blutensor_set_grad_enabled(int32_t enabled) { set_grad_enabled(enabled != 0); }

int32_t blutensor_backward(blutensor_tensor* const* roots, blutensor_tensor* const* grads, int32_t num_roots,
                           int32_t retain_graph, int32_t create_graph) {
  return guarded([&] {
    backward(checked_handles(roots, num_roots, "backward"), from_handles(grads, num_roots),
             {retain_graph != 0, create_graph != 0});
  });
}

int32_t blutensor_grad(blutensor_tensor* const* roots, blutensor_tensor* const* grads, int32_t num_roots,
                       blutensor_tensor* const* inputs, int32_t num_inputs, int32_t retain_graph, int32_t create_graph,
                       int32_t allow_unused, blutensor_tensor** grad_inputs) {
  return guarded([&] {
    const Tensors results =
        gradients(checked_handles(roots, num_roots, "grad"), from_handles(grads, num_roots),
                  checked_handles(inputs, num_inputs, "grad"), {retain_graph != 0, create_graph != 0});
    for (size_t i = 0; i < results.size(); ++i)
      require(allow_unused || results[i].defined(), "[grad] input ", i,
              " was not used in computing the outputs; pass allow_unused=True to get None for it");
    for (size_t i = 0; i < results.size(); ++i) grad_inputs[i] = to_handle(results[i]);
  });
}

int32_t blutensor_add_hook(blutensor_tensor* tensor, blutensor_grad_hook hook, void (*release)(void*), void* context,
                           uint64_t* hook_id) {
  return guarded([&] {
    const auto owner = make_ref<CallbackContext>(context, release);
    const Tensor t = needed(tensor, "register_hook");
    require(requires_grad(t), "[register_hook] expected a tensor that requires a gradient");
    static std::atomic<uint64_t> next_id{1};
    GradHook entry{next_id.fetch_add(1), [hook, owner](const Tensor& grad) {
                     blutensor_tensor* out = nullptr;
                     if (const int32_t status = hook(owner->context, borrow(grad), &out)) callback_failed(status);
                     return adopt(out);
                   }};
    *hook_id = entry.id;
    GradMeta& meta = ensure_grad_meta(t);
    if (!meta.grad_fn) {
      const std::lock_guard lock(meta.lock);
      meta.hooks.push_back(std::move(entry));
      return;
    }
    const std::lock_guard lock(meta.grad_fn->lock);
    auto& hooks = meta.grad_fn->hooks;
    hooks.resize(static_cast<size_t>(meta.grad_fn->num_outputs()));
    hooks[static_cast<size_t>(meta.output_index)].push_back(std::move(entry));
  });
}

int32_t blutensor_remove_hook(blutensor_tensor* tensor, uint64_t hook_id) {
  return guarded([&] {
    GradMeta* meta = grad_meta(needed(tensor, "remove_hook"));
    const auto matches = [&](const GradHook& h) { return h.id == hook_id; };
    size_t removed = 0;
    if (meta && meta->grad_fn) {
      const std::lock_guard lock(meta->grad_fn->lock);
      for (auto& list : meta->grad_fn->hooks) removed += std::erase_if(list, matches);
    } else if (meta) {
      const std::lock_guard lock(meta->lock);
      removed += std::erase_if(meta->hooks, matches);
    }
    require(removed > 0, "[remove_hook] this tensor has no hook ", hook_id);
  });
}

int32_t blutensor_record_custom(const char* name, blutensor_tensor* const* inputs, int32_t num_inputs,
                                blutensor_tensor* const* outputs, int32_t num_outputs,
                                blutensor_custom_gradient gradient, void (*release)(void*), void* context) {
  return guarded([&] {
    const auto owner = make_ref<CallbackContext>(context, release);
    record_custom(name, checked_handles(inputs, num_inputs, name), checked_handles(outputs, num_outputs, name),
                  [gradient, owner, num_inputs](const Tensors& grad_outputs) {
                    std::vector<blutensor_tensor*> in, out(static_cast<size_t>(num_inputs));
                    for (const Tensor& t : grad_outputs) in.push_back(borrow(t));
                    const int32_t status =
                        gradient(owner->context, in.data(), static_cast<int32_t>(in.size()), out.data(), num_inputs);
                    Tensors grads;
                    for (blutensor_tensor* handle : out) grads.push_back(adopt(handle));
                    if (status) callback_failed(status);
                    return grads;
                  });
  });
}

int32_t blutensor_autograd_get_stats(blutensor_autograd_stats* stats) {
  return guarded([&] {
    require(stats->struct_size >= sizeof(blutensor_autograd_stats), "[autograd_stats] struct_size is too small");
    stats->live_nodes = Node::live_nodes();
    stats->arena_bytes = GraphArena::instance().reserved_bytes();
    stats->arena_resets = GraphArena::instance().recycled_chunks();
  });
}

}  // extern "C"
