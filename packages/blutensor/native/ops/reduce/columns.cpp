#include "ops/reduce/engine.h"

namespace blutensor {

namespace {

// sums[c] += x over positions [begin, end) of the reduction, for `columns` outputs that start at `base`.
void add_rows(const ReduceGeometry& g, const View& x, int64_t base, int64_t columns, int64_t begin, int64_t end,
              double* sums) {
  const auto size = static_cast<int64_t>(dtype_size(x.dtype));
  const char* data = static_cast<const char*>(x.data) + base * size;
  const int64_t row_stride = g.reduced.stride[0][0];
  const CastKernel widen = kernels().copy.from_to(x.dtype, DType::float32);
  for_each_run(g.reduced, begin, end, [&](int64_t rows, const auto& offset, int64_t) {
    const char* first = data + offset[0] * size;
    if (x.dtype == DType::float32) {
      kernels().reduce.add_columns_f32(rows, columns, reinterpret_cast<const float*>(first), row_stride, sums);
      return;
    }
    for (int64_t row = 0; row < rows; ++row) {
      const char* p = first + row * row_stride * size;
      if (x.dtype == DType::float64) {
        for (int64_t c = 0; c < columns; ++c) sums[c] += reinterpret_cast<const double*>(p)[c];
      } else {
        float block[kColumns];
        widen(columns, block, 1, p, 1);
        kernels().reduce.add_columns_f32(1, columns, block, 0, sums);
      }
    }
  });
}

}  // namespace

void sum_columns(const ReduceGeometry& g, const View& x, const View& out, bool mean, void* workspace) {
  const int64_t width = g.kept.extent[0], blocks = (width + kColumns - 1) / kColumns;
  const int64_t groups = g.num_outputs / width, row_tasks = num_row_tasks(g);
  const CastKernel cast = kernels().copy.from_to(DType::float64, out.dtype);
  const auto out_size = static_cast<int64_t>(dtype_size(out.dtype));
  auto* partial = static_cast<double*>(workspace);  // [row task][output]
  const double divisor = mean ? static_cast<double>(g.length) : 1;
  const auto store = [&](int64_t output, int64_t columns, double* sums) {
    if (mean)
      for (int64_t c = 0; c < columns; ++c) sums[c] /= divisor;
    cast(columns, static_cast<char*>(out.data) + output * out_size, 1, sums, 1);
  };

  const int64_t elements_per_task = std::min(width, kColumns) * std::min(g.length, kRowsPerTask);
  parallel_for(groups * blocks * row_tasks, kElementwiseGrain / std::max<int64_t>(elements_per_task, 1),
               [&](int64_t begin, int64_t end) {
                 for (int64_t task = begin; task < end; ++task) {
                   const int64_t row_task = task % row_tasks, block = task / row_tasks % blocks,
                                 group = task / row_tasks / blocks;
                   const int64_t first = block * kColumns, columns = std::min(kColumns, width - first);
                   const int64_t output = group * width + first;
                   const int64_t row = row_task * kRowsPerTask;
                   double sums[kColumns] = {};
                   add_rows(g, x, g.base(output), columns, row, std::min(g.length, row + kRowsPerTask), sums);
                   if (row_tasks == 1)
                     store(output, columns, sums);
                   else
                     std::copy(sums, sums + columns, partial + row_task * g.num_outputs + output);
                 }
               });
  if (row_tasks == 1) return;
  parallel_for(g.num_outputs, std::max<int64_t>(kColumns, kElementwiseGrain / row_tasks),
               [&](int64_t begin, int64_t end) {
                 for (int64_t first = begin; first < end; first += kColumns) {
                   const int64_t columns = std::min(kColumns, end - first);
                   double sums[kColumns];
                   std::copy(partial + first, partial + first + columns, sums);
                   for (int64_t task = 1; task < row_tasks; ++task)
                     for (int64_t c = 0; c < columns; ++c) sums[c] += partial[task * g.num_outputs + first + c];
                   store(first, columns, sums);
                 }
               });
}

}  // namespace blutensor
