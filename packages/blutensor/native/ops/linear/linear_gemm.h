// The three GEMMs of a linear layer, shared by linear and mlp. Y [M, N] = X [M, K] W^T + b + R with weight W [N, K].
#pragma once

#include <string>

#include "ops/matmul/operand.h"

namespace blutensor {

// Which gelu an epilogue applies; none by default. `approximate` is the attribute: "tanh" or "none".
struct GeluEpilogue {
  int32_t flag = 0;  // BLUBLAS_EPILOGUE_GELU_*
  View preactivation;

  static GeluEpilogue forward(const std::string& approximate, const View& preactivation);
  static GeluEpilogue gradient(const std::string& approximate, const View& preactivation);
};

// Number of leading axes of an operand [..., K].
inline int leading_axes(const View& view) { return view.rank() - 1; }

// y = gelu(x W^T + bias) + residual, gelu where asked for (its argument is stored in gelu.preactivation).
// y: a matrix of the GEMM's dtype; bias, residual may be undefined.
void linear_forward(Execution& run, const Matrix& x, const View& weight, const View& bias, const View& residual,
                    const GeluEpilogue& gelu, const Matrix& y);

// A matrix for a GEMM to write: the view itself, or scratch that Execution::store() brings there afterwards.
struct GemmOutput {
  Matrix matrix;
  bool scratch = false;
};
// `operands`: the dtype of what the GEMM multiplies; of bfloat16 blublas also stores float32 sums as they are.
GemmOutput gemm_output(Execution& run, const View& view, int leading, DType operands);

}  // namespace blutensor
