// Copies that keep the dtype, and fills: words of 1 to 16 bytes moved between strided views.
//
// copy_words: the widest word that sizes, strides and addresses allow; contiguous runs move 16 bytes at a time, four
// loads in flight. copy_tiles: where source and destination are contiguous along different axes, 32 x 32 (or 64 x 64
// for 1 and 2 bytes) elements go through shared memory, so that both sides are read and written in whole sectors.
// Bytes: twice those of the destination. Benchmark: benchmarks/bench_memory_cuda.py.
#include <array>
#include <cstdlib>
#include <cstring>

#include "ops/copy/cuda_copy.h"
#include "ops/cuda/report.h"
#include "ops/cuda/vector.cuh"

namespace blutensor::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kUnroll = 4;

unsigned num_blocks(int64_t n, int64_t per_block) {
  return static_cast<unsigned>(std::min<int64_t>((n + per_block - 1) / per_block, 1 << 30));
}

// ---------------------------------------------------------------- words

// Where the destination begins: known to the host, or read from the device.
struct NoShift {
  __device__ int64_t operator()() const { return 0; }
};
struct ShiftByPosition {
  DevicePosition position;
  int64_t stride;  // in words
  Report* report;
  __device__ int64_t operator()() const {
    int64_t at = load_element<int64_t>(position.data, 0, position.dtype);
    if (at < 0 || at > position.last) {
      if (blockIdx.x == 0 && threadIdx.x == 0)
        cuda::report(report, ReportCode::index_write_position, at, position.last + 1);
      at = at < 0 ? 0 : position.last;
    }
    return at * stride;
  }
};

template <class Word, class Shift>
__global__ void __launch_bounds__(kThreads)
    copy_words(Word* to, const Word* from, StridedIndex<2> index, int64_t num_words, Shift shift) {
  to += shift();
  constexpr int64_t kPerBlock = int64_t{kThreads} * kUnroll;
  for (int64_t first = blockIdx.x * kPerBlock + threadIdx.x; first < num_words; first += gridDim.x * kPerBlock) {
    Word word[kUnroll];
    int64_t at[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (first + u * kThreads >= num_words) break;
      int64_t offset[2] = {};
      index.add_offsets(first + u * kThreads, offset);
      at[u] = offset[0];
      word[u] = from[offset[1]];
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
      if (first + u * kThreads < num_words) to[at[u]] = word[u];
  }
}

// Calls run(Word{}) with the unsigned type of a size.
template <class F>
void visit_word(int64_t size, const F& run) {
  switch (size) {
    case 1:
      return run(uint8_t{});
    case 2:
      return run(uint16_t{});
    case 4:
      return run(uint32_t{});
    case 8:
      return run(uint64_t{});
    default:
      return run(uint4{});
  }
}

// The largest word (a power of two, at most 16 bytes) into which a run along the inner axis can be cut.
int64_t word_size(const Iteration& it, int64_t size, int num_operands, std::array<const void*, 2> data) {
  int64_t bits = it.extent[0] * size;
  for (size_t k = 0; k < static_cast<size_t>(num_operands); ++k) {
    if (it.stride[k][0] != 1 && it.extent[0] != 1) return size;
    bits |= static_cast<int64_t>(reinterpret_cast<uintptr_t>(data[k]));
    for (size_t axis = 1; axis < static_cast<size_t>(it.rank); ++axis) bits |= it.stride[k][axis] * size;
  }
  const int64_t lowest = bits & -bits;
  return std::clamp<int64_t>(lowest == 0 ? 16 : lowest, size, 16);
}

// The iteration counted in words of `size` elements each, all strides in words.
Iteration in_words(Iteration it, int64_t elements) {
  if (elements == 1) return it;
  it.extent[0] /= elements;
  it.numel /= elements;
  for (size_t k = 0; k < static_cast<size_t>(it.num_operands); ++k)
    for (size_t axis = 1; axis < static_cast<size_t>(it.rank); ++axis) it.stride[k][axis] /= elements;
  return it;
}

template <class Shift>
void launch_words(const Iteration& it, int64_t word, void* to, const void* from, Shift shift, cudaStream_t stream) {
  visit_word(word, [&](auto zero) {
    using Word = decltype(zero);
    copy_words<Word><<<num_blocks(it.numel, kThreads * kUnroll), kThreads, 0, stream>>>(
        static_cast<Word*>(to), static_cast<const Word*>(from), StridedIndex<2>(it), it.numel, shift);
  });
}

// ---------------------------------------------------------------- tiles

// The source is contiguous along axis y, the destination along axis x; other axes by `outer`, strides in elements.
struct TilePlan {
  int64_t width = 0, height = 0;  // extents of x and y
  int64_t from_stride = 0;        // of x in the source
  int64_t to_stride = 0;          // of y in the destination
  int64_t tiles_x = 0, tiles_y = 0, num_tiles = 0;
  StridedIndex<2> outer;
};

template <class Word>
inline constexpr int kTile = sizeof(Word) <= 2 ? 64 : 32;

template <class Word>
__global__ void __launch_bounds__(kThreads) copy_tiles(Word* to, const Word* from, TilePlan plan) {
  constexpr int kSide = kTile<Word>, kRows = kThreads / kSide, kSteps = kSide / kRows;
  // One word of padding per row of 4 bytes and more: a column then touches every bank once.
  __shared__ Word tile[kSide][kSide + (sizeof(Word) < 4 ? 4 / sizeof(Word) : 1)];
  const int lane = static_cast<int>(threadIdx.x) % kSide, row = static_cast<int>(threadIdx.x) / kSide;
  for (int64_t task = blockIdx.x; task < plan.num_tiles; task += gridDim.x) {
    const int64_t tile_y = task % plan.tiles_y, rest = task / plan.tiles_y;
    const int64_t tile_x = rest % plan.tiles_x;
    int64_t offset[2] = {};
    plan.outer.add_offsets(rest / plan.tiles_x, offset);
    const int64_t x0 = tile_x * kSide, y0 = tile_y * kSide;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int64_t x = x0 + row + step * kRows, y = y0 + lane;
      if (x < plan.width && y < plan.height)
        tile[row + step * kRows][lane] = from[offset[1] + x * plan.from_stride + y];
    }
    __syncthreads();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int64_t x = x0 + lane, y = y0 + row + step * kRows;
      if (x < plan.width && y < plan.height) to[offset[0] + y * plan.to_stride + x] = tile[lane][row + step * kRows];
    }
    __syncthreads();
  }
}

