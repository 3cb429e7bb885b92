// Elementwise operators of one floating-point tensor: GELU in kernels of its own, the rest in one kernel per dtype.
#include "ops/elementwise/cuda.h"
#include "ops/elementwise/functions.cuh"
#include "ops/elementwise/map.cuh"

namespace blutensor::cuda {

namespace {

template <class T>
void launch_packs(UnaryOp op, const View& out, const View& a, const PackPlan<1>& plan, cudaStream_t stream) {
  switch (op) {
    case UnaryOp::gelu_tanh:
      return launch_map_packs<4, T, T, 1>(out, {&a}, plan, Unary<UnaryOp::gelu_tanh>{}, stream);
    case UnaryOp::gelu_erf:
      return launch_map_packs<4, T, T, 1>(out, {&a}, plan, Unary<UnaryOp::gelu_erf>{}, stream);
    default:
      return launch_map_packs<1, T, T, 1>(out, {&a}, plan, AnyUnary{op}, stream);
  }
}

}  // namespace

void run_unary(UnaryOp op, const View& out, const View& a, cudaStream_t stream) {
  const View* views[] = {&out, &a};
  const Iteration it = make_iteration(out.shape, views);
  if (it.numel == 0) return;
  if (!is_floating(a.dtype)) return run_integer_unary(op, it, out, a, stream);
  if (is_wide(op)) return run_wide_unary(op, it, out, a, stream);
  PackPlan<1> plan;
  const bool trained = a.dtype != DType::float64;
  if (trained && out.dtype == a.dtype && plan_packs<1>(it, views, 16 / static_cast<int>(dtype_size(a.dtype)), plan)) {
    visit_device_float(a.dtype, "elementwise",
                       [&](auto tag) { launch_packs<typename decltype(tag)::type>(op, out, a, plan, stream); });
  } else if (a.dtype == DType::float64) {
    launch_map_any<double, 1>(it, out, {&a}, AnyUnary{op}, stream);
  } else {
    launch_map_any<float, 1>(it, out, {&a}, AnyUnary{op}, stream);
  }
  check_launch("elementwise");
}

}  // namespace blutensor::cuda
