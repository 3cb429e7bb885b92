#include "ops/elementwise/compose.h"

namespace blutensor {

Tensor constant(double value, DType dtype) {
  static const OpRef full{"full"};
  return full({}, {Attr::of_ints({}), Attr::of_float(value), Attr::of_dtype(dtype)});
}

Tensor scaled(const Tensor& a, double factor) {
  static const OpRef multiply{"multiply"};
  return multiply({a, constant(factor, a.dtype())});
}

Tensor cast_to(const Tensor& a, DType dtype) {
  static const OpRef astype{"astype"};
  return a.dtype() == dtype ? a : astype({a}, {Attr::of_dtype(dtype)});
}

Tensor reduced_to(const Tensor& gradient, const TensorSpec& spec) {
  static const OpRef sum_to{"sum_to"};
  Tensor result = gradient;
  if (!(result.shape() == spec.shape)) result = sum_to({result}, {Attr::of_ints(spec.shape)});
  return cast_to(result, spec.dtype);
}

Tensor reshaped(const Tensor& a, const Shape& shape) {
  static const OpRef reshape{"reshape"};
  return a.shape() == shape ? a : reshape({a}, {Attr::of_ints(shape)});
}

Tensor broadcast_to(const Tensor& a, const Shape& shape) {
  static const OpRef broadcast{"broadcast_to"};
  return a.shape() == shape ? a : broadcast({a}, {Attr::of_ints(shape)});
}

}  // namespace blutensor
