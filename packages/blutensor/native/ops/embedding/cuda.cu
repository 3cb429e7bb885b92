// embedding on CUDA: rows of weight [V, C] by ids [N] into y [N, C].
//
// Rows are moved as words of 16 bytes, or of the element's size where strides do not allow that. An id out of range is
// reported (ops/cuda/report.h) and row 0 taken in its place.
// Bytes: 2 N C elements. Benchmark: benchmarks/bench_layers_cuda.py --only embedding
#include "ops/cuda/report.h"
#include "ops/cuda/table.h"
#include "ops/cuda/vector.cuh"
#include "ops/embedding/embedding_cuda.h"
#include "ops/embedding/embedding_ids.h"

namespace blutensor {

using namespace cuda;

namespace {

constexpr int kThreads = 256;

struct Gather {
  const void* ids;
  DType dtype;
  int64_t count, limit;
  int64_t row, col;  // strides of the table, in words
  int64_t words;     // of a row
  Report* slot;
};

// A warp goes through one row after another.
template <class Word>
__global__ void __launch_bounds__(kThreads) gather_rows(const Word* table, Word* y, const Gather p) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t step = static_cast<int64_t>(gridDim.x) * (kThreads / 32);
  for (int64_t n = static_cast<int64_t>(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32; n < p.count; n += step) {
    int64_t id = load_element<int64_t>(p.ids, n, p.dtype);
    if (id < 0 || id >= p.limit) {
      if (lane == 0) report(p.slot, ReportCode::embedding_id, id, p.limit);
      id = 0;
    }
    if (p.limit == 0) continue;
    const Word* from = table + id * p.row;
    Word* to = y + n * p.words;
#pragma unroll 4
    for (int64_t j = lane; j < p.words; j += 32) to[j] = from[j * p.col];
  }
}

}  // namespace

void embedding_cuda(const Launch& launch, Execution& run) {
  const View &table = launch.inputs[1], &y = launch.outputs[0];
  const void* ids = run.contiguous(launch.inputs[0], launch.inputs[0].dtype);
  if (run.dry() || launch.inputs[0].numel() == 0) return;
  const auto size = static_cast<int64_t>(dtype_size(table.dtype)), bytes = table.shape[1] * size;
  const bool packs = table.strides[1] == 1 && bytes % 16 == 0 && table.strides[0] * size % 16 == 0 &&
                     is_aligned(table.data, 16) && is_aligned(y.data, 16);
  const int64_t word = packs ? 16 : size;
  const Gather p{ids,
                 launch.inputs[0].dtype,
                 launch.inputs[0].numel(),
                 num_ids(launch),
                 table.strides[0] * size / word,
                 table.strides[1],
                 bytes / word,
                 report_slot()};
  const auto gather = [&](auto tag) {
    using Word = typename decltype(tag)::type;
    const unsigned blocks = grid_for(p.count, kThreads / 32);
    gather_rows<<<blocks, kThreads, 0, stream_of(launch)>>>(table.ptr<const Word>(), y.ptr<Word>(), p);
    check_launch("embedding");
  };
  switch (word) {
    case 16:
      return gather(TypeTag<uint4>{});
    case 8:
      return gather(TypeTag<uint64_t>{});
    case 4:
      return gather(TypeTag<uint32_t>{});
    case 2:
      return gather(TypeTag<uint16_t>{});
    default:
      return gather(TypeTag<uint8_t>{});
  }
}

void add_embedding_cuda(CudaTable& table) {
  table.add("embedding", launch_of<embedding_cuda>, workspace_of<embedding_cuda>);
  table.add("embedding_backward", launch_of<embedding_backward_cuda>, workspace_of<embedding_backward_cuda>);
  table.add("embedding_backward_", launch_of<embedding_backward_in_place_cuda>,
            workspace_of<embedding_backward_in_place_cuda>);
}

}  // namespace blutensor
