#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>

#include "ops/copy/copy.h"
#include "ops/elementwise/iteration.h"
#include "ops/kernels.h"
#include "ops/parallel.h"

namespace blutensor {

namespace {

constexpr int64_t kTile = 16;  // elements: a tile's rows and columns share few enough cache lines to stay in L1

// Two-dimensional exchange of axes: the source is contiguous along `axis`, the destination along axis 0. Tiles of
// 16 x 16 go through a buffer, so that every cache line is read and written once, also where power-of-two strides map
// a tile's lines to one set of the cache. Tasks: (outer position, block of 16 along `axis`).
template <class T>
void transpose(const Iteration& it, size_t axis, T* destination, const T* source) {
  const int64_t width = it.extent[0], height = it.extent[axis];
  const int64_t blocks = (height + kTile - 1) / kTile;
  const int64_t outer = it.numel / (width * height);
  const int64_t grain = std::max<int64_t>(1, kElementwiseGrain / (width * kTile));
  parallel_for(outer * blocks, grain, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      T* to = destination;
      const T* from = source;
      int64_t rest = task / blocks;
      for (size_t a = 1; a < static_cast<size_t>(it.rank); ++a) {
        if (a == axis) continue;
        const int64_t index = rest % it.extent[a];
        rest /= it.extent[a];
        to += index * it.stride[0][a];
        from += index * it.stride[1][a];
      }
      const int64_t first = task % blocks * kTile, last = std::min(height, first + kTile);
      for (int64_t left = 0; left < width; left += kTile) {
        const int64_t right = std::min(width, left + kTile);
        const int64_t rows = last - first, columns = right - left;
        T tile[kTile][kTile];
        for (int64_t column = 0; column < columns; ++column)
          std::memcpy(tile[column], from + first + (left + column) * it.stride[1][0],
                      static_cast<size_t>(rows) * sizeof(T));
        for (int64_t row = 0; row < rows; ++row) {
          T* line = to + (first + row) * it.stride[0][axis] + left;
          for (int64_t column = 0; column < columns; ++column) line[column] = tile[column][row];
        }
      }
    }
  });
}

bool transpose_any(const Iteration& it, size_t axis, const View& destination, const View& source) {
  switch (dtype_size(destination.dtype)) {
    case 1:
      transpose(it, axis, destination.ptr<uint8_t>(), source.ptr<const uint8_t>());
      break;
    case 2:
      transpose(it, axis, destination.ptr<uint16_t>(), source.ptr<const uint16_t>());
      break;
    case 4:
      transpose(it, axis, destination.ptr<uint32_t>(), source.ptr<const uint32_t>());
      break;
    default:
      transpose(it, axis, destination.ptr<uint64_t>(), source.ptr<const uint64_t>());
      break;
  }
  return true;
}

// The axis to exchange with the innermost one when that makes both sides read and write along cache lines.
bool try_transpose(const Iteration& it, const View& destination, const View& source) {
  if (destination.dtype != source.dtype || it.stride[0][0] != 1 || it.extent[0] < 4) return false;
  if (std::llabs(it.stride[1][0]) <= 1) return false;
  for (size_t axis = 1; axis < static_cast<size_t>(it.rank); ++axis)
    if (it.stride[1][axis] == 1 && it.extent[axis] >= 4) return transpose_any(it, axis, destination, source);
  return false;
}

struct Range {
  const char* begin;
  const char* end;
};

Range address_range(const View& view) {
  const auto size = static_cast<int64_t>(dtype_size(view.dtype));
  int64_t low = 0, high = 1;
  for (int axis = 0; axis < view.rank(); ++axis) {
    const int64_t reach = (view.shape[axis] - 1) * view.strides[axis];
    (reach < 0 ? low : high) += reach;
  }
  const char* base = static_cast<const char*>(view.data);
  return {base + low * size, base + high * size};
}

// Axes that matter, by |stride| from large to small.
struct Axes {
  int count = 0;
  std::array<int64_t, kMaxRank> extent{}, stride{};
};
Axes sorted_axes(const View& view) {
  Axes axes;
  for (int axis = 0; axis < view.rank(); ++axis) {
    if (view.shape[axis] == 1) continue;
    int at = axes.count++;
    while (at > 0 && axes.stride[static_cast<size_t>(at - 1)] < std::llabs(view.strides[axis])) {
      axes.extent[static_cast<size_t>(at)] = axes.extent[static_cast<size_t>(at - 1)];
      axes.stride[static_cast<size_t>(at)] = axes.stride[static_cast<size_t>(at - 1)];
      --at;
    }
    axes.extent[static_cast<size_t>(at)] = view.shape[axis];
    axes.stride[static_cast<size_t>(at)] = std::llabs(view.strides[axis]);
  }
  return axes;
}

