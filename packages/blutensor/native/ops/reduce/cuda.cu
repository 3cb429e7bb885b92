// Reductions on the device: which kernel serves which operator, dtype and layout.
#include "ops/cuda/table.h"
#include "ops/reduce/fold_any.cuh"
#include "ops/reduce/folds.cuh"
#include "ops/reduce/sum_cuda.h"

namespace blutensor {

namespace {

using cuda::stream_of;

ReduceGeometry geometry(const View& x, unsigned axes, ReduceOrder order = ReduceOrder::by_stride) {
  return make_geometry(x.shape, x.strides, axes, order);
}
unsigned axes_of(const Launch& args) { return reduced_axes(args.attrs[0], args.inputs[0].rank(), "reduce"); }
unsigned sum_to_axes(const Launch& args) { return broadcast_axes(args.inputs[0].shape, args.attrs.ints(0)); }

// ---------------------------------------------------------------- sum and mean

// Enough for whichever kernel the addresses, which are not known yet, allow.
template <unsigned (*axes)(const Launch&)>
size_t sum_workspace(const Launch& args) {
  const View& x = args.inputs[0];
  const ReduceGeometry g = geometry(x, axes(args));
  if (x.dtype == DType::float64) return cuda::fold_workspace<cuda::SumOfDoubles>(g);
  if (!is_floating(x.dtype)) return cuda::fold_workspace<cuda::SumOfIntegers>(g);
  return std::max(cuda::sum_workspace(g, cuda::plan_sum(g, x)), cuda::fold_workspace<cuda::SumOfFloats>(g));
}

template <unsigned (*axes)(const Launch&), bool mean>
void launch_sum(const Launch& args) {
  const View &x = args.inputs[0], &out = args.outputs[0];
  const ReduceGeometry g = geometry(x, axes(args));
  if (g.num_outputs == 0) return;
  const double divisor = mean ? static_cast<double>(g.length) : 1;
  const cudaStream_t stream = stream_of(args);
  if (x.dtype == DType::float64) {
    cuda::fold(cuda::SumOfDoubles{divisor}, g, x, out, args.workspace, stream);
  } else if (!is_floating(x.dtype)) {
    cuda::fold(cuda::SumOfIntegers{}, g, x, out, args.workspace, stream);
  } else if (const cuda::SumPlan plan = cuda::plan_sum(g, x); plan.kind != cuda::SumKind::any) {
    cuda::run_sum(plan, g, x, out, divisor, args.workspace, stream);
  } else {
    cuda::fold(cuda::SumOfFloats{1 / divisor}, g, x, out, args.workspace, stream);
  }
  cuda::check_launch("sum");
}

// ---------------------------------------------------------------- max, min, argmax

template <bool position, class Visitor>
decltype(auto) visit_extreme(DType dtype, bool largest, const Visitor& visit) {
  if (dtype == DType::float64) return visit(cuda::Extreme<double, position>{largest});
  if (dtype == DType::uint64) return visit(cuda::Extreme<uint64_t, position>{largest});
  return is_floating(dtype) ? visit(cuda::Extreme<float, position>{largest})
                            : visit(cuda::Extreme<int64_t, position>{largest});
}

template <bool position>
ReduceGeometry extreme_geometry(const Launch& args) {
  return geometry(args.inputs[0], axes_of(args), position ? ReduceOrder::logical : ReduceOrder::by_stride);
}

template <bool position>
size_t extreme_workspace(const Launch& args) {
  const ReduceGeometry g = extreme_geometry<position>(args);
  return visit_extreme<position>(args.inputs[0].dtype, true,
                                 [&](auto fold) { return cuda::fold_workspace<decltype(fold)>(g); });
}

template <bool position, bool largest>
void launch_extreme(const Launch& args) {
  const ReduceGeometry g = extreme_geometry<position>(args);
  visit_extreme<position>(args.inputs[0].dtype, largest, [&](auto fold) {
    cuda::fold(fold, g, args.inputs[0], args.outputs[0], args.workspace, stream_of(args));
  });
  cuda::check_launch("max");
}

}  // namespace

void add_reduce_cuda(CudaTable& table) {
  table.add("sum", launch_sum<axes_of, false>, sum_workspace<axes_of>);
  table.add("mean", launch_sum<axes_of, true>, sum_workspace<axes_of>);
  table.add("sum_to", launch_sum<sum_to_axes, false>, sum_workspace<sum_to_axes>);
  table.add("max", launch_extreme<false, true>, extreme_workspace<false>);
  table.add("min", launch_extreme<false, false>, extreme_workspace<false>);
  table.add("argmax", launch_extreme<true, true>, extreme_workspace<true>);
  table.add("argmin", launch_extreme<true, false>, extreme_workspace<true>);
  add_statistics_cuda(table);
}

}  // namespace blutensor
