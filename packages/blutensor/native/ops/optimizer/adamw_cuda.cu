// AdamW over lists of tensors, one launch for all tensors of a dtype, whatever their groups.
//
// The first thread of each block computes the scalars of its chunk's group in double, since lr, step, grad_scale and
// skip live on the device; the block then makes one pass over the chunk. Every operation rounds on its own (no contraction), in the order of
// ops/optimizer/reference.h: given the same scalars, the bits are those of the CPU.
// Bytes per float32 parameter: 16 read, 12 written; 2 more written where a bfloat16 copy of a master is kept.
// Benchmark: benchmarks/bench_layers_cuda.py --only optimizers
#include "ops/optimizer/adamw.h"
#include "ops/optimizer/chunk_table.cuh"
#include "ops/optimizer/optimizer_cuda.h"
#include "ops/optimizer/scalars.cuh"

namespace blutensor {

using namespace cuda;

namespace {

// ---------------------------------------------------------------- scalars

// Groups of one launch: what adamw_settings() tells apart.
constexpr int kMaxGroups = 8;

struct Group {
  Scalar lr;
  double beta1, beta2, eps, weight_decay;
};

struct StepInputs {
  Scalar step, grad_scale, skip;
  Group groups[kMaxGroups];
};

__device__ AdamwStep<double> step_of(const StepInputs& in, const Group& group) {
  const double lr = read(group.lr, 0), step = read(in.step, 1);
  const double bias1 = 1 - pow(group.beta1, step), bias2 = 1 - pow(group.beta2, step);
  return {read(in.grad_scale, 1),
          __dsub_rn(1, __dmul_rn(lr, group.weight_decay)),
          1 - group.beta1,
          group.beta2,
          1 - group.beta2,
          sqrt(bias2),
          group.eps,
          lr / bias1};
}

template <class T>
__device__ AdamwStep<T> rounded_to(const AdamwStep<double>& s) {
  return {static_cast<T>(s.grad_scale), static_cast<T>(s.decay),      static_cast<T>(s.beta1_rest),
          static_cast<T>(s.beta2),      static_cast<T>(s.beta2_rest), static_cast<T>(s.bias2_sqrt),
          static_cast<T>(s.eps),        static_cast<T>(s.step_size)};
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
  int64_t numel : 56;
  int64_t group : 8;  // in StepInputs
};

// Four (of float64, two) elements of each of the tensors.
template <class T>
struct Elements {
  static constexpr int kWidth = kPackOf<T>;
  Pack<T, kWidth> grad, weights, exp_avg, exp_avg_sq;
};

template <class T>
__global__ void __launch_bounds__(kChunkThreads)
    adamw(const __grid_constant__ ChunkTable<AdamwTensor<T>> table, const __grid_constant__ StepInputs inputs) {
  __shared__ AdamwStep<T> shared_step;
  const Chunk chunk = chunk_of_block(table);
  const AdamwTensor<T>& t = table.entries[chunk.tensor];
  if (threadIdx.x == 0) shared_step = rounded_to<T>(step_of(inputs, inputs.groups[t.group]));
  const bool skip = read(inputs.skip, 0) != 0;
  __syncthreads();
  if (skip) return;
  const AdamwStep<T> s = shared_step;
  T *const weights = t.weights + chunk.first, *const exp_avg = t.exp_avg + chunk.first,
           *const exp_avg_sq = t.exp_avg_sq + chunk.first;
  const T* const grad = t.grad + chunk.first;
  __nv_bfloat16* const copy = t.copy ? t.copy + chunk.first : nullptr;
  constexpr int kWidth = kPackOf<T>, kUnroll = 2, kStride = kChunkThreads * kWidth;
  const auto addresses = reinterpret_cast<uintptr_t>(weights) | reinterpret_cast<uintptr_t>(grad) |
                         reinterpret_cast<uintptr_t>(exp_avg) | reinterpret_cast<uintptr_t>(exp_avg_sq) |
                         (reinterpret_cast<uintptr_t>(copy) * 2);
  const int in_vectors = addresses % 16 == 0 ? chunk.count / kWidth * kWidth : 0;
  const auto load = [&](Elements<T>& e, int at) {
    e.grad = load_pack_streaming<kWidth>(grad + at);
    e.weights = load_pack<kWidth>(weights + at);
    e.exp_avg = load_pack_streaming<kWidth>(exp_avg + at);
    e.exp_avg_sq = load_pack_streaming<kWidth>(exp_avg_sq + at);
  };
  const auto finish = [&](Elements<T>& e, int at) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) update<T>(e.weights[i], e.grad[i], e.exp_avg[i], e.exp_avg_sq[i], s);
    store_pack(weights + at, e.weights);
    store_pack(exp_avg + at, e.exp_avg);
    store_pack(exp_avg_sq + at, e.exp_avg_sq);
    if (copy) store_pack(copy + at, convert_pack<__nv_bfloat16>(e.weights));
  };
  int at = static_cast<int>(threadIdx.x) * kWidth;
  for (; at + (kUnroll - 1) * kStride < in_vectors; at += kUnroll * kStride) {
    Elements<T> e[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) load(e[u], at + u * kStride);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) finish(e[u], at + u * kStride);
  }
  for (; at < in_vectors; at += kStride) {
    Elements<T> e;
    load(e, at);
    finish(e, at);
  }
  for (at = in_vectors + static_cast<int>(threadIdx.x); at < chunk.count; at += kChunkThreads) {
    update<T>(weights[at], grad[at], exp_avg[at], exp_avg_sq[at], s);
    if (copy) copy[at] = convert<__nv_bfloat16>(weights[at]);
  }
}

