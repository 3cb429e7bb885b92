// linear_cross_entropy on CUDA: x [N, C], weight W [V, C]; logits [n, V] exist for a chunk of n tokens only.
//
// Per chunk: logits = x W^T by a GEMM, in the operands' dtype; loss and, in place, dl = (softmax - onehot) scale by one
// pass over the rows (rows_cuda.cu); dx = dl W and dW (+)= dl^T x by GEMMs, dW in float32 for 16-bit operands. What a
// larger chunk saves is the reading and writing of dW once a chunk; kChunkBytes is where that is small beside the
// products. The products run over all rows of W, also those beyond num_classes: whole tiles are faster, and their
// gradient of the logits is 0.
// FLOPs: 6 N V C with gradients, 2 N V C without. Bytes beside the GEMMs': 2 N V elements. Workspace: one chunk of
// logits, and 8 N.
// Benchmark: benchmarks/bench_layers_cuda.py --only head
#include "ops/cuda/launch.h"
#include "ops/cuda/table.h"
#include "ops/linear_cross_entropy/head.h"
#include "ops/linear_cross_entropy/rows_cuda.h"

namespace blutensor {

using namespace cuda;

namespace {

enum HeadAttr { kIgnoreIndex, kReduction, kComputeX, kComputeWeight, kNumClasses };

constexpr int64_t kChunkBytes = int64_t{256} << 20;
constexpr int64_t kRowMultiple = 128;  // of the GEMMs' tiles

int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }
int64_t ceil_div(int64_t n, int64_t d) { return (n + d - 1) / d; }

// Tokens in a chunk: as many as fit, and chunks of about one size.
int64_t chunk_rows(int64_t tokens, int64_t row_bytes) {
  if (tokens == 0) return 0;
  const int64_t fitting =
      std::max(kRowMultiple, kChunkBytes / std::max<int64_t>(1, row_bytes) / kRowMultiple * kRowMultiple);
  return std::min(tokens, round_up(ceil_div(tokens, ceil_div(tokens, fitting)), kRowMultiple));
}

void head(const Launch& launch, Execution& run) {
  const View &x_view = launch.inputs[0], &weight_view = launch.inputs[1], &target_view = launch.inputs[2];
  const DType dtype = gemm_dtype(x_view.dtype);
  const int leading = x_view.rank() - 1;
  const Matrix x = run.matrix(x_view, leading, dtype), weight = run.matrix(weight_view, 1, dtype);
  const int64_t tokens = x.rows, vocabulary = weight.rows;
  const RowTargets targets{run.contiguous(target_view, target_view.dtype), target_view.dtype,
                           launch.attrs.i(kIgnoreIndex), num_classes(launch.attrs.i(kNumClasses), weight_view)};
  const bool wants_x = launch.attrs.b(kComputeX), wants_weight = launch.attrs.b(kComputeWeight);
  auto* losses = run.take<double>(tokens);
  auto* count = launch.attrs.s(kReduction) == "mean" ? run.take<int64_t>(1) : nullptr;
  // blublas writes the outputs themselves, but for float16, which is computed in float32.
  Matrix x_grad{}, weight_grad{};
  const bool x_direct = launch.outputs[1].dtype == dtype;
  if (wants_x && !(x_direct && as_matrix(launch.outputs[1], leading, &x_grad)))
    x_grad = run.scratch(tokens, x.cols, dtype);
  if (wants_weight) as_matrix(launch.outputs[2], 1, &weight_grad);
  const int64_t stride = round_up(vocabulary, 64);
  const int64_t rows = chunk_rows(tokens, stride * static_cast<int64_t>(dtype_size(dtype)));
  const Matrix logits = run.scratch(rows, stride, dtype).col_block(0, vocabulary);
  require(vocabulary < (int64_t{1} << 30), "[linear_cross_entropy] expected fewer than 2^30 classes, got ", vocabulary);

  if (!run.dry() && count) count_targets(targets, tokens, count, launch.stream);
  for (int64_t first = 0; first < tokens; first += rows) {
    const int64_t size = std::min(rows, tokens - first);
    const Matrix part = x.row_block(first, size), chunk = logits.row_block(0, size);
    run.gemm(make_gemm(part, weight.transposed(), chunk));
    if (!run.dry()) loss_rows(chunk, targets, first, losses, count, wants_x || wants_weight, launch.stream);
    if (wants_x) run.gemm(make_gemm(chunk, weight, x_grad.row_block(first, size)));
    if (wants_weight) {
      blublas_gemm_args args = make_gemm(chunk.transposed(), part, weight_grad);
      if (first > 0) args.epilogue |= BLUBLAS_EPILOGUE_ACCUMULATE;
      run.gemm(args);
    }
  }
  if (wants_x && !x_direct) run.store(x_grad, launch.outputs[1]);
  if (run.dry()) return;
  if (tokens == 0 && wants_weight && launch.outputs[2].numel() > 0)
    check(cudaMemsetAsync(weight_grad.data, 0,
                          static_cast<size_t>(launch.outputs[2].numel()) * dtype_size(weight_grad.dtype),
                          stream_of(launch)),
          "linear_cross_entropy");
  add_row_losses(losses, tokens, count, launch.outputs[0].data, launch.outputs[0].dtype, launch.stream);
}

}  // namespace

void add_linear_cross_entropy_cuda(CudaTable& table) {
  table.add("linear_cross_entropy", launch_of<head>, workspace_of<head>);
  table.add("linear_cross_entropy_scale", launch_of<scale_cuda>, workspace_of<scale_cuda>);
  table.add("linear_cross_entropy_scale_", launch_of<scale_in_place_cuda>, workspace_of<scale_in_place_cuda>);
}

}  // namespace blutensor
