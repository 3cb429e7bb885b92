// take_along_axis on CUDA, and its gradient.
//
// Forward: a thread takes one element of out. Backward: a thread takes a line of x_grad, sets it to 0 and adds to it in
// the order of the indices; neighbouring threads have neighbouring lines, which lie side by side wherever the axis is
// not the last one. An index out of range is reported (ops/cuda/report.h); what it names counts for nothing.
// Bytes: 2 N elements and N indices; backward 3 N, and x_grad once more.
#include "ops/cuda/report.h"
#include "ops/cuda/row_major.cuh"
#include "ops/indexing/along_axis_cuda.h"

namespace blutensor {

using namespace cuda;

namespace {

constexpr int kThreads = 256;

struct Index {
  const void* data;
  DType dtype;
  int64_t size;
  Report* slot;

  // -1 where it is wrong.
  __device__ int64_t at(int64_t offset) const {
    const int64_t value = load_element<int64_t>(data, offset, dtype);
    if (value >= -size && value < size) return value < 0 ? value + size : value;
    report(slot, ReportCode::index, value, size);
    return -1;
  }
};

template <class Word>
__global__ void __launch_bounds__(kThreads)
    take_along_axis(const Word* x, int64_t axis_stride, Word* out, const __grid_constant__ Index index,
                    const __grid_constant__ StridedIndex<2> at, int64_t total) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t n = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; n < total; n += step) {
    int64_t offset[2] = {};
    at.add_offsets(n, offset);
    const int64_t i = index.at(offset[1]);
    if (index.size > 0) out[n] = x[offset[0] + (i < 0 ? 0 : i) * axis_stride];
  }
}

struct Lines {
  int64_t count, length, size;
  int64_t grad_stride, index_stride, out_stride;  // along the axis
  StridedIndex<3> at;                             // grad, indices, out
};

template <class T>
__global__ void __launch_bounds__(kThreads)
    add_along_axis(const T* grad, device_compute_t<T>* out, const __grid_constant__ Index index,
                   const __grid_constant__ Lines p) {
  using C = device_compute_t<T>;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t line = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; line < p.count; line += step) {
    int64_t offset[3] = {};
    p.at.add_offsets(line, offset);
    C* to = out + offset[2];
    for (int64_t i = 0; i < p.size; ++i) to[i * p.out_stride] = C{0};
    for (int64_t j = 0; j < p.length; ++j) {
      const int64_t i = index.at(offset[1] + j * p.index_stride);
      if (i >= 0) to[i * p.out_stride] += convert<C>(grad[offset[0] + j * p.grad_stride]);
    }
  }
}

Dims without(Dims dims, int axis) {
  dims.erase(axis);
  return dims;
}

}  // namespace

void take_along_axis_cuda(const Launch& launch) {
  const View &x = launch.inputs[0], &indices = launch.inputs[1], &out = launch.outputs[0];
  const int64_t total = out.numel();
  if (total == 0) return;
  const int axis = normalize_axis(launch.attrs.i(0), x.rank(), "take_along_axis");
  Strides x_strides = x.strides;
  x_strides[axis] = 0;
  const Index index{indices.data, indices.dtype, x.shape[axis], report_slot()};
  const StridedIndex<2> at = row_major_index<2>(out.shape, {x_strides, indices.strides});
  const auto take = [&](auto word) {
    using Word = decltype(word);
    take_along_axis<<<grid_for(total, kThreads), kThreads, 0, stream_of(launch)>>>(x.ptr<const Word>(), x.strides[axis],
                                                                                   out.ptr<Word>(), index, at, total);
    check_launch("take_along_axis");
  };
  switch (dtype_size(x.dtype)) {
    case 8:
      return take(uint64_t{});
    case 4:
      return take(uint32_t{});
    case 2:
      return take(uint16_t{});
    default:
      return take(uint8_t{});
  }
}

void take_along_axis_backward_cuda(const Launch& launch, Execution& run) {
  const View &grad = launch.inputs[0], &indices = launch.inputs[1], &out = launch.outputs[0];
  const int axis = static_cast<int>(launch.attrs.i(0));
  const DType sums = accumulation_dtype(grad.dtype);
  // 16-bit gradients are added in float32.
  const Matrix scratch =
      sums == out.dtype ? Matrix{out.data, sums, 1, out.numel(), out.numel(), 1} : run.scratch(1, out.numel(), sums);
  if (!run.dry() && out.numel() > 0) {
    const Shape lines = without(out.shape, axis);
    const Lines p{num_elements(lines),
                  grad.shape[axis],
                  out.shape[axis],
                  grad.strides[axis],
                  indices.strides[axis],
                  out.strides[axis],
                  row_major_index<3>(lines, {without(grad.strides, axis), without(indices.strides, axis),
                                             without(out.strides, axis)})};
    const Index index{indices.data, indices.dtype, p.size, report_slot()};
    visit_device_floating(grad.dtype, "take_along_axis", [&](auto tag) {
      using T = typename decltype(tag)::type;
      add_along_axis<<<grid_for(p.count, kThreads), kThreads, 0, stream_of(launch)>>>(
          grad.ptr<const T>(), static_cast<device_compute_t<T>*>(scratch.data), index, p);
      check_launch("take_along_axis_backward");
    });
  }
  if (scratch.data != out.data) run.store(scratch, out);
}

}  // namespace blutensor