template <class T>
void update_all(const Launch& launch, const ContiguousTensors& data) {
  const auto length = static_cast<size_t>(launch.list_length);
  const auto params = launch.inputs.subspan(kAdamwFixed, length);
  StepInputs inputs{scalar(launch.inputs[kStep]), scalar(launch.inputs[kGradScale]), scalar(launch.inputs[kSkip]), {}};
  std::vector<AdamwSettings> groups;
  const auto pass = [&](const ChunkTable<AdamwTensor<T>>& table) {
    adamw<T><<<table.num_chunks(), kChunkThreads, 0, stream_of(launch)>>>(table, inputs);
    check_launch("adamw_");
  };
  TableFiller<AdamwTensor<T>, decltype(pass)> filler(pass);
  const auto group_of = [&](const AdamwSettings& settings) {
    const auto found = std::find(groups.begin(), groups.end(), settings);
    if (found != groups.end()) return found - groups.begin();
    if (groups.size() == kMaxGroups) {
      filler.flush();
      groups.clear();
    }
    inputs.groups[groups.size()] = {scalar(*settings.lr), settings.beta1, settings.beta2, settings.eps,
                                    settings.weight_decay};
    groups.push_back(settings);
    return static_cast<std::ptrdiff_t>(groups.size()) - 1;
  };
  for (size_t i = 0; i < length; ++i) {
    const bool has_master = params[i].dtype == DType::bfloat16;
    if ((params[i].dtype == DType::float64) != std::is_same_v<T, double>) continue;
    const auto ptr = [&](size_t list) { return static_cast<T*>(data[list * length + i]); };
    filler.add({ptr(has_master ? kMasters : kParams), ptr(kGrads), ptr(kExpAvgs), ptr(kExpAvgSqs),
                has_master ? static_cast<__nv_bfloat16*>(data[i]) : nullptr, params[i].numel(),
                group_of(adamw_settings(launch, i))});
  }
  filler.flush();
}

}  // namespace

void adamw_cuda(const Launch& launch, Execution& run) {
  const auto length = static_cast<size_t>(launch.list_length);
  const auto lists = launch.inputs.subspan(kAdamwFixed);
  const auto params = lists.first(length);
  ContiguousTensors data(run, lists.first(kLrs * length));
  if (run.dry() || length == 0) return;
  update_all<float>(launch, data);
  update_all<double>(launch, data);
  data.write_back(0, length,
                  [&](size_t i) { return params[i].dtype == DType::bfloat16 ? data[kMasters * length + i] : data[i]; });
  data.write_back(kExpAvgs * length, kLrs * length);
}

}  // namespace blutensor
