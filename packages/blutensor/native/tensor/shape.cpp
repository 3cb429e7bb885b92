#include "tensor/shape.h"

#include "tensor/dtype.h"

namespace blutensor {

std::ostream& operator<<(std::ostream& out, const Dims& dims) {
  out << '(';
  for (int i = 0; i < dims.size(); ++i) out << (i ? ", " : "") << dims[i];
  return out << (dims.size() == 1 ? ",)" : ")");
}

int64_t num_elements(const Shape& shape) {
  int64_t n = 1;
  for (int64_t d : shape) {
    require(d >= 0, "expected sizes of at least 0, got shape ", shape);
    require(!__builtin_mul_overflow(n, d, &n), "expected less than 2^63 elements, got shape ", shape);
  }
  return n;
}

Strides contiguous_strides(const Shape& shape) {
  Strides strides = Dims::filled(shape.size(), 1);
  for (int i = shape.size() - 2; i >= 0; --i) strides[i] = strides[i + 1] * std::max<int64_t>(shape[i + 1], 1);
  return strides;
}

bool is_contiguous(const Shape& shape, const Strides& strides) {
  int64_t expected = 1;
  for (int i = shape.size() - 1; i >= 0; --i) {
    if (shape[i] == 0) return true;
    if (shape[i] == 1) continue;
    if (strides[i] != expected) return false;
    expected *= shape[i];
  }
  return true;
}

Shape broadcast_shapes(const Shape& a, const Shape& b, const char* op) {
  const int rank = std::max(a.size(), b.size());
  Shape out = Dims::filled(rank, 1);
  for (int i = 0; i < rank; ++i) {
    const int ia = a.size() - rank + i, ib = b.size() - rank + i;
    const int64_t da = ia >= 0 ? a[ia] : 1, db = ib >= 0 ? b[ib] : 1;
    require(da == db || da == 1 || db == 1, "[", op, "] expected shapes that broadcast, got ", a, " and ", b);
    out[i] = da == 1 ? db : da;
  }
  return out;
}

Strides broadcast_strides(const Shape& shape, const Strides& strides, const Shape& to) {
  Strides out = Dims::filled(to.size(), 0);
  for (int i = 0; i < shape.size(); ++i) {
    const int at = to.size() - shape.size() + i;
    out[at] = shape[i] == 1 && to[at] != 1 ? 0 : strides[i];
  }
  return out;
}

int normalize_axis(int64_t axis, int rank, const char* op) {
  if (axis < -rank || axis >= rank)
    fail(Status::index, "[", op, "] expected an axis from ", -rank, " to ", rank - 1, ", got ", axis);
  return static_cast<int>(axis < 0 ? axis + rank : axis);
}

DType promote(DType a, DType b) {
  if (a == b) return a;
  if (is_floating(a) != is_floating(b)) return is_floating(a) ? a : b;
  if (is_floating(a)) {
    if (a == DType::float64 || b == DType::float64) return DType::float64;
    return DType::float32;  // float32 with a 16-bit float, or bfloat16 with float16
  }
  if (a == DType::boolean) return b;
  if (b == DType::boolean) return a;
  const bool a_unsigned = is_unsigned(a), b_unsigned = is_unsigned(b);
  const size_t a_size = dtype_size(a), b_size = dtype_size(b);
  if (a_unsigned == b_unsigned) return a_size > b_size ? a : b;
  // The signed dtype that is wider than the unsigned one and not narrower than the other.
  const size_t size = std::max(2 * (a_unsigned ? a_size : b_size), a_unsigned ? b_size : a_size);
  require_type(size <= 8, "expected dtypes with a common one, got ", dtype_name(a), " and ", dtype_name(b),
               ": no integer dtype holds both; convert one first: astype");
  return size == 2 ? DType::int16 : size == 4 ? DType::int32 : DType::int64;
}

}  // namespace blutensor
