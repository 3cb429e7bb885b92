#include "ops/matmul/operand.h"

#include <algorithm>

#include "ops/matmul/operand_cuda.h"
#include "ops/parallel.h"

namespace blutensor {

namespace {

constexpr size_t kHostAlignment = 64, kCudaAlignment = 256;

char* at(void* data, DType dtype, int64_t element) {
  // Null while planning without memory: no arithmetic on it.
  return data ? static_cast<char*>(data) + element * static_cast<int64_t>(dtype_size(dtype)) : nullptr;
}

// Merges axes [begin, end) into one of `stride`; false when their strides do not line up. Sizes are non-zero.
bool merge_axes(const View& view, int begin, int end, int64_t* size, int64_t* stride) {
  *size = 1;
  *stride = 0;
  bool first = true;
  int64_t expected = 0;
  for (int axis = end - 1; axis >= begin; --axis) {
    if (view.shape[axis] == 1) continue;
    if (first) {
      *stride = view.strides[axis];
      first = false;
    } else if (view.strides[axis] != expected) {
      return false;
    }
    expected = view.strides[axis] * view.shape[axis];
    *size *= view.shape[axis];
  }
  return true;
}

// Calls row(offset of the row's first element, row index) for all rows along the last axis.
template <class Row>
void for_each_row(const View& view, const Row& row) {
  const int outer_rank = std::max(view.rank() - 1, 0);
  const int64_t cols = view.rank() ? view.shape.back() : 1;
  if (cols == 0) return;
  const int64_t num_rows = view.numel() / cols;
  parallel_for(num_rows, std::max<int64_t>(1, kElementwiseGrain / cols), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      int64_t rest = r, offset = 0;
      for (int axis = outer_rank - 1; axis >= 0; --axis) {
        offset += rest % view.shape[axis] * view.strides[axis];
        rest /= view.shape[axis];
      }
      row(offset, r);
    }
  });
}

template <class To, class From>
To convert(From value) {
  return static_cast<To>(static_cast<compute_t<From>>(value));
}

template <class From, class To>
void copy_rows(const View& source, To* to) {
  const int64_t cols = source.rank() ? source.shape.back() : 1, stride = source.rank() ? source.strides.back() : 1;
  for_each_row(source, [&](int64_t offset, int64_t r) {
    const From* from = source.ptr<From>() + offset;
    To* out = to + r * cols;
    for (int64_t j = 0; j < cols; ++j) out[j] = convert<To>(from[j * stride]);
  });
}

template <class From, class To>
void store_rows(const From* from, const View& to, bool accumulate) {
  const int64_t cols = to.rank() ? to.shape.back() : 1, stride = to.rank() ? to.strides.back() : 1;
  for_each_row(to, [&](int64_t offset, int64_t r) {
    To* out = to.ptr<To>() + offset;
    const From* in = from + r * cols;
    for (int64_t j = 0; j < cols; ++j) {
      const From old = accumulate ? convert<From>(out[j * stride]) : From{0};
      out[j * stride] = convert<To>(accumulate ? old + in[j] : in[j]);
    }
  });
}

}  // namespace

Matrix Matrix::row_block(int64_t begin, int64_t count) const {
  return {at(data, dtype, begin * row_stride), dtype, count, cols, row_stride, col_stride};
}

Matrix Matrix::col_block(int64_t begin, int64_t count) const {
  return {at(data, dtype, begin * col_stride), dtype, rows, count, row_stride, col_stride};
}

DType gemm_dtype(DType dtype) { return dtype == DType::float16 ? DType::float32 : dtype; }
DType accumulation_dtype(DType dtype) { return dtype == DType::float64 ? DType::float64 : DType::float32; }

bool as_matrix(const View& view, int leading, Matrix* matrix) {
  matrix->data = view.data;
  matrix->dtype = view.dtype;
  if (view.numel() == 0) {
    matrix->rows = matrix->cols = 1;
    for (int i = 0; i < view.rank(); ++i) (i < leading ? matrix->rows : matrix->cols) *= view.shape[i];
    matrix->row_stride = matrix->cols;
    matrix->col_stride = 1;
    return true;
  }
  if (!merge_axes(view, 0, leading, &matrix->rows, &matrix->row_stride) ||
      !merge_axes(view, leading, view.rank(), &matrix->cols, &matrix->col_stride))
    return false;
  // The stride of an axis of size 1 is arbitrary: choose what kernels like.
  if (matrix->cols == 1) matrix->col_stride = 1;
  if (matrix->rows == 1) matrix->row_stride = matrix->cols * std::max<int64_t>(matrix->col_stride, 1);
  return true;
}

Execution::Execution(const Launch& launch, Mode mode)
    : device_(launch.device),
      stream_(launch.stream),
      math_(launch.math),
      base_(mode == Mode::dry ? nullptr : static_cast<char*>(launch.workspace)),
      bytes_(mode == Mode::dry ? 0 : launch.workspace_bytes),
      dry_(mode == Mode::dry) {}

