// View operators: other geometry over the same storage. They move nothing, so they are not calls of a Program.
#include "ops/views/views.h"

#include "ops/all_operators.h"
#include "ops/copy/copy.h"
#include "ops/elementwise/compose.h"

namespace blutensor {

namespace {

const Tensor& input(const OpCall& call) { return call.inputs[0]; }

Operator view_operator(const char* name, const char* doc, std::vector<AttrSpec> attrs, ViewFn view,
                       GradientFn gradient) {
  Operator o;
  o.name = name;
  o.doc = doc;
  o.category = "Views";
  o.inputs = {{.name = "x"}};
  o.attrs = std::move(attrs);
  o.output_names = {"out"};
  o.view = std::move(view);
  o.gradient = std::move(gradient);
  return o;
}

// The gradient has the elements of the result in the same order.
Tensors reshape_gradient(GradContext& context) {
  const Tensor g = context.grad_output(0);
  if (!g.defined() || !context.needs(0)) return {Tensor{}};
  return {reshaped(g, context.input_spec(0).shape)};
}

// ---------------------------------------------------------------- reshape

std::vector<ViewSpec> view_reshape(const OpCall& call) {
  const Tensor& x = input(call);
  const Shape shape = resolve_shape(x.shape(), call.attrs.ints(0));
  const std::optional<Strides> strides = reshape_strides(x.shape(), x.strides(), shape);
  if (!strides) return {};  // the dispatcher takes a view of a copy
  return {{shape, *strides, x.offset()}};
}

// ---------------------------------------------------------------- permute_dims

Dims normalized_permutation(const Dims& axes, int rank) {
  require(axes.size() == rank, "[permute_dims] expected ", rank, " axes, got ", axes);
  Dims order = axes;
  unsigned seen = 0;
  for (int i = 0; i < rank; ++i) {
    order[i] = normalize_axis(axes[i], rank, "permute_dims");
    require(!(seen >> order[i] & 1u), "[permute_dims] expected every axis once, got ", axes);
    seen |= 1u << order[i];
  }
  return order;
}

std::vector<ViewSpec> view_permute(const OpCall& call) {
  const Tensor& x = input(call);
  const Dims order = normalized_permutation(call.attrs.ints(0), x.rank());
  ViewSpec spec{x.shape(), x.strides(), x.offset()};
  for (int i = 0; i < x.rank(); ++i) {
    spec.shape[i] = x.shape()[static_cast<int>(order[i])];
    spec.strides[i] = x.strides()[static_cast<int>(order[i])];
  }
  return {spec};
}

Tensors permute_gradient(GradContext& context) {
  static const OpRef permute{"permute_dims"};
  const Tensor g = context.grad_output(0);
  if (!g.defined() || !context.needs(0)) return {Tensor{}};
  const Dims order = normalized_permutation(context.attrs().ints(0), g.rank());
  Dims inverse = order;
  for (int i = 0; i < g.rank(); ++i) inverse[static_cast<int>(order[i])] = i;
  return {permute({g}, {Attr::of_ints(inverse)})};
}

// ---------------------------------------------------------------- broadcast_to

std::vector<ViewSpec> view_broadcast(const OpCall& call) {
  const Tensor& x = input(call);
  const Shape& shape = call.attrs.ints(0);
  num_elements(shape);  // checks the sizes
  require(x.rank() <= shape.size() && broadcast_shapes(x.shape(), shape, "broadcast_to") == shape,
          "[broadcast_to] expected a shape that ", x.shape(), " broadcasts to, got ", shape);
  return {{shape, broadcast_strides(x.shape(), x.strides(), shape), x.offset()}};
}

Tensors broadcast_gradient(GradContext& context) {
  const Tensor g = context.grad_output(0);
  if (!g.defined() || !context.needs(0)) return {Tensor{}};
  return {reduced_to(g, context.input_spec(0))};
}

// ---------------------------------------------------------------- squeeze, expand_dims

std::vector<ViewSpec> view_squeeze(const OpCall& call) {
  const Tensor& x = input(call);
  const Attr& axes = call.attrs[0];
  unsigned dropped = 0;
  for (int64_t requested : axes.ints) {
    const int axis = normalize_axis(requested, x.rank(), "squeeze");
    require(x.size(axis) == 1, "[squeeze] expected axes of size 1, got axis ", axis, " of shape ", x.shape());
    dropped |= 1u << axis;
  }
  ViewSpec spec{{}, {}, x.offset()};
  for (int axis = 0; axis < x.rank(); ++axis) {
    if (axes.all_axes() ? x.size(axis) == 1 : (dropped >> axis & 1u) != 0) continue;
    spec.shape.push_back(x.size(axis));
    spec.strides.push_back(x.strides()[axis]);
  }
  return {spec};
}

std::vector<ViewSpec> view_expand_dims(const OpCall& call) {
  const Tensor& x = input(call);
  const int axis = normalize_axis(call.attrs.i(0), x.rank() + 1, "expand_dims");
  ViewSpec spec{x.shape(), x.strides(), x.offset()};
  const int64_t stride = axis < x.rank() ? x.strides()[axis] * x.shape()[axis] : 1;
  spec.shape.insert(axis, 1);
  spec.strides.insert(axis, stride);
  return {spec};
}

// ---------------------------------------------------------------- slice

enum SliceAttr { kStart, kLength, kStep };

std::vector<AttrSpec> slice_attrs() {
  return {{"start", AttrKind::integers, {}, true, {}},
          {"length", AttrKind::integers, {}, true, {}},
          {"step", AttrKind::integers, {}, true, {}}};
}

// The slice of a tensor of this geometry; `at` is the position of the three attributes.
ViewSpec slice_spec(const Shape& shape, const Strides& strides, int64_t offset, const Attrs& attrs, size_t at,
                    const char* op) {
  const Dims &start = attrs.ints(at), &length = attrs.ints(at + 1), &step = attrs.ints(at + 2);
  const int rank = shape.size();
  require(start.size() == rank && length.size() == rank && step.size() == rank, "[", op,
          "] expected start, length and step of ", rank, " values each (shape ", shape, "), got ", start, ", ", length,
          ", ", step);
  ViewSpec spec{length, strides, offset};
  for (int axis = 0; axis < rank; ++axis) {
    require(length[axis] >= 0, "[", op, "] expected lengths of at least 0, got ", length);
    spec.strides[axis] = strides[axis] * step[axis];
    if (length[axis] == 0) continue;
    const int64_t last = start[axis] + (length[axis] - 1) * step[axis];
    if (start[axis] < 0 || start[axis] >= shape[axis] || last < 0 || last >= shape[axis])
      fail(Status::index, "[", op, "] expected positions from 0 to ", shape[axis] - 1, " of axis ", axis, ", got ",
           start[axis], " to ", last);
    spec.offset += start[axis] * strides[axis];
  }
  return spec;
}

std::vector<ViewSpec> view_slice(const OpCall& call) {
  const Tensor& x = input(call);
  return {slice_spec(x.shape(), x.strides(), x.offset(), call.attrs, kStart, "slice")};
}

Tensors slice_gradient(GradContext& context) {
  static const OpRef backward{"slice_backward"};
  const Tensor g = context.grad_output(0);
  if (!g.defined() || !context.needs(0)) return {Tensor{}};
  const Attrs& attrs = context.attrs();
  return {backward({g}, {Attr::of_ints(context.input_spec(0).shape), attrs[kStart], attrs[kLength], attrs[kStep]})};
}

void launch_slice_backward(const Launch& args) {
  const View &g = args.inputs[0], &out = args.outputs[0];
  const View part = slice_backward_part(out, args.attrs);
  if (part.numel() != out.numel()) {
    const uint64_t zero = 0;  // all bits zero are 0 in every dtype
    fill_view(out, &zero);
  }
  copy_view(part, g);
}

void register_slice(OperatorRegistry& registry) {
  Operator slice = view_operator("slice",
                                 "Every step-th element from start, `length` of them, along each axis: a view. start, "
                                 "length and step have one value per axis; step may be negative.",
                                 slice_attrs(), view_slice, slice_gradient);
  slice.grad_cases = {{{{5, 7}}, {Attr::of_ints({1, 6}), Attr::of_ints({2, 3}), Attr::of_ints({2, -3})}}};
  registry.add(std::move(slice));

  Operator backward;
  backward.name = "slice_backward";
  backward.doc =
      "Zeros of `shape` with grad in the place that slice(start, length, step) reads: the gradient of slice.";
  backward.category = "Gradient helpers";
  backward.is_public = false;
  backward.inputs = {{.name = "grad"}};
  backward.attrs = slice_attrs();
  backward.attrs.insert(backward.attrs.begin(), {"shape", AttrKind::integers, {}, true, {}});
  backward.output_names = {"out"};
  backward.infer = [](const OpCall& call) -> std::vector<TensorSpec> {
    const Tensor& g = input(call);
    const ViewSpec spec =
        slice_spec(call.attrs.ints(0), contiguous_strides(call.attrs.ints(0)), 0, call.attrs, 1, "slice_backward");
    require(g.shape() == spec.shape, "[slice_backward] expected grad of shape ", spec.shape, ", got ", g.shape());
    return {{g.dtype(), call.attrs.ints(0), {}, false}};
  };
  backward.launch_cpu = launch_slice_backward;
  backward.gradient = [](GradContext& context) -> Tensors {
    static const OpRef slice_op{"slice"};
    const Tensor g = context.grad_output(0);
    if (!g.defined() || !context.needs(0)) return {Tensor{}};
    const Attrs& attrs = context.attrs();
    return {slice_op({g}, {attrs[1], attrs[2], attrs[3]})};
  };
  registry.add(std::move(backward));
}

// ---------------------------------------------------------------- split

// Sizes of the parts.
std::vector<int64_t> split_sizes(const Dims& sections, int64_t size, int axis) {
  if (sections.size() != 1) {
    int64_t sum = 0;
    for (int64_t s : sections) {
      require(s >= 0, "[split] expected sizes of at least 0, got ", sections);
      sum += s;
    }
    require(sum == size, "[split] expected sizes that add up to ", size, " (axis ", axis, "), got ", sections);
    return {sections.begin(), sections.end()};
  }
  const int64_t count = sections[0];
  require(count > 0 && size % count == 0, "[split] expected a number of parts that divides ", size, " (axis ", axis,
          "), got ", count, "; give the sizes instead");
  return std::vector<int64_t>(static_cast<size_t>(count), size / count);
}

std::vector<ViewSpec> view_split(const OpCall& call) {
  const Tensor& x = input(call);
  const int axis = normalize_axis(call.attrs.i(1), x.rank(), "split");
  std::vector<ViewSpec> specs;
  ViewSpec spec{x.shape(), x.strides(), x.offset()};
  for (int64_t size : split_sizes(call.attrs.ints(0), x.size(axis), axis)) {
    spec.shape[axis] = size;
    specs.push_back(spec);
    spec.offset += size * x.strides()[axis];
  }
  return specs;
}

Tensors split_gradient(GradContext& context) {
  static const OpRef concat{"concat"}, full{"full"};
  if (!context.needs(0)) return {Tensor{}};
  const TensorSpec& spec = context.input_spec(0);
  const int axis = normalize_axis(context.attrs().i(1), spec.shape.size(), "split");
  Tensors parts;
  bool any = false;
  for (int64_t size : split_sizes(context.attrs().ints(0), spec.shape[axis], axis)) {
    Tensor g = context.grad_output(static_cast<int>(parts.size()));
    any |= g.defined();
    if (!g.defined()) {
      Shape shape = spec.shape;
      shape[axis] = size;
      g = broadcast_to(constant(0, spec.dtype), shape);
    }
    parts.push_back(std::move(g));
  }
  if (!any) return {Tensor{}};
  return {concat.lists(parts, static_cast<int64_t>(parts.size()), {Attr::of_int(axis)}).at(0)};
}

}  // namespace

View slice_backward_part(const View& out, const Attrs& attrs) {
  const ViewSpec spec = slice_spec(out.shape, out.strides, 0, attrs, 1, "slice_backward");
  View part = out;
  part.data = static_cast<char*>(out.data) + spec.offset * static_cast<int64_t>(dtype_size(out.dtype));
  part.shape = spec.shape;
  part.strides = spec.strides;
  return part;
}

void register_views(OperatorRegistry& registry) {
  const AttrSpec shape_attr{"shape", AttrKind::integers, {}, true, {}};

  Operator reshape = view_operator("reshape",
                                   "The elements of x in row-major order in another shape; one size may be -1. A view "
                                   "where the strides of x allow one, else of a copy.",
                                   {shape_attr}, view_reshape, reshape_gradient);
  reshape.grad_cases = {{{{4, 6}}, {Attr::of_ints({3, -1, 2})}}};
  registry.add(std::move(reshape));

  Operator permute = view_operator("permute_dims", "The axes of x in the order `axes`: a view.",
                                   {{"axes", AttrKind::integers, {}, true, {}}}, view_permute, permute_gradient);
  permute.grad_cases = {{{{2, 3, 4}}, {Attr::of_ints({2, 0, 1})}}};
  registry.add(std::move(permute));

  Operator broadcast =
      view_operator("broadcast_to", "x repeated to `shape` by NumPy's broadcasting rules: a view with strides of 0.",
                    {shape_attr}, view_broadcast, broadcast_gradient);
  broadcast.grad_cases = {{{{3, 1}}, {Attr::of_ints({2, 3, 4})}}, {{{}}, {Attr::of_ints({3})}}};
  registry.add(std::move(broadcast));

  Operator squeeze = view_operator(
      "squeeze", "x without the given axes, which must have size 1 (none given: without all such axes): a view.",
      {{"axis", AttrKind::axes, Attr::of_all_axes(), false, {}}}, view_squeeze, reshape_gradient);
  squeeze.grad_cases = {{{{1, 3, 1}}, {Attr::of_axes({0, -1})}}};
  registry.add(std::move(squeeze));

  Operator expand =
      view_operator("expand_dims", "x with a new axis of size 1 at position `axis`: a view.",
                    {{"axis", AttrKind::integer, Attr::of_int(0), false, {}}}, view_expand_dims, reshape_gradient);
  expand.grad_cases = {{{{3, 4}}, {Attr::of_int(-1)}}};
  registry.add(std::move(expand));

  register_slice(registry);

  Operator split = view_operator(
      "split",
      "x cut along an axis, as views. sections: one number: that many equal parts; several (at most 8): their sizes.",
      {{"sections", AttrKind::integers, {}, true, {}}, {"axis", AttrKind::integer, Attr::of_int(0), false, {}}},
      view_split, split_gradient);
  split.num_outputs = -1;
  split.grad_cases = {{{{6, 4}}, {Attr::of_ints({3}), Attr::of_int(0)}},
                      {{{2, 5}}, {Attr::of_ints({2, 3}), Attr::of_int(1)}}};
  registry.add(std::move(split));
}

}  // namespace blutensor
