// Descriptors of elementwise operators, from rows of tables: what is computed, how it is called, what its gradient is.
#pragma once

#include "ops/elementwise/elementwise_kernels.h"
#include "ops/operator.h"

namespace blutensor {

// Errors know the operator by the name that the user called.
InferFn infer_unary(std::string name, UnaryOp op);
InferFn infer_binary(std::string name, BinaryOp op);

// Without a gradient.
Operator unary_operator(UnaryOp op, const char* name, const char* doc, const char* category);
Operator binary_operator(BinaryOp op, const char* name, const char* doc, const char* category);

enum class Saves { nothing, input, output };
// `derivative(gradient, saved)`.
using UnaryDerivative = Tensor (*)(const Tensor& g, const Tensor& saved);
Operator differentiable(UnaryOp op, const char* name, const char* doc, Saves saves, UnaryDerivative derivative,
                        const char* domain);

// `derivative(context, g, i)`: the gradient of input i before it is summed over broadcast axes.
using BinaryDerivative = Tensor (*)(GradContext& context, const Tensor& g, int i);
Operator differentiable(BinaryOp op, const char* name, const char* doc, uint64_t save_inputs, uint64_t save_outputs,
                        BinaryDerivative derivative, const char* domain = "normal");

// The gradient of what is constant but for steps.
Tensor zeros_like(const Tensor& g);

}  // namespace blutensor
