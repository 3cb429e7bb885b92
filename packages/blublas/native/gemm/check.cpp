// The boundary: every precondition of blublas_gemm, checked once. Kernels check nothing.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "common/status.h"
#include "gemm/overlap.h"
#include "gemm/problem.h"

namespace blublas {
namespace {

using std::to_string;

constexpr int32_t kGeluForward = BLUBLAS_EPILOGUE_GELU_TANH | BLUBLAS_EPILOGUE_GELU_ERF;
constexpr int32_t kGeluGradient = BLUBLAS_EPILOGUE_GELU_TANH_GRADIENT | BLUBLAS_EPILOGUE_GELU_ERF_GRADIENT;
constexpr int32_t kAllFlags = (1 << 12) - 1;

std::string dtype_name(int32_t dtype) {
  switch (dtype) {
    case BLUBLAS_FLOAT32:
      return "float32";
    case BLUBLAS_BFLOAT16:
      return "bfloat16";
    case BLUBLAS_FLOAT16:
      return "float16";
    case BLUBLAS_FLOAT64:
      return "float64";
    default:
      return "dtype " + to_string(dtype);
  }
}

std::string shape(int64_t rows, int64_t cols) { return "[" + to_string(rows) + ", " + to_string(cols) + "]"; }

void expect_shape(const char* name, const blublas_matrix& matrix, int64_t rows, int64_t cols) {
  if (matrix.rows != rows || matrix.cols != cols)
    fail_value(std::string("[gemm] expected ") + name + " of shape " + shape(rows, cols) +
               " (a [M, K], b [K, N], all others [M, N]), got " + shape(matrix.rows, matrix.cols));
}

Footprint footprint(const Operand& operand, int64_t rows, int64_t cols, int64_t batch) {
  const int64_t item = dtype_bytes(operand.dtype);
  Footprint bytes;
  bytes.start = reinterpret_cast<uintptr_t>(operand.data);
  bytes.item_bytes = item;
  bytes.dimensions = {
      {{rows, operand.row_stride * item},
       {cols, operand.col_stride * item},
       {operand.array != nullptr ? 1 : batch, operand.array != nullptr ? 0 : operand.batch_stride * item}}};
  return bytes;
}

Footprint footprint(const Vector& vector, int64_t size, int64_t batch) {
  const int64_t item = dtype_bytes(vector.dtype);
  Footprint bytes;
  bytes.start = reinterpret_cast<uintptr_t>(vector.data);
  bytes.item_bytes = item;
  bytes.dimensions = {{{size, item}, {batch, vector.batch_stride * item}, {1, 0}}};
  return bytes;
}

Operand operand(const char* name, const blublas_matrix& matrix, const void* const* array, int64_t batch) {
  constexpr int64_t limit = int64_t{1} << 58;  // strides in bytes stay far from overflow
  for (const int64_t stride : {matrix.row_stride, matrix.col_stride, matrix.batch_stride})
    if (stride > limit || stride < -limit)
      fail_value(std::string("[gemm] expected strides of ") + name + " below 2^58, got " + to_string(stride));
  Operand result;
  result.data = static_cast<char*>(matrix.data);
  // Only c's pointers are ever written through.
  result.array = const_cast<void* const*>(array);
  result.dtype = matrix.dtype;
  // A stride that is never used does not count: layouts with one row or column are then contiguous either way.
  result.row_stride = matrix.rows > 1 ? matrix.row_stride : 0;
  result.col_stride = matrix.cols > 1 ? matrix.col_stride : 1;
  result.batch_stride = batch > 1 ? matrix.batch_stride : 0;
  if (!extent_fits(footprint(result, std::max<int64_t>(1, matrix.rows), std::max<int64_t>(1, matrix.cols),
                             std::max<int64_t>(1, batch))))
    fail_value(std::string("[gemm] expected ") + name + " to span less than 2^62 bytes, got shape " +
               shape(matrix.rows, matrix.cols) + " with strides " + shape(matrix.row_stride, matrix.col_stride) +
               " and batch stride " + to_string(matrix.batch_stride));
  return result;
}

void check_dtypes(const blublas_gemm_args& args, Problem& problem) {
  const int32_t a = args.a.dtype, b = args.b.dtype, c = args.c.dtype;
  const bool float32 = a == BLUBLAS_FLOAT32 && b == a && c == a;
  const bool float64 = a == BLUBLAS_FLOAT64 && b == a && c == a;
  const bool bfloat16 = a == BLUBLAS_BFLOAT16 && b == a && (c == a || c == BLUBLAS_FLOAT32);
  if (!float32 && !float64 && !bfloat16)
    fail_dtype(
        "[gemm] expected a, b, out as float32, float32, float32; float64, float64, float64; or bfloat16, bfloat16, "
        "bfloat16 or float32; got " +
        dtype_name(a) + ", " + dtype_name(b) + ", " + dtype_name(c));
  problem.compute = float64 ? BLUBLAS_FLOAT64 : BLUBLAS_FLOAT32;
  const auto expect = [&](const char* name, int32_t dtype) {
    if (dtype != problem.compute && dtype != c)
      fail_dtype(std::string("[gemm] expected ") + name + " as " + dtype_name(problem.compute) + " or out's " +
                 dtype_name(c) + ", got " + dtype_name(dtype));
  };
  if (problem.epilogue & BLUBLAS_EPILOGUE_BIAS) expect("bias", args.bias_dtype);
  if (problem.epilogue & (BLUBLAS_EPILOGUE_STORE_PREACTIVATION | kGeluGradient)) expect("aux", args.aux.dtype);
  if (problem.epilogue & BLUBLAS_EPILOGUE_RESIDUAL) expect("residual", args.residual.dtype);
}

int32_t check_flags(int32_t flags) {
  if (flags & ~kAllFlags)
    fail_value("[gemm] expected epilogue flags below " + to_string(kAllFlags + 1) + ", got " + to_string(flags));
  const int32_t gelu = flags & (kGeluForward | kGeluGradient);
  if (gelu & (gelu - 1))
    fail_value("[gemm] expected at most one of the four GELU epilogues, got flags " + to_string(flags));
  if ((flags & BLUBLAS_EPILOGUE_STORE_PREACTIVATION) && (flags & kGeluGradient))
    fail_value("[gemm] expected aux to be written (STORE_PREACTIVATION) or read (GELU gradient), got both flags");
  if ((flags & BLUBLAS_EPILOGUE_COLUMN_SUM_ACCUMULATE) && !(flags & BLUBLAS_EPILOGUE_COLUMN_SUM))
    fail_value("[gemm] expected COLUMN_SUM with COLUMN_SUM_ACCUMULATE, got the latter alone");
  if ((flags & BLUBLAS_EPILOGUE_ROW_SUM_A_ACCUMULATE) && !(flags & BLUBLAS_EPILOGUE_ROW_SUM_A))
    fail_value("[gemm] expected ROW_SUM_A with ROW_SUM_A_ACCUMULATE, got the latter alone");
  return flags;
}

// What is read or written, for the overlap checks.
struct Named {
  const char* name = "";
  Footprint bytes;
};

// Room for every operand there is, without the heap: small products are called often.
class NamedList {
 public:
  void push_back(const Named& named) { items_[size_++] = named; }
  size_t size() const { return size_; }
  const Named& operator[](size_t i) const { return items_[i]; }
  const Named* begin() const { return items_.data(); }
  const Named* end() const { return items_.data() + size_; }

