#include "ops/linear/linear_gemm.h"

namespace blutensor {

GeluEpilogue GeluEpilogue::forward(const std::string& approximate, const View& preactivation) {
  const int32_t gelu = approximate == "tanh" ? BLUBLAS_EPILOGUE_GELU_TANH : BLUBLAS_EPILOGUE_GELU_ERF;
  return {gelu | BLUBLAS_EPILOGUE_STORE_PREACTIVATION, preactivation};
}

GeluEpilogue GeluEpilogue::gradient(const std::string& approximate, const View& preactivation) {
  if (!preactivation.defined()) return {};
  return {approximate == "tanh" ? BLUBLAS_EPILOGUE_GELU_TANH_GRADIENT : BLUBLAS_EPILOGUE_GELU_ERF_GRADIENT,
          preactivation};
}

GemmOutput gemm_output(Execution& run, const View& view, int leading, DType operands) {
  const DType sums = accumulation_dtype(operands);
  Matrix matrix;
  if ((view.dtype == operands || view.dtype == sums) && as_matrix(view, leading, &matrix)) return {matrix, false};
  int64_t rows = 1, cols = 1;
  for (int i = 0; i < view.rank(); ++i) (i < leading ? rows : cols) *= view.shape[i];
  // What blublas cannot write itself is accumulated by store(), in the accumulation type.
  return {run.scratch(rows, cols, sums), true};
}

void linear_forward(Execution& run, const Matrix& x, const View& weight, const View& bias, const View& residual,
                    const GeluEpilogue& gelu, const Matrix& y) {
  const size_t before = run.mark();
  const Matrix w = run.matrix(weight, 1, x.dtype);
  blublas_gemm_args args = make_gemm(x, w.transposed(), y);
  if (bias.defined()) {
    args.epilogue |= BLUBLAS_EPILOGUE_BIAS;
    args.bias = run.contiguous(bias, x.dtype);
    args.bias_dtype = static_cast<int32_t>(x.dtype);
  }
  if (residual.defined()) {
    args.epilogue |= BLUBLAS_EPILOGUE_RESIDUAL;
    args.residual = gemm_matrix(run.matrix(residual, leading_axes(residual), x.dtype));
  }
  GemmOutput preactivation;
  if (gelu.flag) {
    args.epilogue |= gelu.flag;
    preactivation = gemm_output(run, gelu.preactivation, leading_axes(gelu.preactivation), x.dtype);
    args.aux = gemm_matrix(preactivation.matrix);
  }
  run.gemm(args);
  if (preactivation.scratch) run.store(preactivation.matrix, gelu.preactivation);
  run.release(before);
}

}  // namespace blutensor
