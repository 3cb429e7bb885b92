// embedding: rows of a table by number, and its backward operators.
//
// Shapes: ids [...], weight [V, C], y [..., C]; inside, N = number of ids.
// Backward sorts the N positions by id with a counting sort (stable) and adds, for each id that occurs, its rows of
// grad_output in the order of their positions, in runs of kRun rows whose sums are added in order: an error that grows
// with kRun + n / kRun instead of n, and bits that depend on no thread. Tasks own (a few ids) x (a few columns), so
// that one id that fills the batch still keeps several threads busy.
// Bytes: forward 2 N C elements; backward N C + 2 (rows that occur) C, and V C more where the gradient is overwritten.
#include <cstring>

#include "ops/all_operators.h"
#include "ops/embedding/embedding_ids.h"
#include "ops/matmul/operand.h"
#include "ops/parallel.h"
#include "ops/registry.h"

namespace blutensor {

namespace {

constexpr int64_t kRun = 32, kColumns = 128, kIdsPerTask = 16;

void check_ids(const char* op, const Tensor& ids) {
  require_type(ids.dtype() == DType::int32 || ids.dtype() == DType::int64, "[", op,
               "] expected ids of dtype int32 or int64, got ", describe(ids), ": use astype");
}

// Calls use(position, id) for all ids, in order; ids of any layout.
template <class Use>
void for_each_id(const View& ids, const Use& use) {
  const int64_t count = ids.numel();
  const bool contiguous = ids.contiguous();
  for (int64_t n = 0; n < count; ++n) {
    int64_t offset = n;
    if (!contiguous) {
      int64_t rest = n;
      offset = 0;
      for (int axis = ids.rank() - 1; axis >= 0; --axis) {
        offset += rest % ids.shape[axis] * ids.strides[axis];
        rest /= ids.shape[axis];
      }
    }
    use(n, ids.dtype == DType::int32 ? static_cast<int64_t>(ids.ptr<int32_t>()[offset]) : ids.ptr<int64_t>()[offset]);
  }
}

// Ids as int64 in `out` [N], each checked against [0, limit) before anything is written elsewhere.
void read_ids(const char* op, const View& ids, int64_t limit, int64_t* out) {
  for_each_id(ids, [&](int64_t n, int64_t id) {
    if (id < 0 || id >= limit)
      fail(Status::index, "[", op, "] expected ids from 0 to ", limit - 1, ", got ", id, " at position ", n, " of ids ",
           ids.shape);
    out[n] = id;
  });
}

// ---------------------------------------------------------------- forward

std::vector<TensorSpec> infer_embedding(const OpCall& call) {
  const Tensor &ids = call.inputs[0], &weight = call.inputs[1];
  check_ids("embedding", ids);
  require(weight.rank() == 2, "[embedding] expected weight of shape (V, C), got ", describe(weight));
  const int64_t limit = call.attrs.i(0);
  require(limit >= 0 && limit <= weight.size(0), "[embedding] expected num_ids from 0 (all) to ", weight.size(0),
          ", the rows of weight, got ", limit);
  Shape shape = ids.shape();
  shape.push_back(weight.size(1));
  return {{weight.dtype(), shape, {}, false}};
}

template <class Bits>
void gather_rows(const Matrix& weight, const int64_t* ids, int64_t count, Bits* y) {
  const int64_t cols = weight.cols;
  parallel_for(count, std::max<int64_t>(1, kElementwiseGrain / std::max<int64_t>(1, cols)),
               [&](int64_t begin, int64_t end) {
                 for (int64_t n = begin; n < end; ++n) {
                   const Bits* row = static_cast<const Bits*>(weight.data) + ids[n] * weight.row_stride;
                   if (weight.col_stride == 1) {
                     std::memcpy(y + n * cols, row, static_cast<size_t>(cols) * sizeof(Bits));
                   } else {
                     for (int64_t j = 0; j < cols; ++j) y[n * cols + j] = row[j * weight.col_stride];
                   }
                 }
               });
}

void execute_embedding(const Launch& launch, Execution& run) {
  const View &ids = launch.inputs[0], &table = launch.inputs[1], &y = launch.outputs[0];
  const int64_t count = ids.numel();
  auto* rows = run.take<int64_t>(count);
  if (run.dry()) return;
  read_ids("embedding", ids, num_ids(launch), rows);
  if (y.numel() == 0) return;
  const Matrix weight{table.data, table.dtype, table.shape[0], table.shape[1], table.strides[0], table.strides[1]};
  switch (dtype_size(table.dtype)) {
    case 8:
      return gather_rows(weight, rows, count, y.ptr<int64_t>());
    case 4:
      return gather_rows(weight, rows, count, y.ptr<int32_t>());
    case 2:
      return gather_rows(weight, rows, count, y.ptr<int16_t>());
    default:
      return gather_rows(weight, rows, count, y.ptr<int8_t>());
  }
}

Tensors embedding_gradient(GradContext& ctx) {
  static const OpRef in_place{"embedding_backward_"}, fresh{"embedding_backward"};
  Tensors grads(2);
  const Tensor grad = ctx.grad_output(0);
  if (!grad.defined() || !ctx.needs(1)) return grads;
  const GradTarget target = ctx.target(1);
  if (target.buffer.defined()) {
    in_place.many({target.buffer, grad, ctx.input(0)}, {Attr::of_bool(target.accumulate)});
    ctx.consumed(1);
  } else {
    grads[1] = fresh({grad, ctx.input(0)}, {Attr::of_int(ctx.input_spec(1).shape[0])});
  }
  return grads;
}

// ---------------------------------------------------------------- backward

// Positions in the order of their ids; segment s holds positions [starts[s], starts[s + 1]), all of id ids[s].
struct Segments {
  int64_t *positions, *starts, *ids;
  int64_t count = 0;
};

Segments sort_by_id(Execution& run, const View& ids, int64_t num_rows) {
  const int64_t n = ids.numel();
  Segments s{run.take<int64_t>(n), run.take<int64_t>(n + 1), run.take<int64_t>(n), 0};
  const size_t before = run.mark();
  auto *values = run.take<int64_t>(n), *next = run.take<int64_t>(num_rows);
  if (!run.dry()) {
    read_ids("embedding", ids, num_rows, values);
    std::memset(next, 0, static_cast<size_t>(num_rows) * sizeof(int64_t));
    for (int64_t i = 0; i < n; ++i) ++next[values[i]];
    int64_t at = 0;
    for (int64_t id = 0; id < num_rows; ++id) {
      if (next[id] == 0) continue;
      s.starts[s.count] = at;
      s.ids[s.count++] = id;
      at += next[id];
      next[id] = at - next[id];
    }
    s.starts[s.count] = n;
    for (int64_t i = 0; i < n; ++i) s.positions[next[values[i]]++] = i;
  }
  run.release(before);
  return s;
}

template <class T, class Out>
void add_segment(const Segments& segments, int64_t segment, const Matrix& grad, int64_t col, int64_t cols, Out* out,
                 int64_t out_stride, bool accumulate) {
  using C = compute_t<T>;
  C total[kColumns], run[kColumns];
  const int64_t end = segments.starts[segment + 1];
  for (int64_t begin = segments.starts[segment], first = begin; begin < end; begin += kRun) {
    C* sums = begin == first ? total : run;
    for (int64_t i = begin; i < std::min(end, begin + kRun); ++i) {
      const T* row = static_cast<const T*>(grad.data) + segments.positions[i] * grad.row_stride + col;
      for (int64_t j = 0; j < cols; ++j)
        sums[j] = i == begin ? static_cast<C>(row[j]) : sums[j] + static_cast<C>(row[j]);
    }
    if (sums == run)
      for (int64_t j = 0; j < cols; ++j) total[j] += run[j];
  }
  for (int64_t j = 0; j < cols; ++j) {
    Out& target = out[j * out_stride];
    target = static_cast<Out>(accumulate ? static_cast<C>(target) + total[j] : total[j]);
  }
}

template <class T, class Out>
void add_segments(const Segments& segments, const Matrix& grad, const Matrix& weight_grad, bool accumulate) {
  const int64_t col_blocks = (grad.cols + kColumns - 1) / kColumns,
                id_blocks = (segments.count + kIdsPerTask - 1) / kIdsPerTask;
  parallel_for(id_blocks * col_blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t first = task / col_blocks * kIdsPerTask, col = task % col_blocks * kColumns;
      for (int64_t s = first; s < std::min(segments.count, first + kIdsPerTask); ++s)
        add_segment<T, Out>(segments, s, grad, col, std::min(kColumns, grad.cols - col),
                            static_cast<Out*>(weight_grad.data) + segments.ids[s] * weight_grad.row_stride +
                                col * weight_grad.col_stride,
                            weight_grad.col_stride, accumulate);
    }
  });
}

