// Elementwise operators of two floating-point tensors: sums, products and the derivative of GELU in kernels of their own, the rest in
// one kernel per dtype.
#include "ops/elementwise/cuda.h"
#include "ops/elementwise/functions.cuh"
#include "ops/elementwise/map.cuh"

namespace blutensor::cuda {

namespace {

bool is_trained(DType dtype) { return dtype == DType::float32 || dtype == DType::bfloat16 || dtype == DType::float16; }

template <class T>
void launch_packs(BinaryOp op, const View& out, const View& a, const View& b, const PackPlan<2>& plan,
                  cudaStream_t stream) {
  using enum BinaryOp;
  switch (op) {
    case add:
      return launch_map_packs<2, T, T, 2>(out, {&a, &b}, plan, Binary<add>{}, stream);
    case multiply:
      return launch_map_packs<2, T, T, 2>(out, {&a, &b}, plan, Binary<multiply>{}, stream);
    case gelu_tanh_backward:
      return launch_map_packs<2, T, T, 2>(out, {&a, &b}, plan, Binary<gelu_tanh_backward>{}, stream);
    case gelu_erf_backward:
      return launch_map_packs<2, T, T, 2>(out, {&a, &b}, plan, Binary<gelu_erf_backward>{}, stream);
    default:
      if (op >= equal) return launch_map_packs<1, T, bool, 2>(out, {&a, &b}, plan, AnyBinary{op}, stream);
      return launch_map_packs<1, T, T, 2>(out, {&a, &b}, plan, AnyBinary{op}, stream);
  }
}

}  // namespace

void run_binary(BinaryOp op, DType dtype, const View& out, const View& a, const View& b, cudaStream_t stream) {
  const View* views[] = {&out, &a, &b};
  const Iteration it = make_iteration(out.shape, views);
  if (it.numel == 0) return;
  if (!is_floating(dtype)) return run_integer_binary(op, dtype, it, out, a, b, stream);
  if (is_wide(op) || op == BinaryOp::nextafter) return run_wide_binary(op, dtype, it, out, a, b, stream);
  PackPlan<2> plan;
  const bool one_dtype = a.dtype == b.dtype && out.dtype == (op >= BinaryOp::equal ? DType::boolean : a.dtype);
  if (one_dtype && is_trained(a.dtype) && op != BinaryOp::power &&
      plan_packs<2>(it, views, 16 / static_cast<int>(dtype_size(a.dtype)), plan)) {
    visit_device_float(a.dtype, "elementwise",
                       [&](auto tag) { launch_packs<typename decltype(tag)::type>(op, out, a, b, plan, stream); });
  } else if (dtype == DType::float64) {
    launch_map_any<double, 2>(it, out, {&a, &b}, AnyBinary{op}, stream);
  } else {
    launch_map_any<float, 2>(it, out, {&a, &b}, AnyBinary{op}, stream);
  }
  check_launch("elementwise");
}

}  // namespace blutensor::cuda
