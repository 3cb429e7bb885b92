// Cumulative sums and products on the device: a block per line, which it walks in stretches of one element per thread;
// states in float64 or 64-bit integers. The order of additions depends on the length alone.
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/table.h"
#include "ops/cuda/vector.cuh"
#include "ops/scan/scan.h"

namespace blutensor {

namespace {

constexpr int kThreads = 256;

// Where lines begin, and the step along them; a reversed line begins at its end.
struct LineIndex {
  cuda::StridedIndex<2> start;  // of operand and result, over all axes but the scanned one
  int64_t step[2] = {};
};

LineIndex line_index(const Lines& lines, const View& x, const View& out, bool reverse) {
  Iteration it;
  it.num_operands = 2;
  it.numel = lines.count;
  for (int axis = x.rank() - 1; axis >= 0; --axis) {
    if (axis == lines.axis) continue;
    const auto next = static_cast<size_t>(it.rank++);
    it.extent[next] = x.shape[axis];
    it.stride[0][next] = x.strides[axis];
    it.stride[1][next] = out.strides[axis];
  }
  if (it.rank == 0) {
    it.rank = 1;
    it.extent[0] = 1;
  }
  const int64_t sign = reverse ? -1 : 1;
  return {cuda::StridedIndex<2>(it), {sign * x.strides[lines.axis], sign * out.strides[lines.axis]}};
}

// Of element (0, ..., 0), or of the last one of the first line.
void* line_start(const View& x, const Lines& lines, bool reverse) {
  const int64_t offset = reverse ? (lines.length - 1) * x.strides[lines.axis] : 0;
  return static_cast<char*>(x.data) + offset * static_cast<int64_t>(dtype_size(x.dtype));
}

template <class State, bool product>
__device__ State join(State a, State b) {
  return product ? a * b : a + b;
}

template <class State, bool product>
__global__ void __launch_bounds__(kThreads) scan(const void* x, DType x_dtype, void* out, DType out_dtype,
                                                 LineIndex index, int64_t num_lines, int64_t length, bool exclusive) {
  constexpr int kWarps = kThreads / cuda::kWarpSize;
  __shared__ State totals[kWarps];
  const int lane = static_cast<int>(threadIdx.x) % cuda::kWarpSize,
            warp = static_cast<int>(threadIdx.x) / cuda::kWarpSize;
  const State nothing = product ? State(1) : State(0);
  for (int64_t line = blockIdx.x; line < num_lines; line += gridDim.x) {
    int64_t base[2] = {};
    index.start.add_offsets(line, base);
    State carried = nothing;
    for (int64_t first = 0; first < length; first += kThreads) {
      const int64_t i = first + threadIdx.x;
      State value = i < length ? cuda::load_element<State>(x, base[0] + i * index.step[0], x_dtype) : nothing;
      for (int distance = 1; distance < cuda::kWarpSize; distance *= 2) {
        const State before = __shfl_up_sync(cuda::kAllLanes, value, distance);
        if (lane >= distance) value = join<State, product>(before, value);
      }
      if (lane == cuda::kWarpSize - 1) totals[warp] = value;
      __syncthreads();
      State before = carried;
      for (int w = 0; w < warp; ++w) before = join<State, product>(before, totals[w]);
      const State previous = __shfl_up_sync(cuda::kAllLanes, value, 1);
      const State inclusive = join<State, product>(before, value);
      const State result = !exclusive ? inclusive : lane == 0 ? before : join<State, product>(before, previous);
      if (i < length) cuda::store_element<State>(out, base[1] + i * index.step[1], out_dtype, result);
      for (int w = 0; w < kWarps; ++w) carried = join<State, product>(carried, totals[w]);
      __syncthreads();
    }
  }
}

template <class State, bool product>
void run_scan(const Launch& args, const Lines& lines) {
  const View &x = args.inputs[0], &out = args.outputs[0];
  const bool reverse = args.attrs.b(1);
  scan<State, product><<<cuda::grid_for(lines.count, 1), kThreads, 0, cuda::stream_of(args)>>>(
      line_start(x, lines, reverse), x.dtype, line_start(out, lines, reverse), out.dtype,
      line_index(lines, x, out, reverse), lines.count, lines.length, args.attrs.b(2));
  cuda::check_launch("scan");
}

template <bool product>
void launch_scan(const Launch& args) {
  const Lines lines(args.inputs[0].shape, args.attrs.i(0), "scan");
  if (lines.count == 0) return;
  if (is_floating(args.inputs[0].dtype)) return run_scan<double, product>(args, lines);
  run_scan<uint64_t, product>(args, lines);
}

// A thread per line (the recurrence stands in scan.cpp); `sums` has room for every element.
__global__ void __launch_bounds__(kThreads)
    product_backward(const void* g, DType g_dtype, const void* x, DType x_dtype, void* out, DType out_dtype,
                     LineIndex g_index, LineIndex x_index, double* sums, int64_t num_lines, int64_t length,
                     bool exclusive) {
  for (int64_t line = int64_t{blockIdx.x} * kThreads + threadIdx.x; line < num_lines;
       line += int64_t{gridDim.x} * kThreads) {
    int64_t g_base[2] = {}, x_base[2] = {};
    g_index.start.add_offsets(line, g_base);
    x_index.start.add_offsets(line, x_base);
    const auto gradient_at = [&](int64_t i) {
      return cuda::load_element<double>(g, g_base[0] + i * g_index.step[0], g_dtype);
    };
    const auto factor_at = [&](int64_t i) {
      return cuda::load_element<double>(x, x_base[0] + i * x_index.step[0], x_dtype);
    };
    double sum = 0;
    for (int64_t i = length - 1; i >= 0; --i) {
      const double behind = i + 1 < length ? __dmul_rn(factor_at(i + 1), sum) : 0;
      const double own = !exclusive ? gradient_at(i) : i + 1 < length ? gradient_at(i + 1) : 0;
      sum = __dadd_rn(own, behind);
      sums[i * num_lines + line] = sum;
    }
    double before = 1;
    for (int64_t i = 0; i < length; ++i) {
      cuda::store_element<double>(out, x_base[1] + i * x_index.step[1], out_dtype, sums[i * num_lines + line] * before);
      before *= factor_at(i);
    }
  }
}

void launch_product_backward(const Launch& args) {
  const View &g = args.inputs[0], &x = args.inputs[1], &out = args.outputs[0];
  const Lines lines(x.shape, args.attrs.i(0), "cumulative_prod");
  if (lines.count == 0) return;
  const bool reverse = args.attrs.b(1);
  product_backward<<<cuda::grid_for(lines.count, kThreads), kThreads, 0, cuda::stream_of(args)>>>(
      line_start(g, lines, reverse), g.dtype, line_start(x, lines, reverse), x.dtype, line_start(out, lines, reverse),
      out.dtype, line_index(lines, g, out, reverse), line_index(lines, x, out, reverse),
      static_cast<double*>(args.workspace), lines.count, lines.length, args.attrs.b(2));
  cuda::check_launch("cumulative_prod_backward");
}

}  // namespace

void add_scan_cuda(CudaTable& table) {
  table.add("cumulative_sum", launch_scan<false>);
  table.add("cumulative_prod", launch_scan<true>);
  table.add("cumulative_prod_backward", launch_product_backward,
            [](const Launch& args) { return static_cast<size_t>(args.inputs[1].numel()) * sizeof(double); });
}

}  // namespace blutensor
