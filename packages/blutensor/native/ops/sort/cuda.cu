// argsort and searchsorted on the device.
//
// argsort is a merge sort of positions: runs of 1, 2, 4, ... are merged pairwise, one launch per doubling. Every element
// finds its place in the merged run by itself: its place in its own run, and by binary search how many of the other run
// come before it. Equal elements keep their order, so the result depends on nothing but the values.
// Bytes: n log2(n) positions read and written, n log2(n)^2 / 2 keys; no atomics.
#include "ops/copy/cuda_copy.h"
#include "ops/cuda/table.h"
#include "ops/cuda/vector.cuh"
#include "ops/scan/scan.h"

namespace blutensor {

namespace {

constexpr int kThreads = 256;

template <class Visitor>
decltype(auto) visit_key(DType dtype, const Visitor& visit) {
  if (is_floating(dtype)) return visit(TypeTag<double>{});
  return dtype == DType::uint64 ? visit(TypeTag<uint64_t>{}) : visit(TypeTag<int64_t>{});
}
// NaN comes behind all numbers.
template <class Key>
__device__ bool before(Key a, Key b) {
  return a < b || (b != b && a == a);
}

// Element i of line l of an operand.
struct Operand {
  void* data;
  DType dtype;
  cuda::StridedIndex<1> start;
  int64_t step;
  template <class Key>
  __device__ Key load(int64_t line, int64_t i) const {
    int64_t base[1] = {};
    start.add_offsets(line, base);
    return cuda::load_element<Key>(data, base[0] + i * step, dtype);
  }
};

Operand operand(const View& x, const Lines& lines) {
  Iteration it;
  it.num_operands = 1;
  it.numel = lines.count;
  for (int axis = x.rank() - 1; axis >= 0; --axis) {
    if (axis == lines.axis) continue;
    const auto next = static_cast<size_t>(it.rank++);
    it.extent[next] = x.shape[axis];
    it.stride[0][next] = x.strides[axis];
  }
  if (it.rank == 0) {
    it.rank = 1;
    it.extent[0] = 1;
  }
  return {x.data, x.dtype, cuda::StridedIndex<1>(it), x.strides[lines.axis]};
}

// from, to: [lines, length] positions; from: nullptr for 0, 1, 2, ...
template <class Key>
__global__ void __launch_bounds__(kThreads) merge(Operand x, const int64_t* from, int64_t* to, int64_t num_lines,
                                                  int64_t length, int64_t run, bool descending) {
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t n = int64_t{blockIdx.x} * kThreads + threadIdx.x; n < num_lines * length; n += step) {
    const int64_t line = n / length, i = n - line * length;
    const int64_t* positions = from ? from + line * length : nullptr;
    const auto position = [&](int64_t k) { return positions ? positions[k] : k; };
    const int64_t mine = position(i);
    const Key key = x.load<Key>(line, mine);
    const int64_t first = i / (2 * run) * 2 * run;
    const bool second_run = i - first >= run;
    const int64_t begin = second_run ? first : (first + run < length ? first + run : length);
    const int64_t end = second_run ? first + run : (first + 2 * run < length ? first + 2 * run : length);
    int64_t low = begin, high = end;
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      const Key other = x.load<Key>(line, position(middle));
      const bool precedes = descending ? before(key, other) : before(other, key);
      const bool follows = descending ? before(other, key) : before(key, other);
      if (precedes || (second_run && !follows))  // of equals the first run's come first
        low = middle + 1;
      else
        high = middle;
    }
    const int64_t own = second_run ? i - (first + run) : i - first;
    to[line * length + first + own + (low - begin)] = mine;
  }
}

int num_merges(int64_t length) {
  int count = 1;  // a line of one element is written too
  while ((int64_t{1} << count) < length) ++count;
  return count;
}

void launch_argsort(const Launch& args) {
  const View &x = args.inputs[0], &out = args.outputs[0];
  const Lines lines(x.shape, args.attrs.i(0), "argsort");
  if (lines.count == 0) return;
  const cudaStream_t stream = cuda::stream_of(args);
  auto* buffers = static_cast<int64_t*>(args.workspace);
  const int64_t numel = lines.count * lines.length;
  const int merges = num_merges(lines.length);
  int64_t* from = nullptr;
  visit_key(x.dtype, [&](auto tag) {
    using Key = typename decltype(tag)::type;
    for (int k = 0; k < merges; ++k) {
      int64_t* to = buffers + (k % 2) * numel;
      merge<Key><<<cuda::grid_for(numel, kThreads), kThreads, 0, stream>>>(
          operand(x, lines), from, to, lines.count, lines.length, int64_t{1} << k, args.attrs.b(1));
      cuda::check_launch("argsort");
      from = to;
    }
  });
  // [lines, length] to the layout of the result.
  View sorted = out;
  sorted.data = from;
  Dims strides = Dims::filled(out.rank(), 1);
  int64_t stride = lines.length;
  for (int axis = out.rank() - 1; axis >= 0; --axis) {
    if (axis == lines.axis) continue;
    strides[axis] = stride;
    stride *= out.shape[axis];
  }
  sorted.strides = strides;
  cuda::copy_view(out, sorted, stream);
}

template <class Key>
__global__ void __launch_bounds__(kThreads)
    search(const void* sorted, DType sorted_dtype, int64_t sorted_step, int64_t length, const void* values,
           DType values_dtype, cuda::StridedIndex<2> index, int64_t* out, int64_t numel, bool right) {
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < numel; i += step) {
    int64_t offset[2] = {};
    index.add_offsets(i, offset);
    const Key value = cuda::load_element<Key>(values, offset[1], values_dtype);
    int64_t low = 0, high = length;
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      const Key key = cuda::load_element<Key>(sorted, middle * sorted_step, sorted_dtype);
      if (right ? !before(value, key) : before(key, value))
        low = middle + 1;
      else
        high = middle;
    }
    out[offset[0]] = low;
  }
}

void launch_searchsorted(const Launch& args) {
  const View &sorted = args.inputs[0], &values = args.inputs[1], &out = args.outputs[0];
  const View* views[] = {&out, &values};
  const Iteration it = make_iteration(out.shape, views);
  if (it.numel == 0) return;
  visit_key(promote(sorted.dtype, values.dtype), [&](auto tag) {
    using Key = typename decltype(tag)::type;
    search<Key><<<cuda::grid_for(it.numel, kThreads), kThreads, 0, cuda::stream_of(args)>>>(
        sorted.data, sorted.dtype, sorted.strides[0], sorted.shape[0], values.data, values.dtype,
        cuda::StridedIndex<2>(it), out.ptr<int64_t>(), it.numel, args.attrs.s(0) == "right");
  });
  cuda::check_launch("searchsorted");
}

}  // namespace

void add_sort_cuda(CudaTable& table) {
  table.add("argsort", launch_argsort,
            [](const Launch& args) { return 2 * static_cast<size_t>(args.inputs[0].numel()) * sizeof(int64_t); });
  table.add("searchsorted", launch_searchsorted);
}

}  // namespace blutensor
