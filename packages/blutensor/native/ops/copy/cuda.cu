// Which launcher serves which operator that moves elements.
#include "ops/copy/copy.h"
#include "ops/copy/cuda_copy.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/table.h"
#include "ops/elementwise/cuda.h"
#include "ops/kernels.h"
#include "ops/views/views.h"

namespace blutensor {

namespace {

using cuda::stream_of;

void launch_copy(const Launch& args) { cuda::copy_view(args.outputs[0], args.inputs[0], stream_of(args)); }

void launch_copy_into(const Launch& args) {
  check_written(args.inputs[0], args.inputs[1], "copy_");
  cuda::copy_view(args.inputs[0], args.inputs[1], stream_of(args));
}

template <BinaryOp op>
void add_binary_into(CudaTable& table) {
  table.add(in_place_name(op), [](const Launch& args) {
    const View &x = args.inputs[0], &other = args.inputs[1];
    check_written(x, other, in_place_name(op));
    cuda::run_binary(op, x.dtype, x, x, other, stream_of(args));
  });
}

void launch_fill(const Launch& args) {
  const View& x = args.inputs[0];
  check_written(x, "fill_");
  const double value = args.attrs.f(0);
  alignas(8) unsigned char element[8];
  kernels().copy.from_to(DType::float64, x.dtype)(1, element, 1, &value, 0);
  cuda::fill_view(x, element, stream_of(args));
}

void launch_concat(const Launch& args) {
  const View& out = args.outputs[0];
  const int axis = normalize_axis(args.attrs.i(0), out.rank(), "concat");
  int64_t start = 0;
  for (const View& part : args.inputs) {
    cuda::copy_view(narrow_view(out, axis, start, part.shape[axis]), part, stream_of(args));
    start += part.shape[axis];
  }
}

void launch_index_write(const Launch& args) {
  const View &cache = args.inputs[0], &rows = args.inputs[1], &position = args.inputs[2];
  const int axis = normalize_axis(args.attrs.i(0), cache.rank(), "index_write_");
  check_written(cache, rows, "index_write_");
  cuda::copy_view_at(cache, {position.data, position.dtype, cache.shape[axis] - rows.shape[axis], axis}, rows,
                     stream_of(args));
}

void launch_slice_backward(const Launch& args) {
  const View &g = args.inputs[0], &out = args.outputs[0];
  const View part = slice_backward_part(out, args.attrs);
  if (part.numel() != out.numel()) {
    const uint64_t zero = 0;  // all bits zero are 0 in every dtype
    cuda::fill_view(out, &zero, stream_of(args));
  }
  cuda::copy_view(part, g, stream_of(args));
}

}  // namespace

void add_copy_cuda(CudaTable& table) {
  table.add("contiguous", launch_copy);
  table.add("copy", launch_copy);
  table.add("astype", launch_copy);
  table.add("copy_", launch_copy_into);
  add_binary_into<BinaryOp::add>(table);
  add_binary_into<BinaryOp::subtract>(table);
  add_binary_into<BinaryOp::multiply>(table);
  add_binary_into<BinaryOp::divide>(table);
  table.add("fill_", launch_fill);
  table.add("concat", launch_concat);
  table.add("index_write_", launch_index_write);
  table.add("slice_backward", launch_slice_backward);
}

}  // namespace blutensor
