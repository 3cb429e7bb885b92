// Gradient descent over lists of tensors, with and without momentum: one launch for all tensors of a dtype.
//
// The order of operations is that of ops/optimizer/reference.h, each rounded on its own, so that the bits are the
// CPU's. Bytes per float32 parameter: 8 read, 4 written; 4 and 4 more with momentum.
// Benchmark: benchmarks/bench_layers_cuda.py --only optimizers
#include "ops/optimizer/chunk_table.cuh"
#include "ops/optimizer/optimizer_cuda.h"
#include "ops/optimizer/scalars.cuh"

namespace blutensor {

using namespace cuda;

namespace {

enum SgdInput : size_t { kLr, kGradScale, kSkip, kFixed };

struct Settings {
  Scalar lr, grad_scale, skip;
  double momentum, weight_decay;
  bool nesterov;
};

template <class T>
struct SgdTensor {
  T* param;
  const T* grad;
  T* momentum;  // or null
  int64_t numel;
};

template <class T>
struct Factors {
  T lr, grad_scale, momentum, weight_decay;
  bool nesterov;
};

template <class T, bool kMomentum>
__device__ inline void update(T& param, T grad, T& buffer, const Factors<T>& f) {
  T g = add(multiply(grad, f.grad_scale), multiply(f.weight_decay, param));
  if constexpr (kMomentum) {
    buffer = add(multiply(f.momentum, buffer), g);
    g = f.nesterov ? add(g, multiply(f.momentum, buffer)) : buffer;
  }
  param = add(param, -multiply(f.lr, g));
}

template <class T, bool kMomentum>
__global__ void __launch_bounds__(kChunkThreads)
    sgd(const __grid_constant__ ChunkTable<SgdTensor<T>> table, const Settings settings) {
  if (read(settings.skip, 0) != 0) return;
  const Factors<T> f{static_cast<T>(read(settings.lr, 0)), static_cast<T>(read(settings.grad_scale, 1)),
                     static_cast<T>(settings.momentum), static_cast<T>(settings.weight_decay), settings.nesterov};
  const Chunk chunk = chunk_of_block(table);
  const SgdTensor<T>& t = table.entries[chunk.tensor];
  T *const param = t.param + chunk.first, *const buffer = kMomentum ? t.momentum + chunk.first : nullptr;
  const T* const grad = t.grad + chunk.first;
  constexpr int kWidth = kPackOf<T>;
  const auto addresses =
      reinterpret_cast<uintptr_t>(param) | reinterpret_cast<uintptr_t>(grad) | reinterpret_cast<uintptr_t>(buffer);
  const int vectors = addresses % 16 == 0 ? chunk.count / kWidth : 0;
#pragma unroll 2
  for (int k = static_cast<int>(threadIdx.x); k < vectors; k += kChunkThreads) {
    const int at = k * kWidth;
    const Pack<T, kWidth> g = load_pack_streaming<kWidth>(grad + at);
    Pack<T, kWidth> w = load_pack<kWidth>(param + at), m = {};
    if constexpr (kMomentum) m = load_pack<kWidth>(buffer + at);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) update<T, kMomentum>(w[i], g[i], m[i], f);
    store_pack(param + at, w);
    if constexpr (kMomentum) store_pack(buffer + at, m);
  }
  for (int at = vectors * kWidth + static_cast<int>(threadIdx.x); at < chunk.count; at += kChunkThreads) {
    T m = kMomentum ? buffer[at] : T{0};
    update<T, kMomentum>(param[at], grad[at], m, f);
    if constexpr (kMomentum) buffer[at] = m;
  }
}

template <class T, bool kMomentum>
void update_all(std::span<const View> params, const ContiguousTensors& data, const Settings& settings,
                cudaStream_t stream) {
  const size_t length = params.size();
  const auto launch = [&](const ChunkTable<SgdTensor<T>>& table) {
    sgd<T, kMomentum><<<table.num_chunks(), kChunkThreads, 0, stream>>>(table, settings);
    check_launch("sgd_");
  };
  TableFiller<SgdTensor<T>, decltype(launch)> filler(launch);
  for (size_t i = 0; i < length; ++i) {
    if (params[i].dtype != dtype_of<T>::value) continue;
    filler.add({static_cast<T*>(data[i]), static_cast<const T*>(data[length + i]),
                kMomentum ? static_cast<T*>(data[2 * length + i]) : nullptr, params[i].numel()});
  }
  filler.flush();
}

template <bool kMomentum>
void pass(const Launch& launch, Execution& run, double momentum, bool nesterov, double weight_decay) {
  const auto length = static_cast<size_t>(launch.list_length);
  const auto lists = launch.inputs.subspan(kFixed);
  ContiguousTensors data(run, lists);
  if (run.dry() || length == 0) return;
  const Settings settings{scalar(launch.inputs[kLr]),
                          scalar(launch.inputs[kGradScale]),
                          scalar(launch.inputs[kSkip]),
                          momentum,
                          weight_decay,
                          nesterov};
  update_all<float, kMomentum>(lists.first(length), data, settings, stream_of(launch));
  update_all<double, kMomentum>(lists.first(length), data, settings, stream_of(launch));
  data.write_back(0, length);
  if (kMomentum) data.write_back(2 * length, 3 * length);
}

}  // namespace

void sgd_cuda(const Launch& launch, Execution& run) { pass<false>(launch, run, 0, false, launch.attrs.f(0)); }
void sgd_momentum_cuda(const Launch& launch, Execution& run) {
  pass<true>(launch, run, launch.attrs.f(0), launch.attrs.b(1), launch.attrs.f(2));
}

}  // namespace blutensor
