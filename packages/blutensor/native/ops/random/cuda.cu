// Random numbers on the device: the words of philox.h, and from them the numbers of the CPU, bit for bit in float32.
//
// A thread makes the four words of a group and with them four elements (two of float64). uniform and normal write
// 4 (2, 8) bytes per element; dropout reads as many besides. Ten rounds are 40 multiplications and 60 other
// instructions a group: beside 16 bytes of bfloat16 dropout just less than what memory takes. Benchmark:
// benchmarks/bench_memory_cuda.py.
#include <cmath>

#include "ops/cuda/math.cuh"
#include "ops/cuda/ptx/integer.cuh"
#include "ops/cuda/table.h"
#include "ops/cuda/vector.cuh"
#include "ops/random/random_kernels.h"

namespace blutensor {

namespace cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kGroup = 4;  // words

unsigned num_blocks(int64_t n) {
  return static_cast<unsigned>(std::min<int64_t>((n + kThreads - 1) / kThreads, 1 << 30));
}

// ---------------------------------------------------------------- words

struct DeviceStream {
  uint32_t key0, key1, op_id, step;
};

// state: {seed, step}.
__device__ DeviceStream stream_from(const int64_t* state, int64_t stride, uint32_t op_id) {
  const auto seed = static_cast<uint64_t>(state[0]);
  return {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32), op_id, static_cast<uint32_t>(state[stride])};
}

__device__ inline uint4 draw(const DeviceStream& stream, int64_t group) {
  uint32_t c0 = static_cast<uint32_t>(group), c1 = static_cast<uint32_t>(static_cast<uint64_t>(group) >> 32);
  uint32_t c2 = stream.op_id, c3 = stream.step, key0 = stream.key0, key1 = stream.key1;
#pragma unroll
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const uint64_t product0 = ptx::multiply_wide(kPhiloxMultiplier0, c0);
    const uint64_t product1 = ptx::multiply_wide(kPhiloxMultiplier1, c2);
    c0 = static_cast<uint32_t>(product1 >> 32) ^ c1 ^ key0;
    c1 = static_cast<uint32_t>(product1);
    c2 = static_cast<uint32_t>(product0 >> 32) ^ c3 ^ key1;
    c3 = static_cast<uint32_t>(product0);
    key0 += kPhiloxWeyl0;
    key1 += kPhiloxWeyl1;
  }
  return {c0, c1, c2, c3};
}

__device__ inline float unit_float(uint32_t word) { return __fmul_rn(static_cast<float>(word >> 8), kUnit24); }
__device__ inline double unit_double(uint32_t high, uint32_t low) {
  return static_cast<double>(((uint64_t{high} << 32) | low) >> 11) * 0x1p-53;
}

// ---------------------------------------------------------------- distributions

struct Uniform {
  double low, width;
  float largest;  // rounding must not reach the open end
  double below;
  __device__ float one(uint32_t word) const {
    const auto value = __double2float_rn(__dadd_rn(low, __dmul_rn(width, static_cast<double>(unit_float(word)))));
    return value < largest ? value : largest;
  }
  __device__ void fill(const uint4& w, float (&out)[4]) const {
    out[0] = one(w.x);
    out[1] = one(w.y);
    out[2] = one(w.z);
    out[3] = one(w.w);
  }
  __device__ void fill(const uint4& w, double (&out)[2]) const {
    const double first = __dadd_rn(low, __dmul_rn(width, unit_double(w.x, w.y)));
    const double second = __dadd_rn(low, __dmul_rn(width, unit_double(w.z, w.w)));
    out[0] = first < below ? first : below;
    out[1] = second < below ? second : below;
  }
};

struct Normal {
  double mean, deviation;
  __device__ void pair(uint32_t first, uint32_t second, float& a, float& b) const {
    const float u = __fmul_rn(__fadd_rn(static_cast<float>(first >> 8), 0.5f), kUnit24);
    const float radius = __fmul_rn(static_cast<float>(deviation), __fsqrt_rn(__fmul_rn(-2.0f, log_f32(u))));
    float sine, cosine;
    sin_cos_turn(unit_float(second), sine, cosine);
    a = __fmaf_rn(radius, cosine, static_cast<float>(mean));
    b = __fmaf_rn(radius, sine, static_cast<float>(mean));
  }
  __device__ void fill(const uint4& w, float (&out)[4]) const {
    pair(w.x, w.y, out[0], out[1]);
    pair(w.z, w.w, out[2], out[3]);
  }
  __device__ void fill(const uint4& w, double (&out)[2]) const {
    const double u = unit_double(w.x, w.y) + 0x1p-54, turns = 2 * unit_double(w.z, w.w);
    const double radius = deviation * sqrt(-2 * log(u));
    double sine, cosine;
    sincospi(turns, &sine, &cosine);
    out[0] = mean + radius * cosine;
    out[1] = mean + radius * sine;
  }
};