template <class T>
void fill_zero(const Matrix& m) {
  parallel_for(
      m.rows, std::max<int64_t>(1, kElementwiseGrain / std::max<int64_t>(1, m.cols)), [&](int64_t begin, int64_t end) {
        T* rows = static_cast<T*>(m.data) + begin * m.row_stride;
        if (m.col_stride == 1 && m.row_stride == m.cols) {
          std::memset(static_cast<void*>(rows), 0,
                      static_cast<size_t>((end - begin) * m.cols) * sizeof(T));  // +0.0 in every floating dtype
        } else {
          for (int64_t i = begin; i < end; ++i, rows += m.row_stride)
            for (int64_t j = 0; j < m.cols; ++j) rows[j * m.col_stride] = T{};
        }
      });
}

void backward(Execution& run, const View& grad_view, const View& ids, const View& weight_grad, bool accumulate) {
  const Segments segments = sort_by_id(run, ids, weight_grad.shape[0]);
  const Matrix grad = run.rows(grad_view, grad_view.rank() - 1, grad_view.dtype);
  if (run.dry()) return;
  const Matrix out{weight_grad.data,     weight_grad.dtype,      weight_grad.shape[0],
                   weight_grad.shape[1], weight_grad.strides[0], weight_grad.strides[1]};
  visit_floating(grad_view.dtype, "embedding_backward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto add_as = [&](auto out_tag) {
      using Out = typename decltype(out_tag)::type;
      if (!accumulate) fill_zero<Out>(out);
      if (out.cols > 0) add_segments<T, Out>(segments, grad, out, accumulate);
    };
    if (out.dtype == grad.dtype)
      add_as(TypeTag<T>{});
    else
      add_as(TypeTag<compute_t<T>>{});
  });
}