// Each stride reaches beyond everything that the smaller ones address.
bool nested(const Axes& axes) {
  int64_t reach = 0;
  for (int i = axes.count - 1; i >= 0; --i) {
    const auto a = static_cast<size_t>(i);
    if (axes.stride[a] <= reach) return false;
    reach += (axes.extent[a] - 1) * axes.stride[a];
  }
  return true;
}

// Whether distance = sum of k_i stride_i for some |k_i| < extent_i: with nested strides only two k_i can do at each
// level.
bool reaches(const Axes& axes, int level, int64_t distance) {
  if (level == axes.count) return distance == 0;
  const auto a = static_cast<size_t>(level);
  const int64_t quotient = distance / axes.stride[a];
  for (int64_t k = quotient - 1; k <= quotient + 1; ++k)
    if (std::llabs(k) < axes.extent[a] && reaches(axes, level + 1, distance - k * axes.stride[a])) return true;
  return false;
}

}  // namespace

void copy_view(const View& destination, const View& source) {
  const View* operands[] = {&destination, &source};
  const Iteration it = make_iteration(destination.shape, operands);
  if (it.numel == 0 || (destination.data == source.data && destination.dtype == source.dtype &&
                        destination.shape == source.shape && destination.strides == source.strides))
    return;
  if (try_transpose(it, destination, source)) return;
  const CastKernel cast = kernels().copy.from_to(source.dtype, destination.dtype);
  const auto to_size = static_cast<int64_t>(dtype_size(destination.dtype));
  const auto from_size = static_cast<int64_t>(dtype_size(source.dtype));
  parallel_for(it.numel, kElementwiseGrain, [&](int64_t begin, int64_t end) {
    for_each_run(it, begin, end, [&](int64_t length, const auto& offset, int64_t) {
      cast(length, static_cast<char*>(destination.data) + offset[0] * to_size, it.stride[0][0],
           static_cast<const char*>(source.data) + offset[1] * from_size, it.stride[1][0]);
    });
  });
}

void fill_view(const View& destination, const void* value) {
  const size_t size = dtype_size(destination.dtype);
  if (destination.contiguous()) {
    // A block of copies of the element, laid end to end.
    constexpr size_t kBytes = 4096;
    alignas(64) char block[kBytes];
    for (size_t at = 0; at < kBytes; at += size) std::memcpy(block + at, value, size);
    const int64_t bytes = destination.numel() * static_cast<int64_t>(size);
    const bool zero = std::all_of(block, block + size, [](char c) { return c == 0; });
    parallel_for(bytes, kElementwiseGrain * 8, [&](int64_t begin, int64_t end) {
      char* to = static_cast<char*>(destination.data);
      if (zero) {
        std::memset(to + begin, 0, static_cast<size_t>(end - begin));
        return;
      }
      for (int64_t at = begin; at < end; at += static_cast<int64_t>(kBytes))
        std::memcpy(to + at, block, static_cast<size_t>(std::min<int64_t>(kBytes, end - at)));
    });
    return;
  }
  View source;
  source.data = const_cast<void*>(value);
  source.dtype = destination.dtype;
  source.defined_ = true;
  copy_view(destination, source);
}

bool may_overlap(const View& a, const View& b) {
  if (a.numel() == 0 || b.numel() == 0) return false;
  const Range ra = address_range(a), rb = address_range(b);
  if (ra.end <= rb.begin || rb.end <= ra.begin) return false;
  if (a.dtype != b.dtype || !(a.shape == b.shape) || !(a.strides == b.strides)) return true;
  const Axes axes = sorted_axes(a);
  const int64_t bytes = static_cast<const char*>(a.data) - static_cast<const char*>(b.data);
  const auto size = static_cast<int64_t>(dtype_size(a.dtype));
  if (!nested(axes) || bytes % size != 0) return true;
  return reaches(axes, 0, bytes / size);
}

bool overlaps_itself(const View& view) { return view.numel() > 1 && !nested(sorted_axes(view)); }

void check_written(const View& destination, const char* op) {
  require(!overlaps_itself(destination), "[", op, "] expected a tensor whose elements do not share memory, got shape ",
          destination.shape, " with strides ", destination.strides, "; write to a copy: contiguous()");
}

void check_written(const View& destination, const View& source, const char* op) {
  check_written(destination, op);
  const bool same = destination.data == source.data && destination.dtype == source.dtype &&
                    destination.shape == source.shape && destination.strides == source.strides;
  require(same || !may_overlap(destination, source), "[", op,
          "] expected a source that does not overlap the destination, got two views of one storage; copy the source "
          "first: copy(source)");
}

View narrow_view(const View& view, int axis, int64_t start, int64_t length) {
  View part = view;
  part.data = static_cast<char*>(view.data) + start * view.strides[axis] * static_cast<int64_t>(dtype_size(view.dtype));
  part.shape[axis] = length;
  return part;
}

}  // namespace blutensor
