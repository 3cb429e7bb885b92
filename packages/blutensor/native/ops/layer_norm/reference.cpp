// The portable layer_norm as entries of the kernel table.
#include "ops/layer_norm/reference.h"

#include "ops/layer_norm/layer_norm_kernels.h"

namespace blutensor {

void use_reference(LayerNormKernels& kernels) {
  kernels.forward_f32 = [](const LayerNormForward& a) {
    layer_norm_forward_reference<float>(a.x, a.x_stride, a.weight, a.bias, static_cast<double>(a.eps), a.rows, a.cols,
                                        a.y, a.mean, a.rstd);
  };
  kernels.backward_f32 = [](const LayerNormBackward& a) {
    layer_norm_backward_reference<float>(a.dy, a.dy_stride, a.x, a.x_stride, a.weight, a.mean, a.rstd, a.rows, a.cols,
                                         a.dx, a.dweight, a.dbias);
  };
}

}  // namespace blutensor
