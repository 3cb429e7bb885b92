// full and arange on the device. The value of full is an argument of the kernel: nothing is copied from the host.
#include "ops/copy/cuda_copy.h"
#include "ops/cuda/table.h"
#include "ops/cuda/vector.cuh"
#include "ops/kernels.h"

namespace blutensor {

namespace {

constexpr int kThreads = 256;

void launch_full(const Launch& args) {
  const View& out = args.outputs[0];
  const double value = args.attrs.f(1);
  alignas(8) unsigned char element[8];
  kernels().copy.from_to(DType::float64, out.dtype)(1, element, 1, &value, 0);
  cuda::fill_view(out, element, cuda::stream_of(args));
}

void launch_full_integer(const Launch& args) {
  const int64_t value = args.attrs.i(1);
  alignas(8) unsigned char element[8];
  kernels().copy.from_to(DType::int64, args.outputs[0].dtype)(1, element, 1, &value, 0);
  cuda::fill_view(args.outputs[0], element, cuda::stream_of(args));
}

__global__ void __launch_bounds__(kThreads) arange(void* out, DType dtype, int64_t length, double start, double step) {
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < length; i += stride)
    cuda::store_element<double>(out, i, dtype, __dadd_rn(start, __dmul_rn(static_cast<double>(i), step)));
}

void launch_arange(const Launch& args) {
  const View& out = args.outputs[0];
  const int64_t length = out.numel();
  if (length == 0) return;
  arange<<<cuda::grid_for(length, kThreads), kThreads, 0, cuda::stream_of(args)>>>(out.data, out.dtype, length,
                                                                                   args.attrs.f(0), args.attrs.f(2));
  cuda::check_launch("arange");
}

}  // namespace

void add_creation_cuda(CudaTable& table) {
  table.add("full", launch_full);
  table.add("full_integer", launch_full_integer);
  table.add("arange", launch_arange);
}

}  // namespace blutensor
