// Strided copies between a tensor and contiguous workspace, with conversion: what GEMM operands need where blublas
// cannot read or write the tensor itself (float16, and layouts that no pair of strides describes).
//
// One thread per element in row-major order of the tensor; axes that line up are merged first, so that most copies
// divide once or not at all. Bytes: one read and one write of every element (two reads where it accumulates).
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "ops/cuda/launch.h"
#include "ops/matmul/operand_cuda.h"

namespace blutensor {

namespace {

constexpr int kThreads = 256;

// The strided side: sizes and strides in elements, outermost axis first.
struct Layout {
  int rank = 0;
  int64_t numel = 1;
  int64_t shape[kMaxRank], strides[kMaxRank];
};

Layout layout_of(const View& view) {
  Layout layout;
  layout.numel = view.numel();
  for (int axis = 0; axis < view.rank(); ++axis) {
    if (view.shape[axis] == 1) continue;
    const int last = layout.rank - 1;
    if (last >= 0 && layout.strides[last] == view.strides[axis] * view.shape[axis]) {
      layout.shape[last] *= view.shape[axis];
      layout.strides[last] = view.strides[axis];
    } else {
      layout.shape[layout.rank] = view.shape[axis];
      layout.strides[layout.rank++] = view.strides[axis];
    }
  }
  return layout;
}

__device__ int64_t offset_of(const Layout& layout, int64_t element) {
  int64_t offset = 0;
  for (int axis = layout.rank - 1; axis > 0; --axis) {
    offset += element % layout.shape[axis] * layout.strides[axis];
    element /= layout.shape[axis];
  }
  return layout.rank ? offset + element * layout.strides[0] : 0;
}

// ---------------------------------------------------------------- values

// 16-bit floats compute in float, like the host's compute_t; bits that are only moved stay what they are.
template <class T>
__device__ auto widened(T value) {
  if constexpr (std::is_same_v<T, __half>)
    return __half2float(value);
  else if constexpr (std::is_same_v<T, __nv_bfloat16>)
    return __bfloat162float(value);
  else
    return value;
}

template <class To, class From>
__device__ To converted(From value) {
  if constexpr (std::is_same_v<To, __half>)
    return __float2half_rn(static_cast<float>(value));
  else if constexpr (std::is_same_v<To, __nv_bfloat16>)
    return __float2bfloat16_rn(static_cast<float>(value));
  else
    return static_cast<To>(value);
}

template <class T>
struct Tag {
  using type = T;
};

template <class F>
void visit_device_float(DType dtype, const char* op, const F& f) {
  switch (dtype) {
    case DType::float32:
      return f(Tag<float>{});
    case DType::bfloat16:
      return f(Tag<__nv_bfloat16>{});
    case DType::float16:
      return f(Tag<__half>{});
    case DType::float64:
      return f(Tag<double>{});
    default:
      fail(Status::invalid_type, "[", op, "] expected a floating-point dtype, got ", dtype_name(dtype));
  }
}

// ---------------------------------------------------------------- kernels

template <class From, class To>
__global__ void __launch_bounds__(kThreads) gather(const From* from, To* to, Layout layout) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < layout.numel; i += step)
    to[i] = converted<To>(widened(from[offset_of(layout, i)]));
}

template <class From, class To>
__global__ void __launch_bounds__(kThreads) scatter(const From* from, To* to, Layout layout, bool accumulate) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < layout.numel; i += step) {
    To& out = to[offset_of(layout, i)];
    From value = from[i];
    if (accumulate) value += static_cast<From>(widened(out));
    out = converted<To>(value);
  }
}

template <class From, class To>
void launch_gather(const View& source, void* to, void* stream) {
  const Layout layout = layout_of(source);
  gather<<<cuda::grid_for(layout.numel, kThreads), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      source.ptr<const From>(), static_cast<To*>(to), layout);
  cuda::check_launch("copy");
}

template <class From, class To>
void launch_scatter(const void* from, const View& to, bool accumulate, void* stream) {
  const Layout layout = layout_of(to);
  scatter<<<cuda::grid_for(layout.numel, kThreads), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      static_cast<const From*>(from), to.ptr<To>(), layout, accumulate);
  cuda::check_launch("store");
}

}  // namespace

void copy_to_contiguous_cuda(const View& source, void* to, DType dtype, void* stream) {
  if (source.numel() == 0) return;
  if (source.dtype == dtype) {
    switch (dtype_size(dtype)) {  // bits, whatever they mean
      case 8:
        return launch_gather<uint64_t, uint64_t>(source, to, stream);
      case 4:
        return launch_gather<uint32_t, uint32_t>(source, to, stream);
      case 2:
        return launch_gather<uint16_t, uint16_t>(source, to, stream);
      default:
        return launch_gather<uint8_t, uint8_t>(source, to, stream);
    }
  }
  visit_device_float(source.dtype, "copy", [&](auto from_tag) {
    visit_device_float(dtype, "copy", [&](auto to_tag) {
      using From = typename decltype(from_tag)::type;
      using To = typename decltype(to_tag)::type;
      if constexpr (!std::is_same_v<From, To>) launch_gather<From, To>(source, to, stream);
    });
  });
}

void store_contiguous_cuda(const void* from, DType dtype, const View& to, bool accumulate, void* stream) {
  if (to.numel() == 0) return;
  visit_device_float(to.dtype, "store", [&](auto tag) {
    using To = typename decltype(tag)::type;
    if (dtype == DType::float64)
      launch_scatter<double, To>(from, to, accumulate, stream);
    else
      launch_scatter<float, To>(from, to, accumulate, stream);
  });
}

}  // namespace blutensor
