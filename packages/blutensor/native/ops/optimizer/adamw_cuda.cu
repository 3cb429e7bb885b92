// AdamW over lists of tensors, one launch for all tensors of a dtype.
//
// adamw_step computes the scalars of the step in double, on the device, since lr, step, grad_scale and skip live there;
// adamw then makes one pass over the chunks. Every operation rounds on its own (no contraction), in the order of
// ops/optimizer/reference.h: given the same scalars, the bits are those of the CPU.
// Bytes per float32 parameter: 16 read, 12 written; 2 more written where a bfloat16 copy of a master is kept.
// Benchmark: benchmarks/bench_layers_cuda.py --only optimizers
#include "ops/optimizer/chunk_table.cuh"
#include "ops/optimizer/optimizer_cuda.h"
#include "ops/optimizer/optimizer_kernels.h"
#include "ops/optimizer/scalars.cuh"

namespace blutensor {

using namespace cuda;

namespace {

enum AdamwInput : size_t { kLr, kStep, kGradScale, kSkip, kFixed };
enum AdamwList : size_t { kParams, kGrads, kExpAvgs, kExpAvgSqs, kMasters, kLists };
enum AdamwAttr { kBeta1, kBeta2, kEps, kWeightDecay };

// ---------------------------------------------------------------- scalars

struct Steps {
  AdamwStep<float> f32;
  AdamwStep<double> f64;
  int skip;
};

template <class T>
__device__ AdamwStep<T> rounded(const AdamwStep<double>& s) {
  return {static_cast<T>(s.grad_scale), static_cast<T>(s.decay),      static_cast<T>(s.beta1_rest),
          static_cast<T>(s.beta2),      static_cast<T>(s.beta2_rest), static_cast<T>(s.bias2_sqrt),
          static_cast<T>(s.eps),        static_cast<T>(s.step_size)};
}

struct StepInputs {
  Scalar lr, step, grad_scale, skip;
  double beta1, beta2, eps, weight_decay;
};

__global__ void adamw_step(const StepInputs in, Steps* out) {
  const double lr = read(in.lr, 0), step = read(in.step, 1);
  const double bias1 = 1 - pow(in.beta1, step), bias2 = 1 - pow(in.beta2, step);
  const AdamwStep<double> s{read(in.grad_scale, 1),
                            __dsub_rn(1, __dmul_rn(lr, in.weight_decay)),
                            1 - in.beta1,
                            in.beta2,
                            1 - in.beta2,
                            sqrt(bias2),
                            in.eps,
                            lr / bias1};
  *out = {rounded<float>(s), s, read(in.skip, 0) != 0};
}

// ---------------------------------------------------------------- the pass

template <class T>
__device__ inline void update(T& weight, T grad, T& exp_avg, T& exp_avg_sq, const AdamwStep<T>& s) {
  const T g = multiply(grad, s.grad_scale);
  exp_avg = add(exp_avg, multiply(s.beta1_rest, add(g, -exp_avg)));
  exp_avg_sq = add(multiply(exp_avg_sq, s.beta2), multiply(s.beta2_rest, multiply(g, g)));
  const T denominator = add(divide(root(exp_avg_sq), s.bias2_sqrt), s.eps);
  weight = add(multiply(weight, s.decay), -multiply(s.step_size, divide(exp_avg, denominator)));
}

template <class T>
struct AdamwTensor {
  T* weights;  // the parameter, or its master
  const T* grad;
  T *exp_avg, *exp_avg_sq;
  __nv_bfloat16* copy;  // the parameter of which `weights` is the master, or null
  int64_t numel;
};

__device__ const AdamwStep<float>& step_of(const Steps& s, float) { return s.f32; }
__device__ const AdamwStep<double>& step_of(const Steps& s, double) { return s.f64; }

template <class T>
__global__ void __launch_bounds__(kChunkThreads)
    adamw(const __grid_constant__ ChunkTable<AdamwTensor<T>> table, const Steps* steps) {
  if (steps->skip) return;
  const AdamwStep<T> s = step_of(*steps, T{});
  const Chunk chunk = chunk_of_block(table);
  const AdamwTensor<T>& t = table.entries[chunk.tensor];
  T *const weights = t.weights + chunk.first, *const exp_avg = t.exp_avg + chunk.first,
           *const exp_avg_sq = t.exp_avg_sq + chunk.first;
  const T* const grad = t.grad + chunk.first;
  __nv_bfloat16* const copy = t.copy ? t.copy + chunk.first : nullptr;
  constexpr int kWidth = kPackOf<T>;
  const auto addresses = reinterpret_cast<uintptr_t>(weights) | reinterpret_cast<uintptr_t>(grad) |
                         reinterpret_cast<uintptr_t>(exp_avg) | reinterpret_cast<uintptr_t>(exp_avg_sq) |
                         (reinterpret_cast<uintptr_t>(copy) * 2);
  const int vectors = addresses % 16 == 0 ? chunk.count / kWidth : 0;
#pragma unroll 2
  for (int k = static_cast<int>(threadIdx.x); k < vectors; k += kChunkThreads) {
    const int at = k * kWidth;
    const Pack<T, kWidth> g = load_pack_streaming<kWidth>(grad + at);
    Pack<T, kWidth> w = load_pack<kWidth>(weights + at), m = load_pack<kWidth>(exp_avg + at),
                    v = load_pack<kWidth>(exp_avg_sq + at);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) update<T>(w[i], g[i], m[i], v[i], s);
    store_pack(weights + at, w);
    store_pack(exp_avg + at, m);
    store_pack(exp_avg_sq + at, v);
    if (copy) store_pack(copy + at, convert_pack<__nv_bfloat16>(w));
  }
  for (int at = vectors * kWidth + static_cast<int>(threadIdx.x); at < chunk.count; at += kChunkThreads) {
    update<T>(weights[at], grad[at], exp_avg[at], exp_avg_sq[at], s);
    if (copy) copy[at] = convert<__nv_bfloat16>(weights[at]);
  }
}

template <class T>
void update_all(std::span<const View> params, const ContiguousTensors& data, const Steps* steps, cudaStream_t stream) {
  const size_t length = params.size();
  const auto launch = [&](const ChunkTable<AdamwTensor<T>>& table) {
    adamw<T><<<table.num_chunks(), kChunkThreads, 0, stream>>>(table, steps);
    check_launch("adamw_");
  };
  TableFiller<AdamwTensor<T>, decltype(launch)> filler(launch);
  for (size_t i = 0; i < length; ++i) {
    const bool has_master = params[i].dtype == DType::bfloat16;
    if ((params[i].dtype == DType::float64) != std::is_same_v<T, double>) continue;
    const auto ptr = [&](size_t list) { return static_cast<T*>(data[list * length + i]); };
    filler.add({ptr(has_master ? kMasters : kParams), ptr(kGrads), ptr(kExpAvgs), ptr(kExpAvgSqs),
                has_master ? static_cast<__nv_bfloat16*>(data[i]) : nullptr, params[i].numel()});
  }
  filler.flush();
}

}  // namespace

void adamw_cuda(const Launch& launch, Execution& run) {
  const auto length = static_cast<size_t>(launch.list_length);
  const auto lists = launch.inputs.subspan(kFixed);
  const auto params = lists.first(length);
  auto* steps = run.take<Steps>(1);
  ContiguousTensors data(run, lists);
  if (run.dry() || length == 0) return;
  const Attrs& attrs = launch.attrs;
  const StepInputs inputs{scalar(launch.inputs[kLr]),
                          scalar(launch.inputs[kStep]),
                          scalar(launch.inputs[kGradScale]),
                          scalar(launch.inputs[kSkip]),
                          attrs.f(kBeta1),
                          attrs.f(kBeta2),
                          attrs.f(kEps),
                          attrs.f(kWeightDecay)};
  adamw_step<<<1, 1, 0, stream_of(launch)>>>(inputs, steps);
  check_launch("adamw_");
  update_all<float>(params, data, steps, stream_of(launch));
  update_all<double>(params, data, steps, stream_of(launch));
  data.write_back(0, length,
                  [&](size_t i) { return params[i].dtype == DType::bfloat16 ? data[kMasters * length + i] : data[i]; });
  data.write_back(kExpAvgs * length, lists.size());
}

}  // namespace blutensor
