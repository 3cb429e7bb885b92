// Indexing by arrays of integers and by masks on CUDA.
//
// Offsets of the places that indices name are formed first, in workspace; an index out of range is reported
// (ops/cuda/report.h), and its place read as the first element, or not written. Then a thread moves one element, or 16
// bytes of a contiguous run. scatter_ sorts the places (embedding/sort_cuda.cu): of several values for one place only
// the last is written, whatever the order in which blocks run.
// Bytes: what is read and written, and 8 for each place (scatter_: 40).
#include <limits>

#include "ops/copy/copy.h"
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/report.h"
#include "ops/cuda/row_major.cuh"
#include "ops/cuda/table.h"
#include "ops/embedding/embedding_cuda.h"
#include "ops/indexing/along_axis_cuda.h"
#include "ops/indexing/indexing.h"

namespace blutensor {

using namespace cuda;

namespace {

constexpr int kThreads = 256;
constexpr int64_t kNoPlace = std::numeric_limits<int64_t>::min();

// ---------------------------------------------------------------- places

struct Places {
  int count = 0;  // of indices
  const void* data[kMaxRank];
  DType dtype[kMaxRank];
  int64_t size[kMaxRank], stride[kMaxRank];
  StridedIndex<1> at[kMaxRank];
  int64_t places;
  int64_t* out;
  Report* slot;
};

__global__ void __launch_bounds__(kThreads) find_places(const __grid_constant__ Places p) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t b = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; b < p.places; b += step) {
    int64_t place = 0;
    for (int k = 0; k < p.count; ++k) {
      int64_t offset[1] = {};
      p.at[k].add_offsets(b, offset);
      const int64_t value = load_element<int64_t>(p.data[k], offset[0], p.dtype[k]);
      if (value < -p.size[k] || value >= p.size[k]) {
        report(p.slot, ReportCode::index, value, p.size[k]);
        place = kNoPlace;
      }
      if (place != kNoPlace) place += (value < 0 ? value + p.size[k] : value) * p.stride[k];
    }
    p.out[b] = place;
  }
}

void launch_places(std::span<const View> indices, const Shape& sizes, const Strides& strides, const Shape& shape,
                   int64_t* out, cudaStream_t stream) {
  Places p;
  p.count = static_cast<int>(indices.size());
  for (int k = 0; k < p.count; ++k) {
    const View index = broadcast_index(indices[static_cast<size_t>(k)], shape);
    p.data[k] = index.data;
    p.dtype[k] = index.dtype;
    p.size[k] = sizes[k];
    p.stride[k] = strides[k];
    p.at[k] = row_major_index<1>(shape, {index.strides});
  }
  p.places = num_elements(shape);
  p.out = out;
  p.slot = report_slot();
  if (p.places == 0) return;
  find_places<<<grid_for(p.places, kThreads), kThreads, 0, stream>>>(p);
  check_launch("index");
}

void launch_positions(const Launch& launch) {
  const Shape& sizes = launch.attrs.ints(0);
  launch_places(launch.inputs, sizes, contiguous_strides(sizes), launch.outputs[0].shape,
                launch.outputs[0].ptr<int64_t>(), stream_of(launch));
}

// ---------------------------------------------------------------- gather

struct Gather {
  const int64_t* offsets;  // of places, in words
  WideDivider width, places;
  StridedIndex<1> outer, inner;
  int64_t total;  // words
};

template <class Word>
__global__ void __launch_bounds__(kThreads)
    gather_words(const Word* x, Word* out, const __grid_constant__ Gather p, int64_t elements) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t n = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; n < p.total; n += step) {
    const auto row = static_cast<int64_t>(p.width.divide(static_cast<uint64_t>(n))),
               outer = static_cast<int64_t>(p.places.divide(static_cast<uint64_t>(row)));
    int64_t offset[1] = {};
    p.outer.add_offsets(outer, offset);
    p.inner.add_offsets(n - row * static_cast<int64_t>(p.width.divisor), offset);
    const int64_t place = p.offsets[row - outer * static_cast<int64_t>(p.places.divisor)];
    out[n] = x[offset[0] + (place == kNoPlace ? 0 : place / elements)];
  }
}

// Strides in words of `elements` elements.
Strides in_words(Strides strides, int64_t elements) {
  for (int64_t i = 0; i < strides.size(); ++i) strides[static_cast<int>(i)] /= elements;
  return strides;
}

bool multiples_of(const View& view, int64_t elements) {
  for (int axis = 0; axis < view.rank(); ++axis)
    if (view.shape[axis] > 1 && view.strides[axis] % elements != 0) return false;
  return true;
}

template <class Use>
void visit_word(int64_t bytes, const Use& use) {
  switch (bytes) {
    case 16:
      return use(TypeTag<uint4>{});
    case 8:
      return use(TypeTag<uint64_t>{});
    case 4:
      return use(TypeTag<uint32_t>{});
    case 2:
      return use(TypeTag<uint16_t>{});
    default:
      return use(TypeTag<uint8_t>{});
  }
}