// T: type of the result; the numbers are made in float, or double for double.
template <class T, class Distribution>
__global__ void __launch_bounds__(kThreads)
    generate(T* out, int64_t numel, const int64_t* state, int64_t state_stride, uint32_t op_id, Distribution d) {
  using C = device_compute_t<T>;
  constexpr int kNumbers = std::is_same_v<T, double> ? 2 : 4;
  const DeviceStream stream = stream_from(state, state_stride, op_id);
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t group = int64_t{blockIdx.x} * kThreads + threadIdx.x; group * kNumbers < numel; group += step) {
    C numbers[kNumbers];
    d.fill(draw(stream, group), numbers);
    const int64_t first = group * kNumbers;
    if (first + kNumbers <= numel) {
      Pack<C, kNumbers> pack;
#pragma unroll
      for (int i = 0; i < kNumbers; ++i) pack[i] = numbers[i];
      store_pack<kNumbers>(out + first, convert_pack<T>(pack));
    } else {
      for (int i = 0; first + i < numel; ++i) out[first + i] = convert<T>(numbers[i]);
    }
  }
}

// ---------------------------------------------------------------- dropout

// x: contiguous and aligned, P groups of four elements a thread.
template <class T, int P>
__global__ void __launch_bounds__(kThreads)
    dropout_packs(T* out, const T* x, int64_t num_packs, int64_t numel, const int64_t* state, int64_t state_stride,
                  uint32_t op_id, uint32_t limit, float scale) {
  constexpr int N = P * kGroup;
  const DeviceStream stream = stream_from(state, state_stride, op_id);
  const int64_t step = int64_t{gridDim.x} * kThreads;
  const auto keep = [&](uint32_t word) { return word <= limit ? scale : 0.0f; };
  Pack<T, N> next;
  const int64_t first = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (first < num_packs) next = load_pack<N>(x + first * N);
  for (int64_t pack = first; pack < num_packs; pack += step) {
    Pack<float, N> values = convert_pack<float>(next);
    if (pack + step < num_packs) next = load_pack<N>(x + (pack + step) * N);  // under way while bits are drawn
#pragma unroll
    for (int p = 0; p < P; ++p) {
      const uint4 words = draw(stream, pack * P + p);
      values[p * kGroup] *= keep(words.x);
      values[p * kGroup + 1] *= keep(words.y);
      values[p * kGroup + 2] *= keep(words.z);
      values[p * kGroup + 3] *= keep(words.w);
    }
    store_pack<N>(out + pack * N, convert_pack<T>(values));
  }
  const int64_t i = num_packs * N + threadIdx.x;
  if (blockIdx.x == 0 && i < numel) {
    const uint4 words = draw(stream, i / kGroup);
    const int lane = static_cast<int>(i % kGroup);
    out[i] = convert<T>(convert<float>(x[i]) * keep(lane == 0   ? words.x
                                                    : lane == 1 ? words.y
                                                    : lane == 2 ? words.z
                                                                : words.w));
  }
}

// x of any strides; `out` is row-major, so positions are its element numbers.
template <class C>
__global__ void __launch_bounds__(kThreads)
    dropout_any(void* out, const void* x, DType dtype, StridedIndex<2> index, int64_t numel, const int64_t* state,
                int64_t state_stride, uint32_t op_id, uint32_t limit, C scale) {
  const DeviceStream stream = stream_from(state, state_stride, op_id);
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t group = int64_t{blockIdx.x} * kThreads + threadIdx.x; group * kGroup < numel; group += step) {
    const uint4 words = draw(stream, group);
    const uint32_t word[kGroup] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      const int64_t position = group * kGroup + i;
      if (position >= numel) break;
      int64_t offset[2] = {};
      index.add_offsets(position, offset);
      const C value = load_element<C>(x, offset[1], dtype);
      store_element<C>(out, offset[0], dtype, value * (word[i] <= limit ? scale : C(0)));
    }
  }
}

__global__ void advance(int64_t* state, int64_t stride) { state[stride] += 1; }

}  // namespace

}  // namespace cuda