void check_backward(const char* op, const Tensor& grad, const Tensor& ids) {
  check_ids(op, ids);
  require_type(is_floating(grad.dtype()), "[", op, "] expected floating-point grad_output, got ", describe(grad));
  Shape shape = ids.shape();
  shape.push_back(grad.rank() ? grad.size(-1) : 0);
  require(grad.shape() == shape, "[", op, "] expected grad_output of shape ", shape, ", got ", grad.shape());
}

std::vector<TensorSpec> infer_backward(const OpCall& call) {
  check_backward("embedding_backward", call.inputs[0], call.inputs[1]);
  require(call.attrs.i(0) >= 0, "[embedding_backward] expected num_embeddings of at least 0, got ", call.attrs.i(0));
  return {{call.inputs[0].dtype(), {call.attrs.i(0), call.inputs[0].size(-1)}, {}, false}};
}

Tensors backward_gradient(GradContext& ctx) {
  static const OpRef embedding{"embedding"};
  Tensors grads(2);
  if (ctx.grad_output(0).defined() && ctx.needs(0))
    grads[0] = embedding({ctx.input(1), ctx.grad_output(0)}, {Attr::of_int(0)});
  return grads;
}

void execute_backward(const Launch& launch, Execution& run) {
  backward(run, launch.inputs[0], launch.inputs[1], launch.outputs[0], false);
}

