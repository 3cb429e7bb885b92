// Operators that move elements: copies, conversions, concatenation, writes in place.
#include "ops/copy/copy.h"

#include <cstring>

#include "ops/all_operators.h"
#include "ops/elementwise/arguments.h"
#include "ops/elementwise/compose.h"
#include "ops/views/views.h"

namespace blutensor {

namespace {

constexpr const char* kCategory = "Copies and writes in place";

// ---------------------------------------------------------------- whole copies

void launch_copy(const Launch& args) { copy_view(args.outputs[0], args.inputs[0]); }

Operator copy_operator(const char* name, const char* doc) {
  Operator o;
  o.name = name;
  o.doc = doc;
  o.category = kCategory;
  o.inputs = {{.name = "x"}};
  o.output_names = {"out"};
  o.infer = [](const OpCall& call) -> std::vector<TensorSpec> {
    return {{call.inputs[0].dtype(), call.inputs[0].shape(), {}, false}};
  };
  o.launch_cpu = launch_copy;
  o.lane = Lane::compute;
  o.gradient = [](GradContext& context) -> Tensors { return {context.grad_output(0)}; };
  o.grad_cases = {{{{3, 5}}, {}}};
  return o;
}

Operator astype_operator() {
  Operator o = copy_operator("astype",
                             "x converted to another dtype, always a copy. To floating-point dtypes: rounded to "
                             "nearest even. Floating to integer: truncated, out of "
                             "range saturates, NaN gives 0. Integer to integer: low bits. To bool: not zero.");
  o.attrs = {{"dtype", AttrKind::dtype, {}, true, {}}};
  o.infer = [](const OpCall& call) -> std::vector<TensorSpec> {
    return {{call.attrs.dtype(0), call.inputs[0].shape(), {}, false}};
  };
  o.gradient = [](GradContext& context) -> Tensors {
    const Tensor g = context.grad_output(0);
    if (!g.defined() || !context.needs(0)) return {Tensor{}};
    return {cast_to(g, context.input_spec(0).dtype)};
  };
  o.grad_cases = {{{{3, 5}}, {Attr::of_dtype(DType::float64)}}};
  return o;
}

// ---------------------------------------------------------------- writes in place

void launch_copy_into(const Launch& args) {
  check_written(args.inputs[0], args.inputs[1], "copy_");
  copy_view(args.inputs[0], args.inputs[1]);
}

template <BinaryOp op>
void launch_binary_into(const Launch& args) {
  check_written(args.inputs[0], args.inputs[1], in_place_name(op));
  run_binary(op, args.inputs[0].dtype, args.inputs[0], args.inputs[0], args.inputs[1]);
}

void launch_fill(const Launch& args) {
  const View& x = args.inputs[0];
  check_written(x, "fill_");
  const double value = args.attrs.f(0);
  alignas(8) unsigned char element[8];
  kernels().copy.from_to(DType::float64, x.dtype)(1, element, 1, &value, 0);
  fill_view(x, element);
}

// Both tensors, checked: `source` broadcasts to the written one.
std::vector<TensorSpec> infer_write(const OpCall& call, const char* op, bool converts) {
  const Tensor &x = call.inputs[0], &source = call.inputs[1];
  require(broadcasts_to(source.shape(), x.shape()), "[", op, "] expected a source that broadcasts to shape ", x.shape(),
          ", got ", source.shape());
  require_type(converts || is_floating(x.dtype()) || promote(x.dtype(), source.dtype()) == x.dtype(), "[", op,
               "] expected a source that converts to ", dtype_name(x.dtype()), " without loss of kind, got ",
               dtype_name(source.dtype()), "; convert it first: astype");
  return {};
}

Operator write_operator(const char* name, const char* doc, LaunchFn launch) {
  Operator o;
  o.name = name;
  o.doc = doc;
  o.category = kCategory;
  o.inputs = {{.name = "x", .written = true}};
  o.num_outputs = 0;
  o.launch_cpu = launch;
  o.effect = Effect::writes;
  return o;
}

template <BinaryOp op>
void add_binary_into(OperatorRegistry& registry, const std::string& what) {
  const std::string doc = what + " in place; other broadcasts to x's shape and is converted to its dtype.";
  Operator into = write_operator(in_place_name(op), doc.c_str(), launch_binary_into<op>);
  into.inputs.push_back({.name = "other"});
  into.infer = [](const OpCall& call) {
    const DType dtype = call.inputs[0].dtype();
    require_type(op == BinaryOp::divide ? is_floating(dtype) : dtype != DType::boolean, "[", in_place_name(op),
                 "] expected a ", op == BinaryOp::divide ? "floating-point" : "numeric", " tensor, got ",
                 dtype_name(dtype));
    return infer_write(call, in_place_name(op), false);
  };
  registry.add(std::move(into));
}

// ---------------------------------------------------------------- concat

bool agree_but_for(const Shape& a, const Shape& b, int axis) {
  if (a.size() != b.size()) return false;
  for (int i = 0; i < a.size(); ++i)
    if (i != axis && a[i] != b[i]) return false;
  return true;
}

int concat_axis(const OpCall& call) { return normalize_axis(call.attrs.i(0), call.inputs[0].rank(), "concat"); }

std::vector<TensorSpec> infer_concat(const OpCall& call) {
  require(!call.inputs.empty(), "[concat] expected at least one tensor, got none");
  const Tensor& first = call.inputs[0];
  require(first.rank() > 0, "[concat] expected tensors of at least one axis, got rank 0; use expand_dims first");
  const int axis = concat_axis(call);
  Shape shape = first.shape();
  DType dtype = first.dtype();
  for (size_t i = 1; i < call.inputs.size(); ++i) {
    const Tensor& next = call.inputs[i];
    require(agree_but_for(next.shape(), first.shape(), axis), "[concat] expected shapes that agree in all axes but ",
            axis, ", got ", first.shape(), " and ", next.shape(), " (tensor ", i, ")");
    shape[axis] += next.size(axis);
    dtype = promote(dtype, next.dtype());
  }
  return {{dtype, shape, {}, false}};
}

void launch_concat(const Launch& args) {
  const View& out = args.outputs[0];
  const int axis = normalize_axis(args.attrs.i(0), out.rank(), "concat");
  int64_t start = 0;
  for (const View& part : args.inputs) {
    copy_view(narrow_view(out, axis, start, part.shape[axis]), part);
    start += part.shape[axis];
  }
}

Tensors concat_gradient(GradContext& context) {
  static const OpRef slice{"slice"};
  Tensors gradients(static_cast<size_t>(context.num_inputs()));
  const Tensor g = context.grad_output(0);
  if (!g.defined()) return gradients;
  const int axis = normalize_axis(context.attrs().i(0), g.rank(), "concat");
  Dims start = Dims::filled(g.rank(), 0);
  for (int i = 0; i < context.num_inputs(); ++i) {
    const TensorSpec& spec = context.input_spec(i);
    if (context.needs(i))
      gradients[static_cast<size_t>(i)] = cast_to(
          slice({g}, {Attr::of_ints(start), Attr::of_ints(spec.shape), Attr::of_ints(Dims::filled(g.rank(), 1))}),
          spec.dtype);
    start[axis] += spec.shape[axis];
  }
  return gradients;
}

// ---------------------------------------------------------------- index_write_

std::vector<TensorSpec> infer_index_write(const OpCall& call) {
  const Tensor &cache = call.inputs[0], &rows = call.inputs[1], &position = call.inputs[2];
  const int axis = normalize_axis(call.attrs.i(0), cache.rank(), "index_write_");
  require(agree_but_for(rows.shape(), cache.shape(), axis) && rows.size(axis) <= cache.size(axis),
          "[index_write_] expected new of shape ", cache.shape(), " with at most ", cache.size(axis), " along axis ",
          axis, ", got ", rows.shape());
  require_type(rows.dtype() == cache.dtype(), "[index_write_] expected new of dtype ", dtype_name(cache.dtype()),
               ", got ", dtype_name(rows.dtype()));
  require_type(position.dtype() == DType::int32 || position.dtype() == DType::int64,
               "[index_write_] expected position of dtype int32 or int64, got ", dtype_name(position.dtype()));
  require(position.numel() == 1, "[index_write_] expected position of one element, got shape ", position.shape());
  return {};
}

void launch_index_write(const Launch& args) {
  const View &cache = args.inputs[0], &rows = args.inputs[1], &position = args.inputs[2];
  const int axis = normalize_axis(args.attrs.i(0), cache.rank(), "index_write_");
  const int64_t start =
      position.dtype == DType::int32 ? *position.ptr<const int32_t>() : *position.ptr<const int64_t>();
  const int64_t last = cache.shape[axis] - rows.shape[axis];
  if (start < 0 || start > last)
    fail(Status::index, "[index_write_] expected a position from 0 to ", last, " (axis ", axis, " has ",
         cache.shape[axis], " rows and ", rows.shape[axis], " are written), got ", start);
  const View target = narrow_view(cache, axis, start, rows.shape[axis]);
  check_written(target, rows, "index_write_");
  copy_view(target, rows);
}

}  // namespace

void register_copy(OperatorRegistry& registry) {
  registry.add(copy_operator("contiguous",
                             "A row-major copy of x. x: any shape, dtype and strides; out: the same shape and dtype."));
  registry.add(
      copy_operator("copy", "A copy of x with memory of its own, row-major. x: any shape and dtype; out: the same."));
  registry.add(astype_operator());

  Operator copy_into = write_operator(
      "copy_", "x = source in place, broadcast to x's shape and converted to its dtype (as astype does).",
      launch_copy_into);
  copy_into.inputs.push_back({.name = "source"});
  copy_into.infer = [](const OpCall& call) { return infer_write(call, "copy_", true); };
  registry.add(std::move(copy_into));

  add_binary_into<BinaryOp::add>(registry, "x += other");
  add_binary_into<BinaryOp::subtract>(registry, "x -= other");
  add_binary_into<BinaryOp::multiply>(registry, "x *= other");
  add_binary_into<BinaryOp::divide>(registry, "x /= other");

  Operator fill = write_operator("fill_", "Every element of x becomes `value`, converted to x's dtype.", launch_fill);
  fill.attrs = {{"value", AttrKind::floating, {}, true, {}}};
  registry.add(std::move(fill));

  Operator concat;
  concat.name = "concat";
  concat.doc =
      "The tensors one after the other along an axis. tensors: equal shapes but for that axis, dtypes promote; out: "
      "sizes along the axis add up.";
  concat.category = kCategory;
  concat.inputs = {{.name = "tensors", .kind = InputSpec::Kind::list}};
  concat.attrs = {{"axis", AttrKind::integer, Attr::of_int(0), false, {}}};
  concat.output_names = {"out"};
  concat.infer = infer_concat;
  concat.launch_cpu = launch_concat;
  concat.gradient = concat_gradient;
  registry.add(std::move(concat));

  Operator write = write_operator("index_write_",
                                  "Writes new into cache in place at [position, position + n) of an axis, n = "
                                  "new.shape[axis]: the step of a key-value cache. cache: any shape "
                                  "and dtype; new: the same but for the axis; position: one int32 or int64, read on "
                                  "the device, checked against the axis.",
                                  launch_index_write);
  write.inputs[0].name = "cache";
  write.inputs.push_back({.name = "new"});
  write.inputs.push_back({.name = "position"});
  write.attrs = {{"axis", AttrKind::integer, Attr::of_int(0), false, {}}};
  write.infer = infer_index_write;
  registry.add(std::move(write));
}

}  // namespace blutensor
