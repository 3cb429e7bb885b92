#include "cuda/epilogue.h"

namespace blublas {
namespace {

MatrixRef reference(const Operand& x) {
  return {x.data,         x.row_stride, x.col_stride,
          x.batch_stride, x.dtype,      x.col_stride == 1 && is_aligned(x, 4 * dtype_bytes(x.dtype))};
}

}  // namespace

EpilogueParams make_epilogue(const CudaProblem& p) {
  EpilogueParams e;
  e.m = p.m, e.n = p.n;
  e.flags = p.epilogue;
  e.alpha = p.alpha, e.beta = p.beta;
  e.alpha32 = static_cast<float>(p.alpha), e.beta32 = static_cast<float>(p.beta);
  e.c = reference(p.c);
  if (p.epilogue &
      (BLUBLAS_EPILOGUE_STORE_PREACTIVATION | BLUBLAS_EPILOGUE_GELU_TANH_GRADIENT | BLUBLAS_EPILOGUE_GELU_ERF_GRADIENT))
    e.aux = reference(p.aux);
  if (p.epilogue & BLUBLAS_EPILOGUE_RESIDUAL) e.residual = reference(p.residual);
  if (p.epilogue & BLUBLAS_EPILOGUE_BIAS) {
    e.bias = p.bias.data;
    e.bias_dtype = p.bias.dtype;
    e.bias_batch_stride = p.bias.batch_stride;
  }
  e.vectors =
      e.c.vectors && (e.aux.data == nullptr || e.aux.vectors) && (e.residual.data == nullptr || e.residual.vectors);
  return e;
}

EpilogueParams store_only(const CudaProblem& p, char* target, int64_t row_stride, int64_t batch_stride) {
  EpilogueParams e;
  e.m = p.m, e.n = p.n;
  e.c = {target, row_stride, 1, batch_stride, p.compute, true};
  e.vectors = true;
  return e;
}

}  // namespace blublas
