// matmul: products of matrices, vectors and batches of them, any strides, over blublas_gemm.
//
// Shapes: a [..., M, K] or [K], b [..., K, N] or [K]; the axes before the last two broadcast. A batch runs as one GEMM
// call: as one product of a taller matrix where b is shared and a's leading axes line up, with batch strides where they
// are regular, else through pointer arrays (on CUDA, where those would have to be in device memory: one call for every
// index of the axes that break the pattern).
#include <functional>

#include "ops/all_operators.h"
#include "ops/matmul/matmul.h"
#include "ops/matmul/operand.h"
#include "ops/parallel.h"
#include "ops/registry.h"

namespace blutensor {

namespace {

// An operand as a batch of matrices: vectors get an axis of size 1.
View with_matrix_axes(View view, bool is_left) {
  if (view.rank() > 1) return view;
  const int at = is_left ? 0 : 1;
  view.shape.insert(at, 1);
  view.strides.insert(at, 0);
  return view;
}

// Of a shape or its strides: all axes but the last two.
Shape batch_shape(const Shape& shape) {
  Shape batch;
  for (int i = 0; i + 2 < shape.size(); ++i) batch.push_back(shape[i]);
  return batch;
}

std::vector<TensorSpec> infer_matmul(const OpCall& call) {
  const Tensor &a = call.inputs[0], &b = call.inputs[1];
  require(a.rank() >= 1 && b.rank() >= 1, "[matmul] expected operands of at least 1 axis, got ", describe(a), " and ",
          describe(b), ": use multiply");
  require_type(a.dtype() == b.dtype(), "[matmul] expected operands of one dtype, got ", describe(a), " and ",
               describe(b), ": use astype");
  require_type(a.dtype() != DType::boolean, "[matmul] expected numbers, got ", describe(a), ": use astype");
  const int64_t k = a.size(-1), other = b.size(b.rank() > 1 ? -2 : -1);
  require(k == other, "[matmul] expected the last axis of a to match ",
          b.rank() > 1 ? "the second-to-last" : "the only", " axis of b, got ", a.shape(), " and ", b.shape());
  Shape shape = broadcast_shapes(batch_shape(a.shape()), batch_shape(b.shape()), "matmul");
  if (a.rank() > 1) shape.push_back(a.size(-2));
  if (b.rank() > 1) shape.push_back(b.size(-1));
  return {{a.dtype(), shape, {}, false}};
}

// ---------------------------------------------------------------- the product

// One stride for all batches, when their offsets grow regularly in row-major order.
bool regular_stride(const Shape& batch, const Strides& strides, int64_t* stride) {
  *stride = 0;
  int64_t expected = 0;
  bool first = true;
  for (int axis = batch.size() - 1; axis >= 0; --axis) {
    if (batch[axis] == 1) continue;
    if (first) {
      *stride = strides[axis];
      first = false;
    } else if (strides[axis] != expected) {
      return false;
    }
    expected = strides[axis] * batch[axis];
  }
  return true;
}

Matrix matrix_axes(const View& view) {
  const int rank = view.rank();
  return {view.data,
          view.dtype,
          view.shape[rank - 2],
          view.shape[rank - 1],
          view.strides[rank - 2],
          view.strides[rank - 1]};
}

// Pointers to the matrices of every batch.
const void** batch_pointers(Execution& run, const View& view, const Shape& batch, const Strides& strides) {
  const int64_t count = num_elements(batch);
  const void** pointers = run.take<const void*>(count);
  if (run.dry()) return pointers;
  const auto size = static_cast<int64_t>(dtype_size(view.dtype));
  for (int64_t t = 0; t < count; ++t) {
    int64_t rest = t, offset = 0;
    for (int axis = batch.size() - 1; axis >= 0; --axis) {
      offset += rest % batch[axis] * strides[axis];
      rest /= batch[axis];
    }
    pointers[t] = view.ptr<char>() + offset * size;
  }
  return pointers;
}

// The view in the GEMM's dtype: float16 becomes a float32 copy.
View in_gemm_dtype(Execution& run, const View& view) {
  const DType dtype = gemm_dtype(view.dtype);
  if (dtype == view.dtype) return view;
  View copy = view;
  copy.data = run.contiguous(view, dtype);
  copy.dtype = dtype;
  copy.strides = contiguous_strides(view.shape);
  return copy;
}

// The view's matrices at index `i` of the outermost axis of `batch`, which it may lack or broadcast.
View at_outer(View view, const Shape& batch, int64_t i) {
  if (view.rank() - 2 < batch.size()) return view;
  const int64_t offset = view.shape[0] == 1 ? 0 : i * view.strides[0];
  if (view.data) view.data = view.ptr<char>() + offset * static_cast<int64_t>(dtype_size(view.dtype));
  view.shape.erase(0);
  view.strides.erase(0);
  return view;
}

// c [batch..., M, N] = a b; c is row-major, a and b have matrix axes.
void product(Execution& run, const View& a, const View& b, const Matrix& c, const Shape& batch) {
  const Matrix left = matrix_axes(a), right = matrix_axes(b);
  const int64_t count = num_elements(batch), m = left.rows, n = right.cols;
  if (count == 0 || m == 0 || n == 0) return;
  const Strides a_strides = batch_strides(a, batch), b_strides = batch_strides(b, batch);
  int64_t a_stride = 0, b_stride = 0;
  const bool a_regular = regular_stride(batch, a_strides, &a_stride),
             b_regular = regular_stride(batch, b_strides, &b_stride);
  if (!run.on_host() && !(a_regular && b_regular)) {
    Shape inner = batch;
    inner.erase(0);
    const int64_t size = num_elements(inner) * m * n;
    for (int64_t i = 0; i < batch[0]; ++i)
      product(run, at_outer(a, batch, i), at_outer(b, batch, i), c.row_block(i * size, size), inner);
    return;
  }
  blublas_gemm_args args = make_gemm(left, right, {c.data, c.dtype, m, n, n, 1});
  if (b_regular && b_stride == 0 && a_regular && (m == 1 || count == 1 || a_stride == m * left.row_stride)) {
    const int64_t row_stride = m == 1 ? a_stride : left.row_stride;
    args = make_gemm(
        {left.data, left.dtype, count * m, left.cols, count * m == 1 ? left.cols : row_stride, left.col_stride}, right,
        {c.data, c.dtype, count * m, n, n, 1});
  } else {
    args.batch = count;
    args.a.batch_stride = a_stride;
    args.b.batch_stride = b_stride;
    args.c.batch_stride = m * n;
    if (!a_regular || !b_regular) {
      args.a_array = batch_pointers(run, a, batch, a_strides);
      args.b_array = batch_pointers(run, b, batch, b_strides);
    }
  }
  run.gemm(args);
}

// Integers: plain loops, rows in parallel; wraps around as machine arithmetic does, so that signs do not matter.
template <class T>
void integer_product(const View& a, const View& b, const View& c, const Shape& batch) {
  const Matrix left = matrix_axes(a), right = matrix_axes(b);
  const Strides a_strides = batch_strides(a, batch), b_strides = batch_strides(b, batch);
  const int64_t m = left.rows, n = right.cols, k = left.cols;
  parallel_for(num_elements(batch) * m, std::max<int64_t>(1, kElementwiseGrain / std::max<int64_t>(1, n * k)),
               [&](int64_t begin, int64_t end) {
                 for (int64_t row = begin; row < end; ++row) {
                   int64_t rest = row / m, a_at = row % m * left.row_stride, b_at = 0;
                   for (int axis = batch.size() - 1; axis >= 0; --axis) {
                     a_at += rest % batch[axis] * a_strides[axis];
                     b_at += rest % batch[axis] * b_strides[axis];
                     rest /= batch[axis];
                   }
                   for (int64_t j = 0; j < n; ++j) {
                     uint64_t sum = 0;
                     for (int64_t i = 0; i < k; ++i)
                       sum += static_cast<uint64_t>(a.ptr<T>()[a_at + i * left.col_stride]) *
                              static_cast<uint64_t>(b.ptr<T>()[b_at + i * right.row_stride + j * right.col_stride]);
                     c.ptr<T>()[row * n + j] = static_cast<T>(sum);
                   }
                 }
               });
}

void integer_matmul(const Launch& launch) {
  const MatmulOperands operands = matmul_operands(launch);
  const auto run = [&](auto tag) {
    integer_product<typename decltype(tag)::type>(operands.a, operands.b, launch.outputs[0], operands.batch);
  };
  switch (dtype_size(launch.outputs[0].dtype)) {
    case 8:
      return run(TypeTag<uint64_t>{});
    case 4:
      return run(TypeTag<uint32_t>{});
    case 2:
      return run(TypeTag<uint16_t>{});
    default:
      return run(TypeTag<uint8_t>{});
  }
}

void launch_matmul(const Launch& launch) {
  if (is_floating(launch.outputs[0].dtype)) return launch_of<execute_matmul>(launch);
  if (launch.outputs[0].numel()) integer_matmul(launch);
}

// ---------------------------------------------------------------- gradient

Tensor transposed(const Tensor& t) {
  static const OpRef permute{"permute_dims"};
  Dims axes;
  for (int i = 0; i < t.rank() - 2; ++i) axes.push_back(i);
  axes.push_back(t.rank() - 1);
  axes.push_back(t.rank() - 2);
  return permute({t}, {Attr::of_ints(axes)});
}

Tensor reshaped(const Tensor& t, const Shape& shape) {
  static const OpRef reshape{"reshape"};
  return t.shape() == shape ? t : reshape({t}, {Attr::of_ints(shape)});
}

// Sums over the axes that broadcasting added or stretched.
Tensor sum_to(const Tensor& t, const Shape& shape) {
  static const OpRef sum{"sum"};
  Dims axes;
  const int added = t.rank() - shape.size();
  for (int i = 0; i < t.rank(); ++i)
    if (i < added || (shape[i - added] == 1 && t.shape()[i] != 1)) axes.push_back(i);
  if (axes.empty()) return t;
  return reshaped(sum({t}, {Attr::of_axes(axes), Attr::of_bool(false)}), shape);
}

Tensors matmul_gradient(GradContext& ctx) {
  static const OpRef matmul{"matmul"};
  Tensors grads(2);
  Tensor grad = ctx.grad_output(0);
  if (!grad.defined()) return grads;
  const Shape a_shape = ctx.input_spec(0).shape, b_shape = ctx.input_spec(1).shape;
  // Vectors as matrices, in operands and gradient alike.
  Shape a_full = a_shape, b_full = b_shape, grad_full = grad.shape();
  if (a_shape.size() == 1) {
    a_full.insert(0, 1);
    grad_full.insert(grad_full.size() - (b_shape.size() > 1 ? 1 : 0), 1);
  }
  if (b_shape.size() == 1) {
    b_full.push_back(1);
    grad_full.push_back(1);
  }
  grad = reshaped(grad, grad_full);
  if (ctx.needs(0)) {
    const Tensor b = reshaped(ctx.input(1), b_full);
    grads[0] = reshaped(sum_to(matmul({grad, transposed(b)}), a_full), a_shape);
  }
  if (ctx.needs(1)) {
    Tensor a = reshaped(ctx.input(0), a_full);
    if (b_full.size() == 2 && a_full.size() > 2) {
      // One tall product instead of a batch of them and a sum.
      const int64_t rows = num_elements(batch_shape(a_full)) * a_full[a_full.size() - 2];
      a = reshaped(a, {rows, a_full.back()});
      grad = reshaped(grad, {rows, grad_full.back()});
    }
    grads[1] = reshaped(sum_to(matmul({transposed(a), grad}), b_full), b_shape);
  }
  return grads;
}

}  // namespace

Strides batch_strides(const View& view, const Shape& batch) {
  return broadcast_strides(batch_shape(view.shape), batch_shape(view.strides), batch);
}

MatmulOperands matmul_operands(const Launch& launch) {
  MatmulOperands operands{with_matrix_axes(launch.inputs[0], true), with_matrix_axes(launch.inputs[1], false), {}};
  operands.batch = broadcast_shapes(batch_shape(operands.a.shape), batch_shape(operands.b.shape), "matmul");
  return operands;
}

void execute_matmul(const Launch& launch, Execution& run) {
  const View& c = launch.outputs[0];
  if (!is_floating(c.dtype)) return;
  const MatmulOperands operands = matmul_operands(launch);
  const View left = in_gemm_dtype(run, operands.a), right = in_gemm_dtype(run, operands.b);
  Matrix out{c.data, c.dtype, c.numel(), 1, 1, 1};
  if (left.dtype != c.dtype) out = run.scratch(c.numel(), 1, left.dtype);
  product(run, left, right, out, operands.batch);
  if (left.dtype != c.dtype) run.store(out, c);
}

void register_matmul(OperatorRegistry& registry) {
  Operator op;
  op.name = "matmul";
  op.doc =
      "Matrix product, as in the array API standard. a: [..., M, K] or [K], b: [..., K, N] or [K]; the leading axes "
      "broadcast; result: [..., M, N] "
      "without the axis of an operand that was a vector. One dtype for both: floating (16-bit floats accumulate in "
      "float32) or integer (wraps around).";
  op.category = "Linear algebra";
  op.inputs = {{"a", InputSpec::Kind::required}, {"b", InputSpec::Kind::required}};
  op.output_names = {"c"};
  op.infer = infer_matmul;
  op.workspace = workspace_of<execute_matmul>;
  op.launch_cpu = launch_matmul;
  op.gradient = matmul_gradient;
  op.save_inputs = 0b11;
  op.grad_cases = {{{{3, 4}, {4, 5}}, {}, "normal"},          {{{4}, {4}}, {}, "normal"},
                   {{{4}, {2, 4, 3}}, {}, "normal"},          {{{2, 3, 4}, {4}}, {}, "normal"},
                   {{{2, 1, 3, 4}, {3, 4, 2}}, {}, "normal"}, {{{2, 3, 4}, {4, 2}}, {}, "normal"}};
  registry.add(std::move(op));
}

}  // namespace blutensor
