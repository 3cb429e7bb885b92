// rotary_embedding on CUDA: x [rows, D] in any strides to y [rows, D], row-major.
//
// A thread takes kWidth neighbouring channels of one row and those half a head on. Angles are formed in double, reduced
// to a fraction of a turn there, and only then become float: positions of any size keep float32's accuracy.
// Bytes: 2 rows D elements. FLOPs: some 40 for each pair of channels, of which 4 in double.
#include "ops/cuda/row_major.cuh"
#include "ops/cuda/table.h"
#include "ops/rotary/rotary.h"

namespace blutensor {

using namespace cuda;

namespace {

constexpr int kThreads = 256;

template <class T>
struct Rotary {
  const T* x;
  T* y;
  const void* positions;  // null: counted along T
  DType position_dtype;
  StridedIndex<2> rows;  // x, positions
  int64_t count;         // of rows
  int64_t col_stride, position_length;
  int half;
  bool inverse;
  double frequency[kRotaryMaxHeadDim / 2];
};

__device__ inline void sine_cosine(double angle, float* sine, float* cosine) {
  const double turns = angle * 0.15915494309189533577;
  sincospif(2.0f * static_cast<float>(turns - rint(turns)), sine, cosine);
}
__device__ inline void sine_cosine(double angle, double* sine, double* cosine) { sincos(angle, sine, cosine); }

template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads) rotary_embedding(const __grid_constant__ Rotary<T> p) {
  using C = device_compute_t<T>;
  const int pieces = p.half / kWidth;
  const int64_t total = p.count * pieces, step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t n = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; n < total; n += step) {
    const int64_t row = n / pieces;
    const int first = static_cast<int>(n - row * pieces) * kWidth;
    int64_t offset[2] = {};
    p.rows.add_offsets(row, offset);
    const double position = static_cast<double>(
        p.positions ? load_element<int64_t>(p.positions, offset[1], p.position_dtype) : row % p.position_length);
    const T* x = p.x + offset[0];
    T* y = p.y + row * 2 * p.half;
    Pack<C, kWidth> a, b;
    if constexpr (kWidth > 1) {
      a = convert_pack<C>(load_pack<kWidth>(x + first));
      b = convert_pack<C>(load_pack<kWidth>(x + first + p.half));
    } else {
      a[0] = convert<C>(x[first * p.col_stride]);
      b[0] = convert<C>(x[(first + p.half) * p.col_stride]);
    }
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      C sine, cosine;
      sine_cosine(position * p.frequency[first + i], &sine, &cosine);
      if (p.inverse) sine = -sine;
      const C left = a[i], right = b[i];
      a[i] = left * cosine - right * sine;
      b[i] = right * cosine + left * sine;
    }
    store_pack(y + first, convert_pack<T>(a));
    store_pack(y + first + p.half, convert_pack<T>(b));
  }
}

void launch_rotary(const Launch& launch) {
  const View &x = launch.inputs[0], &y = launch.outputs[0];
  if (y.numel() == 0) return;
  const View positions = rotary_positions(launch.inputs[1], x);
  const Shape rows = rotary_rows(x.shape);
  Strides row_strides = x.strides;
  row_strides.resize(rows.size());
  const int64_t half = x.shape.back() / 2;
  const RotaryFrequencies frequency = rotary_frequencies(launch.attrs.f(kRotaryBase), 2 * half);
  visit_device_floating(x.dtype, "rotary_embedding", [&](auto tag) {
    using T = typename decltype(tag)::type;
    Rotary<T> p{x.ptr<const T>(),
                y.ptr<T>(),
                launch.inputs[1].defined() ? launch.inputs[1].data : nullptr,
                launch.inputs[1].dtype,
                row_major_index<2>(rows, {row_strides, positions.strides}),
                num_elements(rows),
                x.strides.back(),
                x.shape[x.rank() - 2],
                static_cast<int>(half),
                launch.attrs.b(kRotaryInverse),
                {}};
    std::copy_n(frequency.begin(), half, p.frequency);
    constexpr int kWidth = kPackOf<T>;
    bool packs = half % kWidth == 0 && p.col_stride == 1 && is_aligned(x.data, 16) && is_aligned(y.data, 16);
    for (int axis = 0; axis < rows.size(); ++axis)
      packs = packs && (rows[axis] == 1 || row_strides[axis] % kWidth == 0);
    const unsigned blocks = grid_for(p.count * half / (packs ? kWidth : 1), kThreads);
    if (packs)
      rotary_embedding<T, kWidth><<<blocks, kThreads, 0, stream_of(launch)>>>(p);
    else
      rotary_embedding<T, 1><<<blocks, kThreads, 0, stream_of(launch)>>>(p);
    check_launch("rotary_embedding");
  });
}

}  // namespace

void add_rotary_cuda(CudaTable& table) { table.add("rotary_embedding", launch_rotary); }

}  // namespace blutensor
