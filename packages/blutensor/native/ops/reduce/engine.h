// Runs a fold (folds.h) over a strided operand.
//
// Rows: each output folds its own elements, in stretches of kStretch; the stretches of one output are tasks of their
// own, so that one large sum uses all threads. Columns (sums whose outputs lie next to each other in memory, as bias
// gradients): a task adds kColumns neighbouring outputs over kRowsPerTask rows. How the work is cut depends on the
// shape and strides alone.
#pragma once

#include "ops/copy/convert.h"
#include "ops/elementwise/block_loop.h"
#include "ops/reduce/folds.h"
#include "ops/reduce/geometry.h"

namespace blutensor {

inline constexpr int64_t kStretch = 32768;
inline constexpr int64_t kColumns = 256, kRowsPerTask = 512, kMinColumns = 8, kFoldColumns = 128;

inline int64_t num_stretches(const ReduceGeometry& g) { return (g.length + kStretch - 1) / kStretch; }

template <class Fold>
size_t rows_workspace(const ReduceGeometry& g) {
  const int64_t stretches = num_stretches(g);
  return stretches > 1 ? static_cast<size_t>(g.num_outputs * stretches) * sizeof(typename Fold::Acc) : 0;
}

// The fold of positions [begin, end) of the output whose first element is at `base`.
template <class Fold>
typename Fold::Acc fold_range(const ReduceGeometry& g, const View& x, int64_t base, int64_t begin, int64_t end) {
  using In = typename Fold::In;
  constexpr DType in_dtype = dtype_of<In>::value;
  const auto size = static_cast<int64_t>(dtype_size(x.dtype));
  const int64_t stride = g.reduced.stride[0][0];
  const bool direct = x.dtype == in_dtype && stride == 1;
  const CastKernel cast = kernels().copy.from_to(x.dtype, in_dtype);
  const char* data = static_cast<const char*>(x.data) + base * size;

  alignas(64) In buffer[kBlock];
  int64_t filled = 0, first = begin;  // the buffer holds positions from `first`
  typename Fold::Acc total = Fold::start();
  const auto flush = [&] {
    if (filled > 0) total = Fold::combine(total, Fold::block(filled, buffer, first));
    first += filled;
    filled = 0;
  };
  for_each_run(g.reduced, begin, end, [&](int64_t n, const auto& offset, int64_t position) {
    const char* p = data + offset[0] * size;
    if (direct && n >= kShortRun) {
      flush();
      total = Fold::combine(total, Fold::block(n, reinterpret_cast<const In*>(p), position));
      first = position + n;
      return;
    }
    for (int64_t done = 0; done < n;) {
      const int64_t length = std::min(kBlock - filled, n - done);
      cast(length, buffer + filled, 1, p + done * stride * size, stride);
      filled += length;
      done += length;
      if (filled == kBlock) flush();
    }
  });
  flush();
  return total;
}

// Neighbouring outputs whose elements lie next to each other, folded row by row: whole cache lines are read.
template <class Fold, class Store>
void fold_columns(const ReduceGeometry& g, const View& x, const Store& store) {
  using In = typename Fold::In;
  const auto size = static_cast<int64_t>(dtype_size(x.dtype));
  const CastKernel cast = kernels().copy.from_to(x.dtype, dtype_of<In>::value);
  const int64_t width = g.kept.extent[0], blocks = (width + kFoldColumns - 1) / kFoldColumns;
  parallel_for(g.num_outputs / width * blocks, 1, [&](int64_t begin, int64_t end) {
    In row[kFoldColumns];
    typename Fold::Acc total[kFoldColumns];
    for (int64_t task = begin; task < end; ++task) {
      const int64_t first = task % blocks * kFoldColumns, columns = std::min(kFoldColumns, width - first);
      const int64_t output = task / blocks * width + first;
      const char* data = static_cast<const char*>(x.data) + g.base(output) * size;
      std::fill(total, total + columns, Fold::start());
      for_each_run(g.reduced, 0, g.length, [&](int64_t rows, const auto& offset, int64_t position) {
        for (int64_t r = 0; r < rows; ++r) {
          cast(columns, row, 1, data + (offset[0] + r * g.reduced.stride[0][0]) * size, 1);
          for (int64_t c = 0; c < columns; ++c) total[c] = Fold::combine(total[c], Fold::one(row[c], position + r));
        }
      });
      for (int64_t c = 0; c < columns; ++c) store(output + c, total[c]);
    }
  });
}

// `finish(state, length)`: what becomes of an output's state.
template <class Fold, class Finish>
void reduce_rows(const ReduceGeometry& g, const View& x, const View& out, void* workspace, const Finish& finish) {
  using Result = decltype(finish(Fold::start(), int64_t{1}));
  const CastKernel cast = kernels().copy.from_to(dtype_of<Result>::value, out.dtype);
  const auto out_size = static_cast<int64_t>(dtype_size(out.dtype));
  const auto store = [&](int64_t output, const typename Fold::Acc& state) {
    const Result result = finish(state, g.length);
    cast(1, static_cast<char*>(out.data) + output * out_size, 1, &result, 1);
  };
  const int64_t stretches = num_stretches(g);
  if (stretches <= 1 && g.length > 1 && g.kept.stride[0][0] == 1 && g.kept.extent[0] >= kMinColumns)
    return fold_columns<Fold>(g, x, store);
  if (stretches <= 1) {
    parallel_for(g.num_outputs, kElementwiseGrain / std::max<int64_t>(g.length, 16), [&](int64_t begin, int64_t end) {
      for (int64_t output = begin; output < end; ++output)
        store(output, fold_range<Fold>(g, x, g.base(output), 0, g.length));
    });
    return;
  }
  auto* partial = static_cast<typename Fold::Acc*>(workspace);
  parallel_for(g.num_outputs * stretches, 1, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t output = task / stretches, first = task % stretches * kStretch;
      partial[task] = fold_range<Fold>(g, x, g.base(output), first, std::min(g.length, first + kStretch));
    }
  });
  parallel_for(g.num_outputs, std::max<int64_t>(1, kElementwiseGrain / stretches), [&](int64_t begin, int64_t end) {
    for (int64_t output = begin; output < end; ++output) {
      typename Fold::Acc total = partial[output * stretches];
      for (int64_t s = 1; s < stretches; ++s) total = Fold::combine(total, partial[output * stretches + s]);
      store(output, total);
    }
  });
}

template <class Fold>
void reduce_rows(const ReduceGeometry& g, const View& x, const View& out, void* workspace) {
  reduce_rows<Fold>(g, x, out, workspace, Fold::finish);
}

// ---------------------------------------------------------------- sums of columns

// Whether neighbouring outputs start at neighbouring elements.
inline bool are_columns(const ReduceGeometry& g, DType dtype) {
  return is_floating(dtype) && g.kept.stride[0][0] == 1 && g.kept.extent[0] >= kMinColumns && g.length > 1;
}

inline int64_t num_row_tasks(const ReduceGeometry& g) { return (g.length + kRowsPerTask - 1) / kRowsPerTask; }

inline size_t columns_workspace(const ReduceGeometry& g) {
  const int64_t row_tasks = num_row_tasks(g);
  return row_tasks > 1 ? static_cast<size_t>(g.num_outputs * row_tasks) * sizeof(double) : 0;
}

// out = sums, or sums / length.
void sum_columns(const ReduceGeometry& g, const View& x, const View& out, bool mean, void* workspace);

}  // namespace blutensor
