// Indexing by arrays of integers and by masks, read and written; gradients add in a fixed order.
//
// gather reads, scatter_ writes (where a place is named twice, the last value stays); index_positions turns indices into
// row-major positions, with which embedding's backward adds what gather's gradient brings to one place. Negative indices
// count from the end; all are checked before anything is written.
// Bytes: what is read and written, and 8 for each place.
#include "ops/indexing/indexing.h"

#include <cstring>

#include "ops/all_operators.h"
#include "ops/copy/copy.h"
#include "ops/elementwise/compose.h"
#include "ops/matmul/operand.h"
#include "ops/parallel.h"
#include "ops/registry.h"
#include "ops/softmax/row_offsets.h"
#include "ops/views/views.h"

namespace blutensor {

namespace {

// ---------------------------------------------------------------- checks

void check_index(const char* op, const Tensor& index) {
  require_type(is_integer(index.dtype()), "[", op, "] expected integer indices, got ", describe(index));
}

// Axis and number of the axes of x that `indices` take the place of.
int check_indices(const char* op, const Tensor& x, std::span<const Tensor> indices, int64_t requested_axis) {
  require(!indices.empty(), "[", op, "] expected at least one index");
  for (const Tensor& index : indices) check_index(op, index);
  const int axis = normalize_axis(requested_axis, x.rank(), op);
  require(axis + static_cast<int>(indices.size()) <= x.rank(), "[", op, "] expected at most ", x.rank() - axis,
          " indices from axis ", axis, " of shape ", x.shape(), " on, got ", indices.size());
  return axis;
}

Shape result_shape(const char* op, const Tensor& x, std::span<const Tensor> indices, int axis) {
  const auto count = static_cast<int>(indices.size());
  return joined(axes_of(x.shape(), 0, axis), index_shape(indices, op), axes_of(x.shape(), axis + count, x.rank()));
}

// ---------------------------------------------------------------- places

// out[b] (+)= index[b] * stride, each index checked against [-size, size).
void add_places(const char* op, const View& index, int axis, int64_t size, int64_t stride, bool first, int64_t* out) {
  const RowOffsets offsets(index, -1);
  visit_dtype(index.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
      parallel_for(offsets.count(), kElementwiseGrain, [&](int64_t begin, int64_t end) {
        for (int64_t b = begin; b < end; ++b) {
          const auto value = static_cast<int64_t>(index.ptr<T>()[offsets(b)]);
          if (value < -size || value >= size)
            fail(Status::index, "[", op, "] expected an index from ", -size, " to ", size - 1, " of axis ", axis,
                 ", got ", value);
          const int64_t place = (value < 0 ? value + size : value) * stride;
          out[b] = first ? place : out[b] + place;
        }
      });
    }
  });
}

// Offset, in elements, of every place that the indices name.
void read_places(const char* op, const View& indexed, std::span<const View> indices, const Shape& shape, int axis,
                 int64_t* out) {
  for (int k = 0; k < indexed.rank(); ++k)
    add_places(op, broadcast_index(indices[static_cast<size_t>(k)], shape), axis + k, indexed.shape[k],
               indexed.strides[k], k == 0, out);
}

template <class Use>
void visit_word(DType dtype, const Use& use) {
  switch (dtype_size(dtype)) {
    case 8:
      return use(int64_t{});
    case 4:
      return use(int32_t{});
    case 2:
      return use(int16_t{});
    default:
      return use(int8_t{});
  }
}

// ---------------------------------------------------------------- index_positions

std::vector<TensorSpec> infer_positions(const OpCall& call) {
  const char* op = "index_positions";
  require(!call.inputs.empty() && call.attrs.ints(0).size() == static_cast<int>(call.inputs.size()), "[", op,
          "] expected a size for each of ", call.inputs.size(), " indices, got ", call.attrs.ints(0));
  for (const Tensor& index : call.inputs) check_index(op, index);
  return {{DType::int64, index_shape(call.inputs, op), {}, false}};
}

void launch_positions(const Launch& launch) {
  View sizes;
  sizes.shape = launch.attrs.ints(0);
  sizes.strides = contiguous_strides(sizes.shape);
  read_places("index", sizes, launch.inputs, launch.outputs[0].shape, static_cast<int>(launch.attrs.i(1)),
              launch.outputs[0].ptr<int64_t>());
}

// ---------------------------------------------------------------- gather

std::vector<TensorSpec> infer_gather(const OpCall& call) {
  const Tensor& x = call.inputs[0];
  const auto indices = call.inputs.subspan(1);
  const int axis = check_indices("gather", x, indices, call.attrs.i(0));
  return {{x.dtype(), result_shape("gather", x, indices, axis), {}, false}};
}

