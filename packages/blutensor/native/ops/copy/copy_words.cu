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

// A contiguous run whose bytes are no multiple of 16 but whose ends are aligned: how many bytes go in 16-byte words, the
// rest being left for another launch. 0: not such a run, or too short for it.
int64_t whole_words(const Iteration& it, int64_t size, int64_t word, const void* to, const void* from) {
  constexpr int64_t kLong = 1 << 16;
  const int64_t bytes = it.numel * size;
  if (it.rank != 1 || word == 16 || word < size || bytes < kLong) return 0;
  for (int k = 0; k < it.num_operands; ++k)
    if (it.stride[static_cast<size_t>(k)][0] != 1) return 0;
  return is_aligned(to, 16) && is_aligned(from, 16) ? bytes / 16 * 16 : 0;
}

// The part of a contiguous run from `begin` on, in elements.
Iteration rest_of(Iteration it, int64_t begin) {
  if (begin == 0) return it;
  it.numel -= begin;
  it.extent[0] = it.numel;
  return it;
}
Iteration first_of(Iteration it, int64_t end) {
  it.numel = it.extent[0] = end;
  return it;
}

// ---------------------------------------------------------------- tiles

// The source is contiguous along axis y, the destination along axis x; other axes by `outer`, strides in elements.
struct TilePlan {
  int64_t width = 0, height = 0;  // extents of x and y
  int64_t from_stride = 0;        // of x in the source
  int64_t to_stride = 0;          // of y in the destination
  Divider tiles_x, tiles_y;
  uint32_t num_tiles = 0;
  StridedIndex<2> outer;

  struct Place {
    int64_t x, y;      // of the tile's first element
    int64_t to, from;  // offsets by the other axes
  };
  __device__ Place place(uint32_t task, int side) const {
    const uint32_t rest = tiles_y.divide(task), outer_task = tiles_x.divide(rest);
    int64_t offset[2] = {};
    outer.add_offsets(outer_task, offset);
    return {int64_t{rest - outer_task * tiles_x.divisor} * side, int64_t{task - rest * tiles_y.divisor} * side,
            offset[0], offset[1]};
  }
};

template <class Word>
inline constexpr int kTile = sizeof(Word) <= 4 ? 64 : 32;

template <class Word>
__global__ void __launch_bounds__(kThreads) copy_tiles(Word* to, const Word* from, TilePlan plan) {
  constexpr int kSide = kTile<Word>, kRows = kThreads / kSide, kSteps = kSide / kRows;
  // One word of padding per row of 4 bytes and more: a column then touches every bank once.
  __shared__ Word tile[kSide][kSide + (sizeof(Word) < 4 ? 4 / sizeof(Word) : 1)];
  const int lane = static_cast<int>(threadIdx.x) % kSide, row = static_cast<int>(threadIdx.x) / kSide;
  for (uint32_t task = blockIdx.x; task < plan.num_tiles; task += gridDim.x) {
    const auto [x0, y0, to_offset, from_offset] = plan.place(task, kSide);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int64_t x = x0 + row + step * kRows, y = y0 + lane;
      if (x < plan.width && y < plan.height)
        tile[row + step * kRows][lane] = from[from_offset + x * plan.from_stride + y];
    }
    __syncthreads();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int64_t x = x0 + lane, y = y0 + row + step * kRows;
      if (x < plan.width && y < plan.height) to[to_offset + y * plan.to_stride + x] = tile[lane][row + step * kRows];
    }
    __syncthreads();
  }
}