void gather(const Launch& launch, Execution& run) {
  const View &x = launch.inputs[0], &out = launch.outputs[0];
  const auto indices = launch.inputs.subspan(1);
  const int axis = normalize_axis(launch.attrs.i(0), x.rank(), "gather");
  const IndexedParts parts = indexed_parts(x, axis, static_cast<int>(indices.size()));
  const Shape shape = index_shape(indices, "gather");
  auto* offsets = run.take<int64_t>(num_elements(shape));
  if (run.dry()) return;
  launch_places(indices, parts.indexed.shape, parts.indexed.strides, shape, offsets, stream_of(launch));
  if (out.numel() == 0 || x.numel() == 0) return;  // nothing to read: every index was wrong
  const auto size = static_cast<int64_t>(dtype_size(x.dtype)), per_pack = 16 / size, width = parts.inner.numel();
  const bool packs = parts.inner.contiguous() && width % per_pack == 0 && multiples_of(parts.outer, per_pack) &&
                     multiples_of(parts.indexed, per_pack) && is_aligned(x.data, 16) && is_aligned(out.data, 16);
  const int64_t elements = packs ? per_pack : 1, words = width / elements;
  Gather p;
  p.offsets = offsets;
  p.width = WideDivider(static_cast<uint64_t>(words));
  p.places = WideDivider(static_cast<uint64_t>(num_elements(shape)));
  p.outer = row_major_index<1>(parts.outer.shape, {in_words(parts.outer.strides, elements)});
  p.inner =
      packs ? row_major_index<1>({words}, {Strides{1}}) : row_major_index<1>(parts.inner.shape, {parts.inner.strides});
  p.total = out.numel() / elements;
  visit_word(size * elements, [&](auto tag) {
    using Word = typename decltype(tag)::type;
    gather_words<<<grid_for(p.total, kThreads), kThreads, 0, stream_of(launch)>>>(x.ptr<const Word>(), out.ptr<Word>(),
                                                                                  p, elements);
    check_launch("gather");
  });
}

// ---------------------------------------------------------------- scatter_

struct Scatter {
  const SortedPosition* sorted;
  WideDivider width, places;
  StridedIndex<2> outer, inner;     // of x, of values
  StridedIndex<1> indexed, source;  // a place in x, a position in values
  int64_t total;
};

template <class Word>
__global__ void __launch_bounds__(kThreads)
    scatter_words(Word* x, const Word* values, const __grid_constant__ Scatter p) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t n = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; n < p.total; n += step) {
    const auto row = static_cast<int64_t>(p.width.divide(static_cast<uint64_t>(n))),
               outer = static_cast<int64_t>(p.places.divide(static_cast<uint64_t>(row)));
    const SortedPosition place = p.sorted[row - outer * static_cast<int64_t>(p.places.divisor)];
    if (place.index + 1 != place.count) continue;  // not the last, or a wrong index
    int64_t offset[2] = {}, to[1] = {}, from[1] = {};
    p.outer.add_offsets(outer, offset);
    p.inner.add_offsets(n - row * static_cast<int64_t>(p.width.divisor), offset);
    p.indexed.add_offsets(place.id, to);
    p.source.add_offsets(place.position, from);
    x[offset[0] + to[0]] = values[offset[1] + from[0]];
  }
}

void scatter(const Launch& launch, Execution& run) {
  const View& x = launch.inputs[0];
  const auto indices = launch.inputs.subspan(2);
  const int axis = normalize_axis(launch.attrs.i(0), x.rank(), "scatter_");
  const IndexedParts parts = indexed_parts(x, axis, static_cast<int>(indices.size()));
  const Shape shape = index_shape(indices, "scatter_");
  const int64_t places = num_elements(shape), limit = parts.indexed.numel();
  require(places < (int64_t{1} << 31) && limit < (int64_t{1} << 31),
          "[scatter_] expected fewer than 2^31 indices and places, got ", places, " and ", limit);
  auto* positions = run.take<int64_t>(places);
  auto* sorted = run.take<SortedPosition>(places);
  void* scratch = run.take(sort_scratch_bytes(places));
  if (run.dry() || places == 0) return;
  check_written(x, launch.inputs[1], "scatter_");
  launch_places(indices, parts.indexed.shape, contiguous_strides(parts.indexed.shape), shape, positions,
                stream_of(launch));
  if (x.numel() == 0) return;
  sort_positions(positions, DType::int64, places, limit, scratch, sorted, {nullptr, 0}, false, launch.stream);
  const View values = broadcast_index(launch.inputs[1], joined(parts.outer.shape, shape, parts.inner.shape));
  const IndexedParts sources = indexed_parts(values, axis, shape.size());
  Scatter p;
  p.sorted = sorted;
  p.width = WideDivider(static_cast<uint64_t>(parts.inner.numel()));
  p.places = WideDivider(static_cast<uint64_t>(places));
  p.outer = row_major_index<2>(parts.outer.shape, {parts.outer.strides, sources.outer.strides});
  p.inner = row_major_index<2>(parts.inner.shape, {parts.inner.strides, sources.inner.strides});
  p.indexed = row_major_index<1>(parts.indexed.shape, {parts.indexed.strides});
  p.source = row_major_index<1>(shape, {sources.indexed.strides});
  p.total = values.numel();
  visit_word(static_cast<int64_t>(dtype_size(x.dtype)), [&](auto tag) {
    using Word = typename decltype(tag)::type;
    scatter_words<<<grid_for(p.total, kThreads), kThreads, 0, stream_of(launch)>>>(x.ptr<Word>(),
                                                                                   values.ptr<const Word>(), p);
    check_launch("scatter_");
  });
}

