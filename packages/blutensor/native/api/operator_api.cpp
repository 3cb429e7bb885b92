// The operator table, calls, and operators that other libraries register.
#include "api/handles.h"
#include "ops/registry.h"
#include "tensor/device.h"

using namespace blutensor;
using namespace blutensor::api;

namespace {

// ---------------------------------------------------------------- JSON

void put_string(std::ostringstream& out, const std::string& s) {
  out << '"';
  for (const char c : s) {
    if (c == '"' || c == '\\') {
      out << '\\' << c;
    } else if (c == '\n') {
      out << "\\n";
    } else {
      out << c;
    }
  }
  out << '"';
}

template <class List, class Put>
void put_list(std::ostringstream& out, const List& list, const Put& put) {
  out << '[';
  bool first = true;
  for (const auto& item : list) {
    if (!first) out << ", ";
    put(item);
    first = false;
  }
  out << ']';
}

void put_float(std::ostringstream& out, double value) {
  if (std::isfinite(value)) {
    out << to_text(Attr::of_float(value));
  } else {
    put_string(out, std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");
  }
}

void put_attr(std::ostringstream& out, const Attr& a) {
  switch (a.kind) {
    case AttrKind::string:
      return put_string(out, a.s);
    case AttrKind::integers:
      return put_list(out, a.ints, [&](int64_t v) { out << v; });
    case AttrKind::axes:
      if (a.all_axes()) {
        out << "null";
        return;
      }
      return put_list(out, a.ints, [&](int64_t v) { out << v; });
    case AttrKind::dtype:
      return put_string(out, dtype_name(static_cast<DType>(a.i)));
    case AttrKind::floating:
      return put_float(out, a.f);
    case AttrKind::floats:
      return put_list(out, a.floats, [&](double v) { put_float(out, v); });
    default:
      out << to_text(a);
  }
}

void put_operator(std::ostringstream& out, const Operator& op) {
  constexpr const char* input_kinds[] = {"required", "optional", "list", "optional_list"};
  constexpr const char* attr_kinds[] = {"integer", "floating", "boolean", "integers",
                                        "dtype",   "string",   "floats",  "axes"};
  constexpr const char* effects[] = {"pure", "writes", "communicates"};
  constexpr const char* lanes[] = {"compute", "communication", "copy"};
  const auto boolean = [](bool b) { return b ? "true" : "false"; };
  out << "{\"id\": " << op.id << ", \"name\": ";
  put_string(out, op.name);
  out << ", \"doc\": ";
  put_string(out, op.doc);
  out << ", \"category\": ";
  put_string(out, op.category);
  out << ", \"public\": " << boolean(op.is_public) << ", \"view\": " << boolean(bool(op.view))
      << ", \"composite\": " << boolean(bool(op.decompose)) << ", \"differentiable\": " << boolean(bool(op.gradient))
      << ", \"effect\": \"" << effects[static_cast<int>(op.effect)] << "\", \"lane\": \""
      << lanes[static_cast<int>(op.lane)] << "\", \"inputs\": ";
  put_list(out, op.inputs, [&](const InputSpec& s) {
    out << "{\"name\": ";
    put_string(out, s.name);
    out << ", \"kind\": \"" << input_kinds[static_cast<int>(s.kind)] << "\", \"written\": " << boolean(s.written)
        << ", \"accepts_scalar\": " << boolean(s.accepts_scalar) << '}';
  });
  out << ", \"attrs\": ";
  put_list(out, op.attrs, [&](const AttrSpec& s) {
    out << "{\"name\": ";
    put_string(out, s.name);
    out << ", \"kind\": \"" << attr_kinds[static_cast<int>(s.kind)] << "\", \"required\": " << boolean(s.required)
        << ", \"default\": ";
    put_attr(out, s.default_value);
    out << ", \"choices\": ";
    put_list(out, s.choices, [&](const std::string& c) { put_string(out, c); });
    out << '}';
  });
  out << ", \"num_outputs\": " << op.num_outputs << ", \"outputs\": ";
  put_list(out, op.output_names, [&](const std::string& n) { put_string(out, n); });
  out << ", \"grad_cases\": ";
  put_list(out, op.grad_cases, [&](const GradCase& c) {
    out << "{\"shapes\": ";
    put_list(out, c.shapes, [&](const Shape& s) { put_list(out, s, [&](int64_t v) { out << v; }); });
    out << ", \"attrs\": ";
    put_list(out, c.attrs, [&](const Attr& a) { put_attr(out, a); });
    out << ", \"domain\": ";
    put_string(out, c.domain);
    out << '}';
  });
  out << '}';
}

// ---------------------------------------------------------------- operators registered through C

std::vector<blutensor_view> c_views(std::span<const View> views) {
  std::vector<blutensor_view> list;
  for (const View& v : views) list.push_back(to_c_view(v));
  return list;
}

// Until ABI 1.2 axes were integers, and none of them meant all.
blutensor_attr as_axes(blutensor_attr integers) {
  integers.kind = static_cast<int32_t>(AttrKind::axes);
  integers.i = integers.count == 0;
  return integers;
}

// Operators trust the kinds of their attributes.
Attrs checked_attrs(const Operator& op, const blutensor_attr* attrs, int32_t count) {
  require(count == static_cast<int32_t>(op.attrs.size()), "[", op.name, "] expected ", op.attrs.size(),
          " attributes, got ", count);
  const auto is = [](int32_t kind, AttrKind wanted) { return kind == static_cast<int32_t>(wanted); };
  bool has_older = false;
  for (size_t k = 0; k < op.attrs.size(); ++k) {
    const bool older = op.attrs[k].kind == AttrKind::axes && is(attrs[k].kind, AttrKind::integers);
    require_type(older || is(attrs[k].kind, op.attrs[k].kind), "[", op.name, "] expected kind ",
                 static_cast<int32_t>(op.attrs[k].kind), " for '", op.attrs[k].name, "', got ", attrs[k].kind);
    has_older |= older;
  }
  if (!has_older) return to_attrs(attrs, count);
  std::vector<blutensor_attr> list(attrs, attrs + count);
  for (size_t k = 0; k < list.size(); ++k)
    if (op.attrs[k].kind == AttrKind::axes && is(list[k].kind, AttrKind::integers)) list[k] = as_axes(list[k]);
  return to_attrs(list.data(), count);
}

// The call, whose errors name the operator also where they come from what knows none (sizes, for example).
Tensors named_call(const Operator& op, const Tensors& inputs, const Attrs& attrs, int64_t list_length) {
  try {
    return call(op, inputs, attrs, list_length);
  } catch (const Error& error) {
    if (error.what()[0] == '[') throw;
    throw Error(error.status(), text("[", op.name, "] ", error.what()));
  }
}

void check_callback(int32_t status) {
  if (status) throw Error(static_cast<Status>(status), blutensor_last_error());
}

using LaunchCallback = int32_t (*)(void*, const blutensor_view*, const blutensor_attr*, const blutensor_view*, void*);

LaunchFn launcher_of(LaunchCallback callback, void* context) {
  return [callback, context](const Launch& l) {
    const auto in = c_views(l.inputs), out = c_views(l.outputs);
    const auto attrs = from_attrs(l.attrs);
    check_callback(callback(context, in.data(), attrs.data(), out.data(), l.stream));
  };
}

Operator from_desc(const blutensor_operator_desc& d) {
  require(d.struct_size >= sizeof d, "[register_operator] struct_size is too small");
  require(d.name && d.infer && (d.launch_cpu || d.launch_cuda),
          "[register_operator] expected a name, infer and a launcher");
  require(d.num_inputs >= 0 && d.num_outputs >= 0 && d.num_attrs >= 0,
          "[register_operator] expected counts of at least 0");
  Operator op;
  op.name = d.name;
  op.doc = d.doc ? d.doc : "";
  op.category = "registered";
  for (int32_t i = 0; i < d.num_inputs; ++i) {
    InputSpec spec;
    spec.name = d.input_names[i];
    spec.written = i < 64 && (d.written_inputs >> i & 1);
    op.inputs.push_back(spec);
  }
  for (int32_t i = 0; i < d.num_attrs; ++i) {
    AttrSpec spec;
    spec.name = d.attr_names[i];
    require(d.attr_kinds[i] >= 0 && d.attr_kinds[i] <= static_cast<int32_t>(AttrKind::axes),
            "[register_operator] expected a kind from 0 to 7 for '", spec.name, "', got ", d.attr_kinds[i]);
    spec.kind = static_cast<AttrKind>(d.attr_kinds[i]);
    spec.required = true;
    op.attrs.push_back(spec);
  }
  require(d.effect >= 0 && d.effect <= 2 && d.lane >= 0 && d.lane < kNumLanes,
          "[register_operator] expected an effect from 0 to 2 and a lane from 0 to 2, got ", d.effect, " and ", d.lane);
  op.num_outputs = d.num_outputs;
  op.effect = static_cast<Effect>(d.effect);
  op.lane = static_cast<Lane>(d.lane);
  op.save_inputs = d.saved_inputs;
  op.save_outputs = d.saved_outputs;
  op.infer = [desc = d](const OpCall& call) {
    std::vector<blutensor_view> in, out(static_cast<size_t>(desc.num_outputs));
    for (const Tensor& t : call.inputs) {
      in.push_back(to_c_view(t.as_view()));
      in.back().data = nullptr;
    }
    const auto attrs = from_attrs(call.attrs);
    check_callback(desc.infer(desc.context, in.data(), attrs.data(), out.data()));
    std::vector<TensorSpec> specs;
    for (const blutensor_view& v : out) specs.push_back({checked_dtype(v.dtype), dims(v.shape, v.rank), {}, false});
    return specs;
  };
  if (d.launch_cpu) op.launch_cpu = launcher_of(d.launch_cpu, d.context);
  if (d.launch_cuda) op.launch_cuda = launcher_of(d.launch_cuda, d.context);
  if (d.gradient)
    op.gradient = [desc = d](GradContext& ctx) {
      Tensors in, out, grads;
      std::vector<blutensor_tensor*> in_handles, out_handles, grad_handles,
          results(static_cast<size_t>(ctx.num_inputs()));
      for (int i = 0; i < ctx.num_inputs(); ++i) in_handles.push_back(borrow(in.emplace_back(ctx.input(i))));
      for (int i = 0; i < desc.num_outputs; ++i) {
        out_handles.push_back(borrow(out.emplace_back(ctx.output(i))));
        grad_handles.push_back(borrow(grads.emplace_back(ctx.grad_output(i))));
      }
      const auto attrs = from_attrs(ctx.attrs());
      const int32_t status = desc.gradient(desc.context, in_handles.data(), out_handles.data(), grad_handles.data(),
                                           attrs.data(), results.data());
      Tensors adopted;
      for (blutensor_tensor* handle : results) adopted.push_back(adopt(handle));
      check_callback(status);
      return adopted;
    };
  return op;
}

}  // namespace

extern "C" {

const char* blutensor_operator_table(void) {
  thread_local std::string buffer;
  const int32_t status = guarded([&] {
    initialize();
    const OperatorRegistry& registry = OperatorRegistry::instance();
    std::ostringstream out;
    out << "[";
    for (uint32_t id = 0; id < registry.size(); ++id) {
      if (id) out << ",\n";
      put_operator(out, registry.at(id));
    }
    out << "]";
    buffer = std::move(out).str();
  });
  return status ? "" : buffer.c_str();
}

int32_t blutensor_call(uint32_t op_id, blutensor_tensor* const* inputs, int32_t num_inputs, int64_t list_length,
                       const blutensor_attr* attrs, int32_t num_attrs, blutensor_tensor** outputs, int32_t max_outputs,
                       int32_t* num_outputs) {
  return guarded([&] {
    const Operator& op = OperatorRegistry::instance().at(op_id);
    const Tensors results =
        named_call(op, from_handles(inputs, num_inputs), checked_attrs(op, attrs, num_attrs), list_length);
    require(results.size() <= static_cast<size_t>(max_outputs), "[", op.name, "] room for ", max_outputs,
            " outputs, need ", results.size());
    for (size_t i = 0; i < results.size(); ++i) outputs[i] = to_handle(results[i]);
    *num_outputs = static_cast<int32_t>(results.size());
  });
}

int32_t blutensor_call_on(int32_t device_type, int32_t device_index, uint32_t op_id, blutensor_tensor* const* inputs,
                          int32_t num_inputs, int64_t list_length, const blutensor_attr* attrs, int32_t num_attrs,
                          blutensor_tensor** outputs, int32_t max_outputs, int32_t* num_outputs) {
  Device device;
  if (const int32_t status = guarded([&] { device = checked_device(device_type, device_index); })) return status;
  const CreationDevice guard(device);
  return blutensor_call(op_id, inputs, num_inputs, list_length, attrs, num_attrs, outputs, max_outputs, num_outputs);
}

int32_t blutensor_register_operator(const blutensor_operator_desc* desc, uint32_t* op_id) {
  return guarded([&] {
    initialize();
    *op_id = OperatorRegistry::instance().add(from_desc(*desc)).id;
  });
}

}  // extern "C"