void* Execution::take(size_t bytes) {
  const size_t alignment = on_host() ? kHostAlignment : kCudaAlignment;
  void* piece = base_ ? base_ + used_ : nullptr;
  used_ += (bytes + alignment - 1) / alignment * alignment;
  peak_ = std::max(peak_, used_);
  return piece;
}

int32_t Execution::take_per_thread(size_t bytes, char** scratch) {
  int32_t threads = blublas_num_threads();
  if (!dry_ && bytes)
    threads = static_cast<int32_t>(std::clamp<size_t>((bytes_ - used_) / bytes, 1, static_cast<size_t>(threads)));
  *scratch = static_cast<char*>(take(bytes * static_cast<size_t>(threads)));
  return threads;
}

Matrix Execution::scratch(int64_t rows, int64_t cols, DType dtype) {
  return {take(static_cast<size_t>(rows * cols) * dtype_size(dtype)), dtype, rows, cols, cols, 1};
}

Matrix Execution::copied(const View& view, int leading, DType dtype) {
  int64_t rows = 1, cols = 1;
  for (int i = 0; i < view.rank(); ++i) (i < leading ? rows : cols) *= view.shape[i];
  const Matrix copy = scratch(rows, cols, dtype);
  if (!dry_ && on_host()) copy_to_contiguous(view, copy.data, dtype);
  if (!dry_ && !on_host()) copy_to_contiguous_cuda(view, copy.data, dtype, stream_);
  return copy;
}

Matrix Execution::matrix(const View& view, int leading, DType dtype) {
  Matrix matrix;
  if (view.dtype == dtype && as_matrix(view, leading, &matrix)) return matrix;
  return copied(view, leading, dtype);
}

Matrix Execution::rows(const View& view, int leading, DType dtype) {
  Matrix matrix;
  if (view.dtype == dtype && as_matrix(view, leading, &matrix) && matrix.col_stride == 1) return matrix;
  return copied(view, leading, dtype);
}

void* Execution::contiguous(const View& view, DType dtype) {
  if (!view.defined()) return nullptr;
  if (view.dtype == dtype && view.contiguous()) return view.data;
  return copied(view, 0, dtype).data;
}

void Execution::gemm(blublas_gemm_args args) {
  const size_t before = mark();
  args.device_type = on_host() ? BLUBLAS_CPU : BLUBLAS_CUDA;
  args.device_index = device_.index;
  args.stream = stream_;
  args.math = static_cast<int32_t>(math_);
  args.workspace_bytes = gemm_workspace(args);
  args.workspace = take(args.workspace_bytes);
  if (!dry_) run_gemm(args);
  release(before);
}

void Execution::store(const Matrix& from, const View& to, bool accumulate) {
  if (dry_) return;
  if (on_host())
    store_contiguous(from.data, from.dtype, to, accumulate);
  else
    store_contiguous_cuda(from.data, from.dtype, to, accumulate, stream_);
}

void copy_to_contiguous(const View& source, void* to, DType dtype) {
  if (source.dtype == dtype) {
    switch (dtype_size(dtype)) {  // bits, whatever they mean
      case 8:
        return copy_rows<int64_t>(source, static_cast<int64_t*>(to));
      case 4:
        return copy_rows<int32_t>(source, static_cast<int32_t*>(to));
      case 2:
        return copy_rows<uint16_t>(source, static_cast<uint16_t*>(to));
      default:
        return copy_rows<uint8_t>(source, static_cast<uint8_t*>(to));
    }
  }
  visit_floating(source.dtype, "copy", [&](auto from_tag) {
    visit_floating(dtype, "copy", [&](auto to_tag) {
      using From = typename decltype(from_tag)::type;
      using To = typename decltype(to_tag)::type;
      copy_rows<From>(source, static_cast<To*>(to));
    });
  });
}

void store_contiguous(const void* from, DType dtype, const View& to, bool accumulate) {
  visit_floating(to.dtype, "store", [&](auto tag) {
    using To = typename decltype(tag)::type;
    if (dtype == DType::float64)
      store_rows<double, To>(static_cast<const double*>(from), to, accumulate);
    else
      store_rows<float, To>(static_cast<const float*>(from), to, accumulate);
  });
}

blublas_matrix gemm_matrix(const Matrix& m, int64_t batch_stride) {
  return {m.data, static_cast<int32_t>(m.dtype), 0, m.rows, m.cols, m.row_stride, m.col_stride, batch_stride};
}

blublas_gemm_args make_gemm(const Matrix& a, const Matrix& b, const Matrix& c) {
  blublas_gemm_args args{};
  args.struct_size = sizeof(args);
  args.batch = 1;
  args.alpha = 1;
  args.a = gemm_matrix(a);
  args.b = gemm_matrix(b);
  args.c = gemm_matrix(c);
  return args;
}

size_t gemm_workspace(const blublas_gemm_args& args) {
  size_t bytes = 0;
  if (const int32_t status = blublas_gemm_workspace(&args, &bytes))
    throw Error(static_cast<Status>(status), blublas_last_error());
  return bytes;
}

void run_gemm(const blublas_gemm_args& args) {
  if (const int32_t status = blublas_gemm(&args)) throw Error(static_cast<Status>(status), blublas_last_error());
}

}  // namespace blutensor
