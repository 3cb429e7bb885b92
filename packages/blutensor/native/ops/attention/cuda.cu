// The CUDA launchers of attention: from tensors to arguments, and which kernel takes them.
#include <array>
#include <cmath>
#include <limits>

#include "ops/attention/attention.h"
#include "ops/attention/attention_kernels.h"
#include "ops/attention/cuda_arguments.h"
#include "ops/attention/cuda_tiled.h"
#include "ops/attention/grouped_heads.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/table.h"

namespace blutensor {

namespace {

using cuda::AttentionArguments;
using cuda::AttentionOperand;
using cuda::kMaxLeadingAxes;
static_assert(kMaxLeadingAxes >= kMaxRank - 2);

constexpr int kTiledMaxHeadDim = 128;

// ---------------------------------------------------------------- arguments

struct NamedOperand {
  AttentionOperand* target;
  const View* view;
  int inner;  // axes after the leading ones
};

// Fills the operands; leading axes of length 1 are dropped, and neighbours that every operand steps through evenly
// become one.
void set_operands(AttentionArguments& args, std::initializer_list<NamedOperand> operands) {
  const View& first = *operands.begin()->view;
  const int rank = first.rank() - operands.begin()->inner;
  for (const NamedOperand& o : operands) {
    if (!o.view->defined()) continue;
    o.target->data = o.view->data;
    o.target->row_stride = o.view->strides[rank];
    o.target->col_stride = o.inner == 2 ? o.view->strides[rank + 1] : 0;
  }
  auto& leading = args.leading;
  int64_t pairs = 1;
  for (int axis = 0; axis < rank; ++axis) {
    const int64_t n = first.shape[axis];
    pairs *= n;
    if (n == 1) continue;
    bool merges = leading.rank > 0;
    for (const NamedOperand& o : operands)
      merges =
          merges && (!o.view->defined() || o.target->leading_strides[leading.rank - 1] == o.view->strides[axis] * n);
    if (merges) {
      leading.shape[leading.rank - 1] *= static_cast<uint32_t>(n);
    } else {
      leading.shape[leading.rank++] = static_cast<uint32_t>(n);
    }
    for (const NamedOperand& o : operands)
      if (o.view->defined()) o.target->leading_strides[leading.rank - 1] = o.view->strides[axis];
  }
  constexpr int64_t kLimit = std::numeric_limits<int32_t>::max();
  require(pairs <= kLimit, "[attention] expected at most 2^31 - 1 batches times heads, got ", pairs);
  args.num_pairs = static_cast<uint32_t>(pairs);
}

void set_sizes(AttentionArguments& args, const View& query, const View& key, double scale) {
  const int rank = query.rank();
  const int64_t head_dim = query.shape[rank - 1], queries = query.shape[rank - 2], keys = key.shape[rank - 2];
  constexpr int64_t kLimit = std::numeric_limits<int32_t>::max() / 2;  // positions and their block fit in int32
  require(queries <= kLimit && keys <= kLimit, "[attention] expected at most 2^30 queries and keys, got ", queries,
          " and ", keys);
  args.num_queries = static_cast<int32_t>(queries);
  args.num_keys = static_cast<int32_t>(keys);
  args.head_dim = static_cast<int32_t>(head_dim);
  args.scale = scale != 0 ? scale : 1.0 / std::sqrt(static_cast<double>(std::max<int64_t>(head_dim, 1)));
}

// ---------------------------------------------------------------- which kernel

// 16-byte copies: the first row starts at a multiple of 16 bytes, and all others do.
bool has_aligned_rows(const View& view) {
  const auto per_copy = static_cast<int64_t>(16 / dtype_size(view.dtype));
  const int rank = view.rank();
  if (reinterpret_cast<uintptr_t>(view.data) % 16 != 0 || view.shape[rank - 1] % per_copy != 0) return false;
  if (view.strides[rank - 1] != 1 || std::abs(view.strides[rank - 2]) > std::numeric_limits<int32_t>::max())
    return false;
  for (int axis = 0; axis < rank - 1; ++axis)
    if (view.shape[axis] > 1 && view.strides[axis] % per_copy != 0) return false;
  return true;
}

bool takes_tiles(const AttentionArguments& args, std::initializer_list<const View*> views) {
  const DType dtype = (*views.begin())->dtype;
  if (dtype != DType::float32 && dtype != DType::bfloat16) return false;
  if (args.head_dim < 1 || args.head_dim > kTiledMaxHeadDim || args.scale < 0) return false;
  for (const View* view : views)
    if (!has_aligned_rows(*view)) return false;
  return true;
}

enum class Tiled { bf16, tf32, ieee };
Tiled tiled_kind(const Launch& launch) {
  if (launch.inputs[0].dtype == DType::bfloat16) return Tiled::bf16;
  return launch.math == Float32Math::tf32 ? Tiled::tf32 : Tiled::ieee;
}

// ---------------------------------------------------------------- launchers

void launch_forward_cuda(const Launch& ungrouped) {
  const GroupedHeads grouped(ungrouped, "qkk", "qr");
  const Launch& launch = grouped.launch();
  const View &query = launch.inputs[0], &key = launch.inputs[1], &value = launch.inputs[2];
  const View &output = launch.outputs[0], &logsumexp = launch.outputs[1];
  AttentionArguments args;
  set_sizes(args, query, key, launch.attrs.f(1));
  set_operands(args,
               {{&args.query, &query, 2}, {&args.key, &key, 2}, {&args.value, &value, 2}, {&args.output, &output, 2}});
  args.causal = launch.attrs.b(0);
  args.logsumexp = logsumexp.data;
  if (logsumexp.numel() == 0) return;
  const cudaStream_t stream = cuda::stream_of(launch);
  if (!takes_tiles(args, {&query, &key, &value, &output})) {
    cuda::attention_forward_generic(args, query.dtype, stream);
  } else {
    const Tiled kind = tiled_kind(launch);
    (kind == Tiled::bf16   ? cuda::attention_forward_bf16
     : kind == Tiled::tf32 ? cuda::attention_forward_tf32
                           : cuda::attention_forward_ieee)(args, stream);
  }
  cuda::check_launch("scaled_dot_product_attention");
}

void launch_backward_cuda(const Launch& ungrouped) {
  const GroupedHeads grouped(ungrouped, "qqkkqrr", "q..");
  const Launch& launch = grouped.launch();
  const View &grad = launch.inputs[0], &query = launch.inputs[1], &key = launch.inputs[2], &value = launch.inputs[3];
  const View &output = launch.inputs[4], &logsumexp = launch.inputs[5], &grad_logsumexp = launch.inputs[6];
  const View &grad_query = launch.outputs[0], &grad_key = launch.outputs[1], &grad_value = launch.outputs[2];
  AttentionArguments args;
  set_sizes(args, query, key, launch.attrs.f(1));
  set_operands(args, {{&args.query, &query, 2},
                      {&args.key, &key, 2},
                      {&args.value, &value, 2},
                      {&args.output, &output, 2},
                      {&args.grad_output, &grad, 2},
                      {&args.grad_query, &grad_query, 2},
                      {&args.grad_key, &grad_key, 2},
                      {&args.grad_value, &grad_value, 2},
                      {&args.grad_logsumexp, &grad_logsumexp, 1}});
  args.causal = launch.attrs.b(0);
  args.logsumexp = logsumexp.data;
  args.delta = launch.workspace;
  if (args.num_pairs == 0) return;
  const cudaStream_t stream = cuda::stream_of(launch);
  if (!takes_tiles(args, {&query, &key, &value, &output, &grad, &grad_query, &grad_key, &grad_value})) {
    cuda::attention_backward_generic(args, query.dtype, stream);
  } else {
    const Tiled kind = tiled_kind(launch);
    (kind == Tiled::bf16   ? cuda::attention_backward_bf16
     : kind == Tiled::tf32 ? cuda::attention_backward_tf32
                           : cuda::attention_backward_ieee)(args, stream);
  }
  cuda::check_launch("scaled_dot_product_attention_backward");
}

size_t bytes_of(const View& view) { return static_cast<size_t>(view.numel()) * dtype_size(view.dtype); }

void launch_decode_cuda(const Launch& ungrouped) {
  const GroupedHeads grouped(ungrouped, "qkk.", "q");
  const Launch& launch = grouped.launch();
  const View &query = launch.inputs[0], &key = launch.inputs[1], &value = launch.inputs[2],
             &position = launch.inputs[3], &output = launch.outputs[0];
  AttentionArguments args;
  set_sizes(args, query, key, launch.attrs.f(0));
  set_operands(args,
               {{&args.query, &query, 2}, {&args.key, &key, 2}, {&args.value, &value, 2}, {&args.output, &output, 2}});
  args.position = position.data;
  args.position_is_int64 = position.dtype == DType::int64;
  cuda::attention_decode(args, query.dtype, cuda::stream_of(launch));
  cuda::check_launch("attention_decode");
}

}  // namespace

void add_attention_cuda(CudaTable& table) {
  table.add("scaled_dot_product_attention", launch_forward_cuda);
  table.add("scaled_dot_product_attention_backward", launch_backward_cuda,
            [](const Launch& launch) { return bytes_of(launch.inputs[5]); });
  table.add("qkv_attention", [](const Launch& launch) { launch_qkv_attention(launch, launch_forward_cuda); });
  table.add(
      "qkv_attention_backward",
      [](const Launch& launch) { launch_qkv_attention_backward(launch, launch_backward_cuda); },
      [](const Launch& launch) { return bytes_of(launch.inputs[3]); });
  table.add("attention_decode", launch_decode_cuda);
}

}  // namespace blutensor