// The axis to exchange with the innermost one, or 0: both sides then move along sectors.
size_t tiled_axis(const Iteration& it) {
  if (it.stride[0][0] != 1 || it.extent[0] < 8 || std::llabs(it.stride[1][0]) <= 1) return 0;
  for (size_t axis = 1; axis < static_cast<size_t>(it.rank); ++axis)
    if (it.stride[1][axis] == 1 && it.extent[axis] >= 8) return axis;
  return 0;
}

template <class Word>
void launch_tiles(const Iteration& it, size_t axis, void* to, const void* from, cudaStream_t stream) {
  TilePlan plan;
  plan.width = it.extent[0];
  plan.height = it.extent[axis];
  plan.from_stride = it.stride[1][0];
  plan.to_stride = it.stride[0][axis];
  plan.tiles_x = (plan.width + kTile<Word> - 1) / kTile<Word>;
  plan.tiles_y = (plan.height + kTile<Word> - 1) / kTile<Word>;
  Iteration outer = it;
  outer.rank = 0;
  for (size_t a = 1; a < static_cast<size_t>(it.rank); ++a) {
    if (a == axis) continue;
    const auto next = static_cast<size_t>(outer.rank++);
    outer.extent[next] = it.extent[a];
    for (size_t k = 0; k < 2; ++k) outer.stride[k][next] = it.stride[k][a];
  }
  plan.outer = StridedIndex<2>(outer);
  plan.num_tiles = it.numel / (plan.width * plan.height) * plan.tiles_x * plan.tiles_y;
  copy_tiles<Word><<<num_blocks(plan.num_tiles, 1), kThreads, 0, stream>>>(static_cast<Word*>(to),
                                                                           static_cast<const Word*>(from), plan);
}

// ---------------------------------------------------------------- fills

struct Pattern {
  alignas(16) unsigned char bytes[16];
};

template <class Word>
__global__ void __launch_bounds__(kThreads)
    fill_words(Word* to, Pattern pattern, StridedIndex<1> index, int64_t num_words) {
  const Word word = *reinterpret_cast<const Word*>(pattern.bytes);
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < num_words; i += step) {
    int64_t offset[1] = {};
    index.add_offsets(i, offset);
    to[offset[0]] = word;
  }
}

}  // namespace

void copy_same_dtype(const View& destination, const View& source, cudaStream_t stream) {
  const View* views[] = {&destination, &source};
  const Iteration it = make_iteration(destination.shape, views);
  if (it.numel == 0) return;
  const auto size = static_cast<int64_t>(dtype_size(destination.dtype));
  if (const size_t axis = tiled_axis(it)) {
    visit_word(size, [&](auto zero) {
      if constexpr (sizeof(zero) <= 8) launch_tiles<decltype(zero)>(it, axis, destination.data, source.data, stream);
    });
  } else {
    const int64_t word = word_size(it, size, 2, {destination.data, source.data});
    launch_words(in_words(it, word / size), word, destination.data, source.data, NoShift{}, stream);
  }
  check_launch("copy");
}

void copy_view_at(const View& destination, const DevicePosition& position, const View& source, cudaStream_t stream) {
  View part = destination;
  part.shape = source.shape;
  const View* views[] = {&part, &source};
  const Iteration it = make_iteration(part.shape, views);
  if (it.numel == 0) return;
  const auto size = static_cast<int64_t>(dtype_size(destination.dtype));
  const int64_t stride = destination.strides[position.axis] * size;
  int64_t word = word_size(it, size, 2, {destination.data, source.data});
  while (stride % word != 0) word /= 2;  // a stride is a multiple of an element
  launch_words(in_words(it, word / size), word, destination.data, source.data,
               ShiftByPosition{position, stride / word, report_slot()}, stream);
  check_launch("index_write_");
}

void fill_view(const View& destination, const void* value, cudaStream_t stream) {
  const View* views[] = {&destination};
  const Iteration it = make_iteration(destination.shape, views);
  if (it.numel == 0) return;
  const auto size = static_cast<int64_t>(dtype_size(destination.dtype));
  const int64_t word = word_size(it, size, 1, {destination.data, nullptr});
  Pattern pattern;
  for (int64_t at = 0; at < 16; at += size) std::memcpy(pattern.bytes + at, value, static_cast<size_t>(size));
  const Iteration words = in_words(it, word / size);
  visit_word(word, [&](auto zero) {
    using Word = decltype(zero);
    fill_words<Word><<<num_blocks(words.numel, kThreads), kThreads, 0, stream>>>(
        static_cast<Word*>(destination.data), pattern, StridedIndex<1>(words), words.numel);
  });
  check_launch("fill");
}

}  // namespace blutensor::cuda