void execute_gather(const Launch& launch, Execution& run) {
  const View &x = launch.inputs[0], &out = launch.outputs[0];
  const auto indices = launch.inputs.subspan(1);
  const int axis = normalize_axis(launch.attrs.i(0), x.rank(), "gather");
  const IndexedParts parts = indexed_parts(x, axis, static_cast<int>(indices.size()));
  const Shape shape = index_shape(indices, "gather");
  const int64_t places = num_elements(shape), width = parts.inner.numel();
  auto* offsets = run.take<int64_t>(places);
  if (run.dry()) return;
  read_places("index", parts.indexed, indices, shape, axis, offsets);
  const RowOffsets outer(parts.outer, -1), inner(parts.inner, -1);
  const bool block = parts.inner.contiguous();
  visit_word(x.dtype, [&](auto word) {
    using Word = decltype(word);
    parallel_for(outer.count() * places, std::max<int64_t>(1, kElementwiseGrain / std::max<int64_t>(1, width)),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t row = begin; row < end; ++row) {
                     const Word* from = x.ptr<Word>() + outer(row / places) + offsets[row % places];
                     Word* to = out.ptr<Word>() + row * width;
                     if (width == 1)
                       *to = *from;
                     else if (block)
                       std::memcpy(to, from, static_cast<size_t>(width) * sizeof(Word));
                     else
                       for (int64_t i = 0; i < width; ++i) to[i] = from[inner(i)];
                   }
                 });
  });
}

// What came from one place is added there: rows [B, O I] of the gradient by position, which embedding's backward does.
Tensors gather_gradient(GradContext& ctx) {
  static const OpRef positions_of{"index_positions"}, add_rows{"embedding_backward"}, permute{"permute_dims"};
  Tensors grads(static_cast<size_t>(ctx.num_inputs()));
  const Tensor g = ctx.grad_output(0);
  if (!g.defined() || !ctx.needs(0)) return grads;
  const Shape& x = ctx.input_spec(0).shape;
  const int count = ctx.num_inputs() - 1, axis = normalize_axis(ctx.attrs().i(0), x.size(), "gather");
  const Shape sizes = axes_of(x, axis, axis + count);
  Tensors indices;
  for (int k = 1; k <= count; ++k) indices.push_back(ctx.input(k));
  const Tensor positions = positions_of.lists(indices, count, {Attr::of_ints(sizes), Attr::of_int(axis)}).at(0);
  const int64_t outer = num_elements(axes_of(x, 0, axis)), inner = num_elements(axes_of(x, axis + count, x.size())),
                places = positions.numel(), total = num_elements(sizes);
  const auto exchanged = [&](const Tensor& t, const Shape& shape, const Shape& result) {
    const Tensor three = reshaped(t, shape);
    return reshaped(shape[0] == 1 || shape[1] == 1 ? three : permute({three}, {Attr::of_ints({1, 0, 2})}), result);
  };
  const Tensor rows = exchanged(g, {outer, places, inner}, {places, outer * inner});
  const Tensor sums = add_rows({rows, reshaped(positions, {places})}, {Attr::of_int(total)});
  grads[0] = exchanged(sums, {total, outer, inner}, x);
  return grads;
}

// ---------------------------------------------------------------- scatter_

std::vector<TensorSpec> infer_scatter(const OpCall& call) {
  const Tensor &x = call.inputs[0], &values = call.inputs[1];
  const auto indices = call.inputs.subspan(2);
  const int axis = check_indices("scatter_", x, indices, call.attrs.i(0));
  const Shape shape = result_shape("scatter_", x, indices, axis);
  require(broadcasts_to(values.shape(), shape), "[scatter_] expected values that broadcast to ", shape, ", got ",
          values.shape());
  require_type(values.dtype() == x.dtype(), "[scatter_] expected values of dtype ", dtype_name(x.dtype()), ", got ",
               describe(values), ": use astype");
  return {};
}

void execute_scatter(const Launch& launch, Execution& run) {
  const View& x = launch.inputs[0];
  const auto indices = launch.inputs.subspan(2);
  const int axis = normalize_axis(launch.attrs.i(0), x.rank(), "scatter_"), count = static_cast<int>(indices.size());
  const IndexedParts parts = indexed_parts(x, axis, count);
  const Shape shape = index_shape(indices, "scatter_");
  const int64_t places = num_elements(shape);
  auto* offsets = run.take<int64_t>(places);
  if (run.dry()) return;
  check_written(x, launch.inputs[1], "scatter_");
  read_places("index", parts.indexed, indices, shape, axis, offsets);
  const View values = broadcast_index(launch.inputs[1], joined(parts.outer.shape, shape, parts.inner.shape));
  const IndexedParts sources = indexed_parts(values, axis, shape.size());
  const RowOffsets outer(parts.outer, -1), inner(parts.inner, -1), from_outer(sources.outer, -1),
      from_place(sources.indexed, -1), from_inner(sources.inner, -1);
  const bool block = parts.inner.contiguous() && sources.inner.contiguous();
  const int64_t width = inner.count();
  // Tasks own elements, not places: the last value for a place is then the last in every order of tasks.
  visit_word(x.dtype, [&](auto word) {
    using Word = decltype(word);
    const auto copy_run = [&](int64_t row, int64_t place, int64_t first, int64_t length) {
      Word* to = x.ptr<Word>() + outer(row) + offsets[place];
      const Word* from = values.ptr<Word>() + from_outer(row) + from_place(place);
      if (block) {
        std::memcpy(to + first, from + first, static_cast<size_t>(length) * sizeof(Word));
      } else {
        for (int64_t i = first; i < first + length; ++i) to[inner(i)] = from[from_inner(i)];
      }
    };
    parallel_for(outer.count() * width, std::max<int64_t>(1, kElementwiseGrain / std::max<int64_t>(1, places)),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t n = begin; n < end;) {
                     const int64_t run_end = std::min(end, (n / width + 1) * width);
                     for (int64_t b = 0; b < places; ++b) copy_run(n / width, b, n % width, run_end - n);
                     n = run_end;
                   }
                 });
  });
}

