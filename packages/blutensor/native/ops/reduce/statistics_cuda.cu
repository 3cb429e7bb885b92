// Products, counts, variances and log-sum-exp on the device: the folds of folds.cuh over any operand.
#include "ops/cuda/table.h"
#include "ops/reduce/fold_any.cuh"
#include "ops/reduce/folds.cuh"
#include "ops/reduce/sum_cuda.h"

namespace blutensor {

namespace {

ReduceGeometry geometry(const Launch& args) {
  const View& x = args.inputs[0];
  return make_geometry(x.shape, x.strides, reduced_axes(args.attrs[0], x.rank(), "reduce"), ReduceOrder::by_stride);
}

template <class Fold>
size_t workspace(const Launch& args) {
  return cuda::fold_workspace<Fold>(geometry(args));
}

template <class Fold>
void run(Fold fold, const ReduceGeometry& g, const Launch& args) {
  cuda::fold(fold, g, args.inputs[0], args.outputs[0], args.workspace, cuda::stream_of(args));
  cuda::check_launch("reduce");
}

template <bool root>
void launch_variance(const Launch& args) {
  const ReduceGeometry g = geometry(args);
  run(cuda::Moments{std::max(0.0, static_cast<double>(g.length) - args.attrs.f(2)), root}, g, args);
}

void launch_product(const Launch& args) {
  if (is_floating(args.inputs[0].dtype)) return run(cuda::ProductOfFloats{}, geometry(args), args);
  run(cuda::ProductOfIntegers{}, geometry(args), args);
}

}  // namespace

void add_statistics_cuda(CudaTable& table) {
  table.add(
      "any", [](const Launch& args) { run(cuda::CountTrue{1}, geometry(args), args); }, workspace<cuda::CountTrue>);
  table.add(
      "all",
      [](const Launch& args) {
        const ReduceGeometry g = geometry(args);
        run(cuda::CountTrue{g.length}, g, args);
      },
      workspace<cuda::CountTrue>);
  table.add(
      "count_nonzero", [](const Launch& args) { run(cuda::CountTrue{}, geometry(args), args); },
      workspace<cuda::CountTrue>);
  table.add("prod", launch_product, workspace<cuda::ProductOfFloats>);
  table.add("var", launch_variance<false>, workspace<cuda::Moments>);
  table.add("std", launch_variance<true>, workspace<cuda::Moments>);
  table.add(
      "logsumexp", [](const Launch& args) { run(cuda::LogOfSum{}, geometry(args), args); }, workspace<cuda::LogOfSum>);
}

}  // namespace blutensor
