// The Euclidean norm of all gradients together, without a look from the host.
//
// sum_squares adds the squares of each chunk in double (per thread, then over the block), root_of_sum the chunks' sums
// in an order that their number decides. Bytes: every gradient once.
// Benchmark: benchmarks/bench_layers_cuda.py --only optimizers
#include "ops/cuda/reduce.cuh"
#include "ops/optimizer/chunk_table.cuh"
#include "ops/optimizer/optimizer_cuda.h"

namespace blutensor {

using namespace cuda;

namespace {

constexpr int kFinalThreads = 1024;

struct NormTensor {
  const void* data;
  int64_t numel;
  DType dtype;
};

template <class T>
__device__ double squares(const T* x, int count) {
  constexpr int kWidth = kPackOf<T>;
  const int vectors = reinterpret_cast<uintptr_t>(x) % 16 == 0 ? count / kWidth : 0;
  double sum = 0;
#pragma unroll 4
  for (int k = static_cast<int>(threadIdx.x); k < vectors; k += kChunkThreads) {
    const Pack<double, kWidth> v = convert_pack<double>(load_pack<kWidth>(x + k * kWidth));
#pragma unroll
    for (int i = 0; i < kWidth; ++i) sum += v[i] * v[i];
  }
  for (int at = vectors * kWidth + static_cast<int>(threadIdx.x); at < count; at += kChunkThreads) {
    const double v = convert<double>(x[at]);
    sum += v * v;
  }
  return sum;
}

__global__ void __launch_bounds__(kChunkThreads)
    sum_squares(const __grid_constant__ ChunkTable<NormTensor> table, double* partial) {
  __shared__ double shared[kChunkThreads / kWarpSize];
  const Chunk chunk = chunk_of_block(table);
  const NormTensor& t = table.entries[chunk.tensor];
  double sum = 0;
  switch (t.dtype) {
    case DType::float32:
      sum = squares(static_cast<const float*>(t.data) + chunk.first, chunk.count);
      break;
    case DType::bfloat16:
      sum = squares(static_cast<const __nv_bfloat16*>(t.data) + chunk.first, chunk.count);
      break;
    case DType::float16:
      sum = squares(static_cast<const __half*>(t.data) + chunk.first, chunk.count);
      break;
    default:
      sum = squares(static_cast<const double*>(t.data) + chunk.first, chunk.count);
  }
  sum = block_sum<kChunkThreads>(sum, shared);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kFinalThreads) root_of_sum(const double* partial, int64_t count, float* norm) {
  __shared__ double shared[kFinalThreads / kWarpSize];
  double sum = 0;
  for (int64_t k = threadIdx.x; k < count; k += kFinalThreads) sum += partial[k];
  sum = block_sum<kFinalThreads>(sum, shared);
  if (threadIdx.x == 0) *norm = static_cast<float>(sqrt(sum));
}

}  // namespace

void grad_norm_cuda(const Launch& launch, Execution& run) {
  int64_t chunks = 0;
  for (const View& grad : launch.inputs) chunks += (grad.numel() + kChunk - 1) / kChunk;
  auto* partial = run.take<double>(chunks);
  ContiguousTensors data(run, launch.inputs);
  if (run.dry()) return;
  double* next = partial;
  const auto launch_table = [&](const ChunkTable<NormTensor>& table) {
    sum_squares<<<table.num_chunks(), kChunkThreads, 0, stream_of(launch)>>>(table, next);
    check_launch("grad_norm");
    next += table.num_chunks();
  };
  TableFiller<NormTensor, decltype(launch_table)> filler(launch_table);
  for (size_t i = 0; i < launch.inputs.size(); ++i)
    filler.add({data[i], launch.inputs[i].numel(), launch.inputs[i].dtype});
  filler.flush();
  root_of_sum<<<1, kFinalThreads, 0, stream_of(launch)>>>(partial, chunks, launch.outputs[0].ptr<float>());
  check_launch("grad_norm");
}

}  // namespace blutensor