std::vector<TensorSpec> infer_backward_in_place(const OpCall& call) {
  const Tensor &weight_grad = call.inputs[0], &grad = call.inputs[1];
  check_backward("embedding_backward_", grad, call.inputs[2]);
  require(weight_grad.rank() == 2 && weight_grad.size(1) == grad.size(-1) &&
              (weight_grad.dtype() == grad.dtype() || weight_grad.dtype() == accumulation_dtype(grad.dtype())),
          "[embedding_backward_] expected weight_grad ", dtype_name(grad.dtype()), " or ",
          dtype_name(accumulation_dtype(grad.dtype())), " of shape (V, ", grad.size(-1), "), got ",
          describe(weight_grad));
  return {};
}

void execute_backward_in_place(const Launch& launch, Execution& run) {
  backward(run, launch.inputs[1], launch.inputs[2], launch.inputs[0], launch.attrs.b(0));
}

}  // namespace

void register_embedding(OperatorRegistry& registry) {
  using Kind = InputSpec::Kind;
  {
    Operator op;
    op.name = "embedding";
    op.doc =
        "Rows of weight: y[..., :] = weight[ids[...], :]. ids: int32 or int64 [...], from 0 to V - 1, or to num_ids - "
        "1 "
        "where num_ids is not 0 and the rows behind are padding; weight: [V, C], any dtype; result: [..., C]. "
        "The gradient of weight is a sum in a fixed order, the same for any number of threads.";
    op.category = "Neural network";
    op.inputs = {{"ids", Kind::required}, {"weight", Kind::required}};
    op.attrs = {{"num_ids", AttrKind::integer, Attr::of_int(0), false, {}}};
    op.output_names = {"y"};
    op.infer = infer_embedding;
    op.workspace = workspace_of<execute_embedding>;
    op.launch_cpu = launch_of<execute_embedding>;
    op.gradient = embedding_gradient;
    op.save_inputs = 0b1;
    registry.add(std::move(op));
  }
  {
    Operator op;
    op.name = "embedding_backward";
    op.doc =
        "Gradient of embedding with respect to weight: row v is the sum of grad_output[..., :] over the positions "
        "where ids is v.";
    op.category = "Gradients";
    op.inputs = {{"grad_output", Kind::required}, {"ids", Kind::required}};
    op.attrs = {{"num_embeddings", AttrKind::integer, Attr::of_int(0), true, {}}};
    op.output_names = {"weight_grad"};
    op.infer = infer_backward;
    op.workspace = workspace_of<execute_backward>;
    op.launch_cpu = launch_of<execute_backward>;
    op.gradient = backward_gradient;
    op.save_inputs = 0b10;
    op.is_public = false;
    registry.add(std::move(op));
  }
  {
    Operator op;
    op.name = "embedding_backward_";
    op.doc = "embedding_backward written into, or added to, the gradient buffer weight_grad [V, C].";
    op.category = "Gradients";
    op.inputs = {{"weight_grad", Kind::required, true}, {"grad_output", Kind::required}, {"ids", Kind::required}};
    op.attrs = {{"accumulate", AttrKind::boolean, Attr::of_bool(false), false, {}}};
    op.num_outputs = 0;
    op.infer = infer_backward_in_place;
    op.workspace = workspace_of<execute_backward_in_place>;
    op.launch_cpu = launch_of<execute_backward_in_place>;
    op.effect = Effect::writes;
    op.is_public = false;
    registry.add(std::move(op));
  }
}

}  // namespace blutensor