namespace {

enum DrawAttr { kShape, kFirst, kSecond, kDType, kOpId };

template <class Distribution>
void launch_draw(const Launch& args, const Distribution& distribution) {
  const View &out = args.outputs[0], &state = args.inputs[0];
  const int64_t numel = out.numel();
  if (numel == 0) return;
  const auto op_id = static_cast<uint32_t>(args.attrs.i(kOpId));
  const int64_t groups = (numel + 3) / (out.dtype == DType::float64 ? 2 : 4);
  cuda::visit_device_floating(out.dtype, "random", [&](auto tag) {
    using T = typename decltype(tag)::type;
    cuda::generate<T><<<cuda::num_blocks(groups), cuda::kThreads, 0, cuda::stream_of(args)>>>(
        out.ptr<T>(), numel, state.ptr<const int64_t>(), state.strides[0], op_id, distribution);
  });
  cuda::check_launch("random");
}

void launch_uniform(const Launch& args) {
  const double low = args.attrs.f(kFirst), width = args.attrs.f(kSecond) - low;
  launch_draw(args, cuda::Uniform{low, width, std::nextafter(static_cast<float>(low + width), static_cast<float>(low)),
                                  std::nextafter(low + width, low)});
}

void launch_normal(const Launch& args) { launch_draw(args, cuda::Normal{args.attrs.f(kFirst), args.attrs.f(kSecond)}); }

// An element stays when its 24 random bits are below a threshold, as on the CPU: when the word they are the upper bits
// of is at most this. (For p = 1 every element stays, with scale 0.)
uint32_t keep_limit(double p) {
  const auto threshold = static_cast<uint32_t>(std::ceil(static_cast<double>(static_cast<float>(1 - p)) * 0x1p24));
  return (threshold << 8) - 1u;
}

void launch_dropout(const Launch& args) {
  const View &x = args.inputs[0], &out = args.outputs[0], &state = args.inputs[1];
  const int64_t numel = out.numel();
  if (numel == 0) return;
  const double p = args.attrs.f(0), scale = p < 1 ? 1 / (1 - p) : 0;
  const uint32_t limit = keep_limit(p);
  const auto op_id = static_cast<uint32_t>(args.attrs.i(1));
  const auto* words = state.ptr<const int64_t>();
  const cudaStream_t stream = cuda::stream_of(args);
  if (x.dtype != DType::float64 && x.dtype == out.dtype && x.contiguous() && cuda::is_aligned(x.data, 16) &&
      cuda::is_aligned(out.data, 16)) {
    cuda::visit_device_float(x.dtype, "dropout", [&](auto tag) {
      using T = typename decltype(tag)::type;
      constexpr int kGroups = sizeof(T) == 2 ? 2 : 1;
      const int64_t packs = numel / (kGroups * cuda::kGroup);
      cuda::dropout_packs<T, kGroups><<<cuda::grid_for(packs, cuda::kThreads * 4, 32), cuda::kThreads, 0, stream>>>(
          out.ptr<T>(), x.ptr<const T>(), packs, numel, words, state.strides[0], op_id, limit,
          static_cast<float>(scale));
    });
  } else {
    const View* views[] = {&out, &x};
    const cuda::StridedIndex<2> index{make_iteration(out.shape, views)};
    const unsigned blocks = cuda::num_blocks((numel + cuda::kGroup - 1) / cuda::kGroup);
    if (x.dtype == DType::float64)
      cuda::dropout_any<double><<<blocks, cuda::kThreads, 0, stream>>>(out.data, x.data, x.dtype, index, numel, words,
                                                                       state.strides[0], op_id, limit, scale);
    else
      cuda::dropout_any<float><<<blocks, cuda::kThreads, 0, stream>>>(
          out.data, x.data, x.dtype, index, numel, words, state.strides[0], op_id, limit, static_cast<float>(scale));
  }
  cuda::check_launch("dropout");
}

void launch_advance(const Launch& args) {
  const View& state = args.inputs[0];
  cuda::advance<<<1, 1, 0, cuda::stream_of(args)>>>(state.ptr<int64_t>(), state.strides[0]);
  cuda::check_launch("rng_advance_");
}

}  // namespace

void add_random_cuda(CudaTable& table) {
  table.add("uniform", launch_uniform);
  table.add("normal", launch_normal);
  table.add("dropout", launch_dropout);
  table.add("dropout_backward", launch_dropout);
  table.add("rng_advance_", launch_advance);
}

}  // namespace blutensor
