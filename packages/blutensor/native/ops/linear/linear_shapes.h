// Checks that linear, mlp and their gradients share, and the gradient of a layer's weight and bias.
#pragma once

#include <functional>

#include "ops/operator.h"

namespace blutensor {

inline Shape with_last(Shape shape, int64_t size) {
  shape.back() = size;
  return shape;
}

inline void require_floating(const char* op, const Tensor& tensor, const char* name) {
  require_type(is_floating(tensor.dtype()), "[", op, "] expected floating-point '", name, "', got ", describe(tensor));
}

inline void require_same_dtype(const char* op, const Tensor& tensor, const char* name, DType dtype) {
  require_type(tensor.dtype() == dtype, "[", op, "] expected '", name, "' of dtype ", dtype_name(dtype),
               " like the first operand, got ", describe(tensor));
}

// weight [N, K] and bias [N] of a layer that is applied to x [..., K].
inline void check_layer(const char* op, const Tensor& x, const Tensor& weight, const Tensor& bias,
                        const char* weight_name, const char* bias_name) {
  require_floating(op, x, "x");
  require(x.rank() >= 1, "[", op, "] expected x of shape [..., K], got a 0-d tensor");
  require_same_dtype(op, weight, weight_name, x.dtype());
  require(weight.rank() == 2 && weight.size(1) == x.size(-1), "[", op, "] expected ", weight_name, " of shape (N, ",
          x.size(-1), ") for x ", x.shape(), ", got ", weight.shape());
  if (!bias.defined()) return;
  require_same_dtype(op, bias, bias_name, x.dtype());
  require(bias.shape() == Shape{weight.size(0)}, "[", op, "] expected ", bias_name, " of shape ", Shape{weight.size(0)},
          ", got ", bias.shape());
}

inline void check_residual(const char* op, const Tensor& residual, const Shape& shape, DType dtype) {
  if (!residual.defined()) return;
  require_same_dtype(op, residual, "residual", dtype);
  require(residual.shape() == shape, "[", op, "] expected residual of shape ", shape, ", got ", residual.shape());
}

inline void check_grad_output(const char* op, const Tensor& grad, const Tensor& weight) {
  require_floating(op, grad, "grad_output");
  require_same_dtype(op, weight, "weight", grad.dtype());
  require(weight.rank() == 2 && grad.rank() >= 1 && grad.size(-1) == weight.size(0), "[", op,
          "] expected grad_output [..., N] and weight [N, K], got ", grad.shape(), " and ", weight.shape());
}

// Gradients of inputs `weight` and `bias` of a layer, from the gradient of its result (before an activation) and its
// input x: into their buffers where there are some, else into grads. x is asked for only when needed.
void layer_weight_gradients(GradContext& ctx, int weight, int bias, const Tensor& grad,
                            const std::function<Tensor()>& x, Tensors& grads);

}  // namespace blutensor