// ---------------------------------------------------------------- nonzero_indices

constexpr int kCountThreads = 1024;
constexpr int64_t kMaxParts = 1024;

// Part `blockIdx.x` of the mask, whose elements a block goes through 1024 at a time.
__device__ inline int64_t part_begin(int64_t total, int64_t part) {
  const int64_t per_part = (total + gridDim.x - 1) / gridDim.x;
  return min(total, part * per_part);
}

struct Sizes {
  int rank;
  int64_t size[kMaxRank];
};

__global__ void __launch_bounds__(kCountThreads) count_true(const uint8_t* mask, int64_t total, int64_t* counts) {
  __shared__ int64_t shared[kCountThreads / kWarpSize];
  int64_t count = 0;
  const int64_t end = part_begin(total, blockIdx.x + 1);
  for (int64_t i = part_begin(total, blockIdx.x) + threadIdx.x; i < end; i += kCountThreads) count += mask[i] != 0;
  count = block_sum<kCountThreads>(count, shared);
  if (threadIdx.x == 0) counts[blockIdx.x] = count;
}

__global__ void __launch_bounds__(kCountThreads)
    write_true(const uint8_t* mask, int64_t total, const int64_t* counts, int64_t* out, int64_t room,
               const __grid_constant__ Sizes sizes) {
  __shared__ int64_t shared[kCountThreads / kWarpSize];
  __shared__ int warps[kCountThreads / kWarpSize];
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize, warp = static_cast<int>(threadIdx.x) / kWarpSize;
  // Parts are at most as many as threads.
  int64_t before = block_sum<kCountThreads>(threadIdx.x < blockIdx.x ? counts[threadIdx.x] : int64_t{0}, shared);
  const int64_t begin = part_begin(total, blockIdx.x), end = part_begin(total, blockIdx.x + 1);
  for (int64_t first = begin; first < end; first += kCountThreads) {
    const int64_t i = first + threadIdx.x;
    const bool yes = i < end && mask[i] != 0;
    const unsigned votes = __ballot_sync(kAllLanes, yes);
    if (lane == 0) warps[warp] = __popc(votes);
    __syncthreads();
    int64_t at = before + __popc(votes & ((1u << lane) - 1));
    for (int w = 0; w < kCountThreads / kWarpSize; ++w) {
      at += w < warp ? warps[w] : 0;
      before += warps[w];
    }
    if (yes && at < room) {
      int64_t rest = i;
      for (int axis = sizes.rank - 1; axis >= 0; --axis) {
        out[axis * room + at] = rest % sizes.size[axis];
        rest /= sizes.size[axis];
      }
    }
    __syncthreads();
  }
}

void nonzero(const Launch& launch, Execution& run) {
  const View& mask = launch.inputs[0];
  const int64_t total = mask.numel(), parts = std::clamp<int64_t>(total / 4096, 1, kMaxParts);
  const auto* bytes = static_cast<const uint8_t*>(run.contiguous(mask, mask.dtype));
  auto* counts = run.take<int64_t>(parts);
  if (run.dry() || total == 0) return;
  const auto blocks = static_cast<unsigned>(parts);
  count_true<<<blocks, kCountThreads, 0, stream_of(launch)>>>(bytes, total, counts);
  check_launch("nonzero_indices");
  Sizes sizes{mask.rank(), {}};
  std::copy(mask.shape.begin(), mask.shape.end(), sizes.size);
  write_true<<<blocks, kCountThreads, 0, stream_of(launch)>>>(bytes, total, counts, launch.outputs[0].ptr<int64_t>(),
                                                              launch.attrs.i(0), sizes);
  check_launch("nonzero_indices");
}

}  // namespace

void add_indexing_cuda(CudaTable& table) {
  table.add("gather", launch_of<gather>, workspace_of<gather>);
  table.add("scatter_", launch_of<scatter>, workspace_of<scatter>);
  table.add("index_positions", launch_positions);
  table.add("nonzero_indices", launch_of<nonzero>, workspace_of<nonzero>);
  table.add("take_along_axis", take_along_axis_cuda);
  table.add("take_along_axis_backward", launch_of<take_along_axis_backward_cuda>,
            workspace_of<take_along_axis_backward_cuda>);
}

}  // namespace blutensor