// ---------------------------------------------------------------- nonzero_indices

std::vector<TensorSpec> infer_nonzero(const OpCall& call) {
  require_type(call.inputs[0].dtype() == DType::boolean, "[nonzero_indices] expected a bool mask, got ",
               describe(call.inputs[0]));
  require(call.attrs.i(0) >= 0 && call.attrs.i(0) <= call.inputs[0].numel(), "[nonzero_indices] expected a count of ",
          "at most ", call.inputs[0].numel(), ", got ", call.attrs.i(0));
  return {{DType::int64, {call.inputs[0].rank(), call.attrs.i(0)}, {}, false}};
}

void execute_nonzero(const Launch& launch, Execution& run) {
  const View& mask = launch.inputs[0];
  const auto* bytes = static_cast<const uint8_t*>(run.contiguous(mask, mask.dtype));
  if (run.dry()) return;
  const int64_t count = launch.attrs.i(0), total = mask.numel();
  auto* out = launch.outputs[0].ptr<int64_t>();
  int64_t found = 0;
  for (int64_t i = 0; i < total; ++i) {
    if (bytes[i] == 0) continue;
    if (found < count) {
      int64_t rest = i;
      for (int axis = mask.rank() - 1; axis >= 0; --axis) {
        out[axis * count + found] = rest % mask.shape[axis];
        rest /= mask.shape[axis];
      }
    }
    ++found;
  }
  require(found == count, "[nonzero_indices] expected ", count, " elements that are true, got ", found);
}

Operator operator_of(const char* name, const char* doc, bool is_public) {
  Operator op;
  op.name = name;
  op.doc = doc;
  op.category = "Indexing";
  op.is_public = is_public;
  op.output_names = {"out"};
  return op;
}

}  // namespace

void register_take_along_axis(OperatorRegistry& registry);  // along_axis.cpp

void register_indexing(OperatorRegistry& registry) {
  using Kind = InputSpec::Kind;
  const AttrSpec axis{"axis", AttrKind::integer, Attr::of_int(0), false, {}};
  {
    Operator op = operator_of("gather",
                              "x at integer indices that take the place of neighbouring axes, from `axis` on: x [O..., "
                              "N_1 .. N_k, I...], any dtype and strides, k indices that broadcast to B; result [O..., "
                              "B..., I...]. Negative indices count from the end; IndexError otherwise.",
                              false);
    op.inputs = {{"x", Kind::required}, {"indices", Kind::list}};
    op.attrs = {axis};
    op.infer = infer_gather;
    op.workspace = workspace_of<execute_gather>;
    op.launch_cpu = launch_of<execute_gather>;
    op.gradient = gather_gradient;
    op.save_inputs = ~uint64_t{1};
    registry.add(std::move(op));
  }
  {
    Operator op = operator_of("scatter_",
                              "Writes values into x in place where gather(x, indices, axis) reads. values: x's dtype, "
                              "broadcast to gather's result; of several for one place the last stays.",
                              false);
    op.inputs = {{"x", Kind::required, true}, {"values", Kind::required}, {"indices", Kind::list}};
    op.attrs = {axis};
    op.num_outputs = 0;
    op.output_names = {};
    op.infer = infer_scatter;
    op.workspace = workspace_of<execute_scatter>;
    op.launch_cpu = launch_of<execute_scatter>;
    op.effect = Effect::writes;
    registry.add(std::move(op));
  }
  {
    Operator op = operator_of("index_positions",
                              "Row-major positions int64 B in axes of `sizes` of indices that broadcast to B, negative "
                              "ones counted from the end. first_axis: of the axes, for messages.",
                              false);
    op.inputs = {{"indices", Kind::list}};
    op.attrs = {{"sizes", AttrKind::integers, {}, true, {}},
                {"first_axis", AttrKind::integer, Attr::of_int(0), false, {}}};
    op.infer = infer_positions;
    op.launch_cpu = launch_positions;
    registry.add(std::move(op));
  }
  {
    Operator op = operator_of(
        "nonzero_indices",
        "Indices int64 [rank, count] of the elements of a bool mask that are true, in row-major order; count is their "
        "number.",
        false);
    op.inputs = {{"mask", Kind::required}};
    op.attrs = {{"count", AttrKind::integer, {}, true, {}}};
    op.infer = infer_nonzero;
    op.workspace = workspace_of<execute_nonzero>;
    op.launch_cpu = launch_of<execute_nonzero>;
    registry.add(std::move(op));
  }
  register_take_along_axis(registry);
}

}  // namespace blutensor
