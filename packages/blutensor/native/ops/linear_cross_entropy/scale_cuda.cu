// target = source * scale, or target += source * scale, with a scale that lives on the device.
//
// Bytes: one read of source, one write of target, one read more where it accumulates.
#include "ops/cuda/vector.cuh"
#include "ops/linear_cross_entropy/rows_cuda.h"

namespace blutensor {

using namespace cuda;

namespace {

constexpr int kThreads = 256, kPacksPerThread = 4;

struct Scale {
  const void* data;
  DType dtype;
};

// float32 on both sides, in packs.
__global__ void __launch_bounds__(kThreads)
    scale_packs(const float* source, const Scale scale, float* target, int64_t packs, bool accumulate) {
  const float factor = load_element<float>(scale.data, 0, scale.dtype);
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
#pragma unroll kPacksPerThread
  for (int64_t k = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; k < packs; k += step) {
    Pack<float, 4> v = load_pack_streaming<4>(source + 4 * k);
    Pack<float, 4> old = {};
    if (accumulate) old = load_pack<4>(target + 4 * k);
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = accumulate ? old[i] + v[i] * factor : v[i] * factor;
    store_pack(target + 4 * k, v);
  }
}

template <class C>
__global__ void __launch_bounds__(kThreads) scale_any(const void* source, DType from, const Scale scale, void* target,
                                                      DType to, int64_t begin, int64_t numel, bool accumulate) {
  const C factor = load_element<C>(scale.data, 0, scale.dtype);
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t k = begin + static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; k < numel; k += step) {
    const C v = load_element<C>(source, k, from) * factor;
    store_element<C>(target, k, to, accumulate ? load_element<C>(target, k, to) + v : v);
  }
}

void scale_into(const View& source, const View& scale_view, const View& target, bool accumulate, Execution& run) {
  const void* from = run.contiguous(source, source.dtype);
  const DType compute = accumulation_dtype(source.dtype);
  const bool direct = target.contiguous();
  const int64_t numel = target.numel();
  const Matrix copy = direct ? Matrix{} : run.scratch(1, numel, compute);
  if (run.dry() || numel == 0) return;
  void* to = direct ? target.data : copy.data;
  const DType to_dtype = direct ? target.dtype : compute;
  const bool adds = direct && accumulate;
  const Scale scale{scale_view.data, scale_view.dtype};
  const auto stream = static_cast<cudaStream_t>(run.stream());
  int64_t done = 0;
  if (source.dtype == DType::float32 && to_dtype == DType::float32 && is_aligned(from, 16) && is_aligned(to, 16) &&
      numel >= 4) {
    const int64_t packs = numel / 4;
    scale_packs<<<grid_for(packs, kThreads * kPacksPerThread, 16), kThreads, 0, stream>>>(
        static_cast<const float*>(from), scale, static_cast<float*>(to), packs, adds);
    check_launch("linear_cross_entropy_scale");
    done = packs * 4;
  }
  if (done < numel) {
    const unsigned blocks = grid_for(numel - done, kThreads);
    if (compute == DType::float64)
      scale_any<double><<<blocks, kThreads, 0, stream>>>(from, source.dtype, scale, to, to_dtype, done, numel, adds);
    else
      scale_any<float><<<blocks, kThreads, 0, stream>>>(from, source.dtype, scale, to, to_dtype, done, numel, adds);
    check_launch("linear_cross_entropy_scale");
  }
  if (!direct) run.store(copy, target, accumulate);
}

}  // namespace

void scale_cuda(const Launch& launch, Execution& run) {
  scale_into(launch.inputs[0], launch.inputs[1], launch.outputs[0], false, run);
}
void scale_in_place_cuda(const Launch& launch, Execution& run) {
  scale_into(launch.inputs[1], launch.inputs[2], launch.inputs[0], launch.attrs.b(0), run);
}

}  // namespace blutensor
