#include "ops/registry.h"

#include <algorithm>
#include <bit>
#include <deque>
#include <mutex>
#include <unordered_map>

#include "ops/all_operators.h"
#include "ops/cuda/table.h"
#include "tensor/fork.h"

namespace blutensor {

namespace {

bool same_bits(double a, double b) { return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b); }

std::string exact_text(double value) {
  std::ostringstream out;
  out.precision(17);
  out << value;
  return std::move(out).str();
}

}  // namespace

bool Attr::operator==(const Attr& o) const {
  return kind == o.kind && i == o.i && same_bits(f, o.f) && ints == o.ints && s == o.s &&
         std::equal(floats.begin(), floats.end(), o.floats.begin(), o.floats.end(), same_bits);
}

std::string to_text(const Attr& a) {
  switch (a.kind) {
    case AttrKind::integer:
      return text(a.i);
    case AttrKind::floating:
      return exact_text(a.f);
    case AttrKind::boolean:
      return a.i ? "true" : "false";
    case AttrKind::integers:
      return text(a.ints);
    case AttrKind::axes:
      return a.all_axes() ? "all" : text(a.ints);
    case AttrKind::dtype:
      return dtype_name(static_cast<DType>(a.i));
    case AttrKind::string:
      return text('"', a.s, '"');
    case AttrKind::floats: {
      std::string list = "(";
      for (size_t k = 0; k < a.floats.size(); ++k) list += (k ? ", " : "") + exact_text(a.floats[k]);
      return list + ")";
    }
  }
  return {};
}

int Operator::fixed_inputs() const {
  int n = 0;
  for (const InputSpec& spec : inputs) n += !spec.is_list();
  return n;
}
int Operator::num_lists() const { return static_cast<int>(inputs.size()) - fixed_inputs(); }
bool Operator::is_written(int flat_index, int64_t list_length) const {
  const int fixed = fixed_inputs();
  const int spec = flat_index < fixed ? flat_index : fixed + static_cast<int>((flat_index - fixed) / list_length);
  return inputs[static_cast<size_t>(spec)].written;
}

struct OperatorRegistry::Impl {
  mutable ForkMutex mutex{ForkMutex::Place::operators};
  std::deque<Operator> operators;  // addresses stay
  std::unordered_map<std::string_view, const Operator*> by_name;
};

OperatorRegistry::OperatorRegistry() : impl_(new Impl) {
  register_creation(*this);
  register_views(*this);
  register_elementwise(*this);
  register_copy(*this);
  register_reduce(*this);
  register_scan(*this);
  register_sort(*this);
  register_random(*this);
  register_matmul(*this);
  register_linear(*this);
  register_layer_norm(*this);
  register_rms_norm(*this);
  register_rotary(*this);
  register_embedding(*this);
  register_indexing(*this);
  register_linear_cross_entropy(*this);
  register_optimizer(*this);
  register_softmax(*this);
  register_cross_entropy(*this);
  register_attention(*this);
}

OperatorRegistry& OperatorRegistry::instance() {
  static auto& registry = *new OperatorRegistry;  // never destroyed: descriptors are used by handles of any lifetime
  return registry;
}

const Operator& OperatorRegistry::add(Operator op) {
  const auto bad = [&](const auto&... why) { fail(Status::invalid_value, "[register ", op.name, "] ", why...); };
  if (op.name.empty()) bad("an operator needs a name");
  if (op.view ? bool(op.infer) || op.launch_cpu : !op.launch_cpu && !op.launch_cuda && !op.decompose)
    bad("expected either a view function, or a launcher (and inference when it has outputs)");
  if (!op.view && op.num_outputs > 0 && !op.infer) bad("an operator with outputs needs an inference function");
  bool list_seen = false, written = false;
  for (const InputSpec& spec : op.inputs) {
    if (list_seen && !spec.is_list()) bad("list inputs come last, '", spec.name, "' follows one");
    list_seen |= spec.is_list();
    written |= spec.written;
  }
  if (written) op.effect = Effect::writes;
  if (op.effect == Effect::writes && !written) bad("effect 'writes' without a written input");
  for (AttrSpec& a : op.attrs) a.default_value.kind = a.kind;
  if (const CudaTable::Entry* entry = op.launch_cuda ? nullptr : cuda_table().find(op.name)) {
    op.launch_cuda = entry->launch;
    op.workspace_cuda = entry->workspace;
  }

  const std::lock_guard lock(impl_->mutex);
  if (impl_->by_name.contains(op.name)) bad("this name is taken");
  op.id = static_cast<uint32_t>(impl_->operators.size());
  op.tag = intern(op.name);
  const Operator& stored = impl_->operators.emplace_back(std::move(op));
  impl_->by_name.emplace(stored.name, &stored);
  return stored;
}

const Operator* OperatorRegistry::find(std::string_view name) const {
  const std::lock_guard lock(impl_->mutex);
  const auto it = impl_->by_name.find(name);
  return it == impl_->by_name.end() ? nullptr : it->second;
}

const Operator& OperatorRegistry::at(uint32_t id) const {
  const std::lock_guard lock(impl_->mutex);
  require(id < impl_->operators.size(), "unknown operator id ", id);
  return impl_->operators[id];
}

uint32_t OperatorRegistry::size() const {
  const std::lock_guard lock(impl_->mutex);
  return static_cast<uint32_t>(impl_->operators.size());
}

}  // namespace blutensor