// 16-bit elements in pairs: 64 x 64 of them, read and written 4 bytes a lane. Everything is even: extents, strides,
// addresses.
__global__ void __launch_bounds__(kThreads) copy_tiles_in_pairs(uint16_t* to, const uint16_t* from, TilePlan plan) {
  constexpr int kSide = 64, kRows = kThreads / 32;
  __shared__ uint32_t tile[kSide][kSide / 2 + 1];  // [x][pair of y]
  const int lane = static_cast<int>(threadIdx.x) % 32, row = static_cast<int>(threadIdx.x) / 32;
  for (uint32_t task = blockIdx.x; task < plan.num_tiles; task += gridDim.x) {
    const auto [x0, y0, to_offset, from_offset] = plan.place(task, kSide);
#pragma unroll
    for (int r = 0; r < kSide; r += kRows) {
      const int64_t x = x0 + row + r, y = y0 + 2 * lane;
      if (x < plan.width && y < plan.height)
        tile[row + r][lane] = *reinterpret_cast<const uint32_t*>(from + from_offset + x * plan.from_stride + y);
    }
    __syncthreads();
    // Rows 2 lane and 2 lane + 1 of the tile; half of the lanes take them in the other order, so that all banks serve.
    const bool upper = lane >= 16;
    const int64_t x = x0 + 2 * lane;
#pragma unroll
    for (int r = 0; r < kSide / 2; r += kRows) {
      const int64_t y = y0 + 2 * (row + r);
      const uint32_t one = tile[2 * lane + upper][row + r], two = tile[2 * lane + !upper][row + r];
      const uint32_t a = upper ? two : one, b = upper ? one : two;
      if (x >= plan.width || y >= plan.height) continue;
      uint16_t* p = to + to_offset + y * plan.to_stride + x;
      *reinterpret_cast<uint32_t*>(p) = __byte_perm(a, b, 0x5410);
      *reinterpret_cast<uint32_t*>(p + plan.to_stride) = __byte_perm(a, b, 0x7632);
    }
    __syncthreads();
  }
}

bool allows_pairs(const TilePlan& plan, const void* to, const void* from) {
  int64_t bits = plan.width | plan.height | plan.from_stride | plan.to_stride;
  for (int axis = 0; axis < plan.outer.rank; ++axis) bits |= plan.outer.stride[0][axis] | plan.outer.stride[1][axis];
  return bits % 2 == 0 && is_aligned(to, 4) && is_aligned(from, 4);
}

// The axis to exchange with the innermost one, or 0: both sides then move along sectors.
size_t tiled_axis(const Iteration& it) {
  constexpr int64_t kMost = int64_t{1} << 36;  // elements, so that tiles of at least 64 are counted in 31 bits
  if (it.stride[0][0] != 1 || it.extent[0] < 8 || std::llabs(it.stride[1][0]) <= 1 || it.numel >= kMost) return 0;
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
  Iteration outer = it;
  outer.rank = 0;
  for (size_t a = 1; a < static_cast<size_t>(it.rank); ++a) {
    if (a == axis) continue;
    const auto next = static_cast<size_t>(outer.rank++);
    outer.extent[next] = it.extent[a];
    for (size_t k = 0; k < 2; ++k) outer.stride[k][next] = it.stride[k][a];
  }
  plan.outer = StridedIndex<2>(outer);
  const auto tiles = [](int64_t extent) { return static_cast<uint32_t>((extent + kTile<Word> - 1) / kTile<Word>); };
  plan.tiles_x = Divider(tiles(plan.width));
  plan.tiles_y = Divider(tiles(plan.height));
  plan.num_tiles =
      static_cast<uint32_t>(it.numel / (plan.width * plan.height)) * tiles(plan.width) * tiles(plan.height);
  if constexpr (sizeof(Word) == 2) {
    if (allows_pairs(plan, to, from)) {
      copy_tiles_in_pairs<<<num_blocks(plan.num_tiles, 1), kThreads, 0, stream>>>(
          static_cast<uint16_t*>(to), static_cast<const uint16_t*>(from), plan);
      return;
    }
  }
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
    const int64_t bytes = whole_words(it, size, word, destination.data, source.data);
    if (bytes > 0)
      launch_words(in_words(first_of(it, bytes / size), 16 / size), 16, destination.data, source.data, NoShift{},
                   stream);
    launch_words(in_words(rest_of(it, bytes / size), word / size), word, static_cast<char*>(destination.data) + bytes,
                 static_cast<const char*>(source.data) + bytes, NoShift{}, stream);
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
  const auto launch = [&](const Iteration& words, int64_t bytes_per_word, void* to) {
    visit_word(bytes_per_word, [&](auto zero) {
      using Word = decltype(zero);
      fill_words<Word><<<num_blocks(words.numel, kThreads), kThreads, 0, stream>>>(static_cast<Word*>(to), pattern,
                                                                                   StridedIndex<1>(words), words.numel);
    });
  };
  const int64_t bytes = whole_words(it, size, word, destination.data, nullptr);
  if (bytes > 0) launch(in_words(first_of(it, bytes / size), 16 / size), 16, destination.data);
  launch(in_words(rest_of(it, bytes / size), word / size), word, static_cast<char*>(destination.data) + bytes);
  check_launch("fill");
}

}  // namespace blutensor::cuda