 private:
  std::array<Named, 6> items_;
  size_t size_ = 0;
};

void check_pair(const Named& written, const Named& other) {
  if (may_overlap(written.bytes, other.bytes))
    fail_value(std::string("[gemm] expected ") + written.name + " in memory of its own, got one that overlaps " +
               other.name + ": write to another array");
}

bool same_elements(const Footprint& x, const Footprint& y) {
  if (x.start != y.start || x.item_bytes != y.item_bytes) return false;
  for (size_t i = 0; i < x.dimensions.size(); ++i)
    if (x.dimensions[i].size > 1 && x.dimensions[i].stride != y.dimensions[i].stride) return false;
  return true;
}

void expect_pointer(const char* name, const void* pointer) {
  if (pointer == nullptr) fail_value(std::string("[gemm] expected a pointer to ") + name + ", got NULL");
}

void expect_pointers(const char* name, const Operand& operand, int64_t batch) {
  if (operand.array == nullptr) return expect_pointer(name, operand.data);
  for (int64_t t = 0; t < batch; ++t) expect_pointer(name, operand.array[t]);
}

// Overlap with pointer arrays: each product of the batch against its own operands, and all outputs against each other.
void check_arrays(const Problem& p) {
  std::vector<Footprint> outputs;
  outputs.reserve(static_cast<size_t>(p.batch));
  const auto of_batch = [](Operand operand, int64_t rows, int64_t cols, int64_t t) {
    operand.data = operand.of_batch(t);
    operand.array = nullptr;
    return footprint(operand, rows, cols, 1);
  };
  for (int64_t t = 0; t < p.batch; ++t) {
    const Named c{"out", of_batch(p.c, p.m, p.n, t)};
    if (p.k > 0) check_pair(c, {"a", of_batch(p.a, p.m, p.k, t)});
    if (p.k > 0) check_pair(c, {"b", of_batch(p.b, p.k, p.n, t)});
    outputs.push_back(c.bytes);
  }
  if (p.c.array == nullptr) return;
  std::sort(outputs.begin(), outputs.end(), [](const Footprint& x, const Footprint& y) { return x.start < y.start; });
  for (size_t i = 1; i < outputs.size(); ++i)
    if (may_overlap(outputs[i - 1], outputs[i]))
      fail_value("[gemm] expected the matrices of out apart from each other, got two that overlap");
}

void check_overlap(Problem& p) {
  const Named c{"out", footprint(p.c, p.m, p.n, p.batch)};
  if (overlaps_itself(c.bytes))
    fail_value("[gemm] expected out whose elements do not overlap each other, got shape " + shape(p.m, p.n) +
               " with strides " + shape(p.c.row_stride, p.c.col_stride) + " and batch stride " +
               to_string(p.c.batch_stride));
  const bool arrays = p.a.array != nullptr || p.b.array != nullptr || p.c.array != nullptr;
  if (arrays) check_arrays(p);
  NamedList written;
  NamedList read;
  if (p.c.array == nullptr) written.push_back(c);
  if (p.a.array == nullptr && p.k > 0) read.push_back({"a", footprint(p.a, p.m, p.k, p.batch)});
  if (p.b.array == nullptr && p.k > 0) read.push_back({"b", footprint(p.b, p.k, p.n, p.batch)});
  if (p.epilogue & BLUBLAS_EPILOGUE_BIAS)
    read.push_back({"bias", footprint(p.bias, p.n, p.bias.batch_stride == 0 ? 1 : p.batch)});
  if (p.epilogue & BLUBLAS_EPILOGUE_COLUMN_SUM)
    written.push_back({"column_sum", footprint(p.column_sum, p.n, p.batch)});
  if (p.epilogue & BLUBLAS_EPILOGUE_ROW_SUM_A) written.push_back({"row_sum_a", footprint(p.row_sum_a, p.m, p.batch)});
  if (p.epilogue & BLUBLAS_EPILOGUE_STORE_PREACTIVATION) {
    written.push_back({"aux", footprint(p.aux, p.m, p.n, p.batch)});
  } else if (p.epilogue & kGeluGradient) {
    const Named aux{"aux", footprint(p.aux, p.m, p.n, p.batch)};
    p.aux_is_c = p.c.array == nullptr && same_elements(aux.bytes, c.bytes);
    if (!p.aux_is_c) read.push_back(aux);
  }
  if (p.epilogue & BLUBLAS_EPILOGUE_RESIDUAL) {
    const Named residual{"residual", footprint(p.residual, p.m, p.n, p.batch)};
    p.residual_is_c = p.c.array == nullptr && same_elements(residual.bytes, c.bytes);
    if (!p.residual_is_c) read.push_back(residual);
  }
  for (size_t i = 0; i < written.size(); ++i) {
    if (overlaps_itself(written[i].bytes))
      fail_value(std::string("[gemm] expected ") + written[i].name +
                 " whose elements do not overlap each other; give it strides of its own");
    for (const Named& other : read) check_pair(written[i], other);
    for (size_t j = i + 1; j < written.size(); ++j) check_pair(written[i], written[j]);
  }
}

Vector vector(const void* data, int32_t dtype, int64_t batch_stride, int64_t batch) {
  constexpr int64_t limit = int64_t{1} << 40;
  if (batch_stride > limit || batch_stride < -limit)
    fail_value("[gemm] expected batch strides of vectors below 2^40, got " + to_string(batch_stride));
  return {static_cast<char*>(const_cast<void*>(data)), dtype, batch > 1 ? batch_stride : 0};
}

}  // namespace

Problem check(const blublas_gemm_args& args, Pointers pointers) {
  if (!(args.device_type == BLUBLAS_CPU && args.device_index == 0) && args.device_type != BLUBLAS_CUDA)
    throw Error(BLUBLAS_UNSUPPORTED, "[gemm] expected device cpu:0 or a CUDA device, got device type " +
                                         to_string(args.device_type) + ", index " + to_string(args.device_index));
  if (args.math != BLUBLAS_MATH_IEEE && args.math != BLUBLAS_MATH_TF32)
    fail_value("[gemm] expected math of BLUBLAS_MATH_IEEE or BLUBLAS_MATH_TF32, got " + to_string(args.math));
  Problem p;
  p.m = args.a.rows, p.k = args.a.cols, p.n = args.b.cols, p.batch = args.batch;
  if (p.m < 0 || p.k < 0 || p.n < 0 || p.batch < 0)
    fail_value("[gemm] expected sizes that are not negative, got M " + to_string(p.m) + ", N " + to_string(p.n) +
               ", K " + to_string(p.k) + ", batch " + to_string(p.batch));
  if (args.num_threads < 0) fail_value("[gemm] expected num_threads of 0 or more, got " + to_string(args.num_threads));
  expect_shape("b", args.b, p.k, p.n);
  expect_shape("out", args.c, p.m, p.n);
  p.alpha = args.alpha, p.beta = args.beta, p.num_threads = args.num_threads;
  p.epilogue = check_flags(args.epilogue);
  check_dtypes(args, p);
  p.a = operand("a", args.a, args.a_array, p.batch);
  p.b = operand("b", args.b, args.b_array, p.batch);
  p.c = operand("out", args.c, args.c_array, p.batch);
  const bool uses_aux = p.epilogue & (BLUBLAS_EPILOGUE_STORE_PREACTIVATION | kGeluGradient);
  if (uses_aux) {
    expect_shape("aux", args.aux, p.m, p.n);
    p.aux = operand("aux", args.aux, nullptr, p.batch);
  }
  if (p.epilogue & BLUBLAS_EPILOGUE_RESIDUAL) {
    expect_shape("residual", args.residual, p.m, p.n);
    p.residual = operand("residual", args.residual, nullptr, p.batch);
  }
  p.bias = vector(args.bias, args.bias_dtype, args.bias_batch_stride, p.batch);
  p.column_sum = vector(args.column_sum, p.compute, args.column_sum_batch_stride, p.batch);
  p.row_sum_a = vector(args.row_sum_a, p.compute, args.row_sum_a_batch_stride, p.batch);
  if (pointers == Pointers::ignored || p.batch == 0) return p;

  if ((p.epilogue & BLUBLAS_EPILOGUE_COLUMN_SUM) && p.n > 0) expect_pointer("column_sum", p.column_sum.data);
  if ((p.epilogue & BLUBLAS_EPILOGUE_ROW_SUM_A) && p.m > 0) expect_pointer("row_sum_a", p.row_sum_a.data);
  if ((p.epilogue & BLUBLAS_EPILOGUE_ROW_SUM_A) && p.m > 0 && p.k > 0) expect_pointers("a", p.a, p.batch);
  if (p.m > 0 && p.n > 0) {
    if (p.k > 0) expect_pointers("a", p.a, p.batch);
    if (p.k > 0) expect_pointers("b", p.b, p.batch);
    expect_pointers("out", p.c, p.batch);
    if (uses_aux) expect_pointer("aux", p.aux.data);
    if (p.epilogue & BLUBLAS_EPILOGUE_RESIDUAL) expect_pointer("residual", p.residual.data);
    if (p.epilogue & BLUBLAS_EPILOGUE_BIAS) expect_pointer("bias", p.bias.data);
    check_overlap(p);
  }
  return p;
}

}  // namespace blublas
