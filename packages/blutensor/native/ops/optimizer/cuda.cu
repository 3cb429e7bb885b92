// The table of the optimizers on CUDA, and those that are one thread's work: increment_step_ and clip_scale.
#include "ops/cuda/table.h"
#include "ops/optimizer/optimizer_cuda.h"
#include "ops/optimizer/scalars.cuh"

namespace blutensor {

using namespace cuda;

namespace {

__global__ void increment_step(int64_t* step, const Scalar skip) {
  if (read(skip, 0) == 0) ++*step;
}

void increment_step_cuda(const Launch& launch) {
  increment_step<<<1, 1, 0, stream_of(launch)>>>(launch.inputs[0].ptr<int64_t>(), scalar(launch.inputs[1]));
  check_launch("increment_step_");
}

__global__ void clip(const Scalar norm_in, const Scalar count_in, double max_norm, float* scale, float* skip) {
  const double count = read(count_in, 1), norm = read(norm_in, 0) / count;
  const bool finite = isfinite(norm);
  // PyTorch's clip_grad_norm_ adds the same 1e-6.
  *scale = finite ? static_cast<float>(fmin(1.0, max_norm / (norm + 1e-6)) / count) : 0.0f;
  *skip = finite ? 0.0f : 1.0f;
}

void clip_scale_cuda(const Launch& launch) {
  clip<<<1, 1, 0, stream_of(launch)>>>(scalar(launch.inputs[0]), scalar(launch.inputs[1]), launch.attrs.f(0),
                                       launch.outputs[0].ptr<float>(), launch.outputs[1].ptr<float>());
  check_launch("clip_scale");
}

}  // namespace

void add_optimizer_cuda(CudaTable& table) {
  table.add("adamw_", launch_of<adamw_cuda>, workspace_of<adamw_cuda>);
  table.add("sgd_", launch_of<sgd_cuda>, workspace_of<sgd_cuda>);
  table.add("sgd_momentum_", launch_of<sgd_momentum_cuda>, workspace_of<sgd_momentum_cuda>);
  table.add("increment_step_", increment_step_cuda);
  table.add("grad_norm", launch_of<grad_norm_cuda>, workspace_of<grad_norm_cuda>);
  table.add("clip_scale", clip_scale_cuda);
}

}  // namespace blutensor
