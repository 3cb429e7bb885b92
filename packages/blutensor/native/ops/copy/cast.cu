// Copies that change the dtype: packs between float32 and the 16-bit floats (and the integers that ids come in), one
// element at a time for every other pair and layout.
#include "ops/copy/cuda_copy.h"
#include "ops/cuda/vector.cuh"

namespace blutensor::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kUnroll = 6;

// Elements of a pack: 16 bytes of the wider type, so that neighbouring lanes touch neighbouring sectors.
template <class To, class From>
inline constexpr int kElements = 16 / static_cast<int>(sizeof(To) > sizeof(From) ? sizeof(To) : sizeof(From));

unsigned num_blocks(int64_t n, int64_t per_block) {
  return static_cast<unsigned>(std::min<int64_t>((n + per_block - 1) / per_block, 1 << 30));
}

template <class To, class From>
__global__ void __launch_bounds__(kThreads)
    cast_packs(To* to, const From* from, StridedIndex<2> index, int64_t num_packs, int tail) {
  constexpr int N = kElements<To, From>;
  // `all`: no pack is beyond the end.
  const auto run = [&](int64_t first, auto all) {
    Pack<From, N> in[kUnroll];
    int64_t at[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (!all.value && first + u * kThreads >= num_packs) break;
      int64_t offset[2] = {};
      index.add_offsets(first + u * kThreads, offset);
      at[u] = offset[0];
      in[u] = load_pack<N>(from + offset[1]);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
      if (all.value || first + u * kThreads < num_packs) store_pack<N>(to + at[u], convert_pack<To>(in[u]));
  };
  constexpr int64_t kPerBlock = int64_t{kThreads} * kUnroll;
  for (int64_t block = blockIdx.x * kPerBlock; block < num_packs; block += gridDim.x * kPerBlock) {
    if (block + kPerBlock <= num_packs)
      run(block + threadIdx.x, std::true_type{});
    else
      run(block + threadIdx.x, std::false_type{});
  }
  if (blockIdx.x == 0 && threadIdx.x < tail) {
    const int64_t i = num_packs * N + threadIdx.x;
    to[i] = convert<To>(from[i]);
  }
}

// C: float, double, int64_t or uint64_t, whichever holds every value of the source's dtype.
template <class C>
__global__ void __launch_bounds__(kThreads)
    cast_any(void* to, DType to_dtype, const void* from, DType from_dtype, StridedIndex<2> index, int64_t numel) {
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < numel; i += step) {
    int64_t offset[2] = {};
    index.add_offsets(i, offset);
    store_element<C>(to, offset[0], to_dtype, load_element<C>(from, offset[1], from_dtype));
  }
}

// Both sides contiguous along the inner axis, in whole packs or without outer axes.
bool allows_packs(const Iteration& it, const View& to, const View& from) {
  const int elements = 16 / static_cast<int>(std::max(dtype_size(to.dtype), dtype_size(from.dtype)));
  if (it.extent[0] % elements != 0 && it.rank > 1) return false;
  if (!is_aligned(to.data, static_cast<size_t>(elements) * dtype_size(to.dtype)) ||
      !is_aligned(from.data, static_cast<size_t>(elements) * dtype_size(from.dtype)))
    return false;
  for (size_t k = 0; k < 2; ++k) {
    if (it.stride[k][0] != 1) return false;
    for (size_t axis = 1; axis < static_cast<size_t>(it.rank); ++axis)
      if (it.stride[k][axis] % elements != 0) return false;
  }
  return true;
}

template <class To, class From>
void launch_packs(Iteration it, const View& to, const View& from, cudaStream_t stream) {
  constexpr int N = kElements<To, From>;
  const int64_t num_packs = it.numel / N;
  const auto tail = static_cast<int>(it.numel % N);
  it.extent[0] /= N;
  it.stride[0][0] = it.stride[1][0] = N;
  cast_packs<To, From><<<num_blocks(std::max<int64_t>(num_packs, 1), kThreads * kUnroll), kThreads, 0, stream>>>(
      to.ptr<To>(), from.ptr<const From>(), num_packs > 0 ? StridedIndex<2>(it) : StridedIndex<2>{}, num_packs, tail);
}

bool try_packs(const Iteration& it, const View& to, const View& from, cudaStream_t stream) {
  if (!allows_packs(it, to, from)) return false;
  const auto pair = [&](DType a, DType b) { return from.dtype == a && to.dtype == b; };
  using enum DType;
  if (pair(float32, bfloat16))
    launch_packs<__nv_bfloat16, float>(it, to, from, stream);
  else if (pair(bfloat16, float32))
    launch_packs<float, __nv_bfloat16>(it, to, from, stream);
  else if (pair(float32, float16))
    launch_packs<__half, float>(it, to, from, stream);
  else if (pair(float16, float32))
    launch_packs<float, __half>(it, to, from, stream);
  else if (pair(uint16, int64))
    launch_packs<int64_t, uint16_t>(it, to, from, stream);
  else if (pair(uint16, int32))
    launch_packs<int32_t, uint16_t>(it, to, from, stream);
  else
    return false;
  return true;
}

}  // namespace

void copy_view(const View& destination, const View& source, cudaStream_t stream) {
  if (destination.data == source.data && destination.dtype == source.dtype && destination.shape == source.shape &&
      destination.strides == source.strides)
    return;
  if (destination.dtype == source.dtype && source.dtype != DType::boolean)
    return copy_same_dtype(destination, source, stream);
  const View* views[] = {&destination, &source};
  const Iteration it = make_iteration(destination.shape, views);
  if (it.numel == 0) return;
  if (!try_packs(it, destination, source, stream)) {
    const auto run = [&](auto kernel) {
      kernel<<<num_blocks(it.numel, kThreads), kThreads, 0, stream>>>(destination.data, destination.dtype, source.data,
                                                                      source.dtype, StridedIndex<2>(it), it.numel);
    };
    if (source.dtype == DType::float64)
      run(cast_any<double>);
    else if (is_floating(source.dtype))
      run(cast_any<float>);
    else if (source.dtype == DType::uint64)
      run(cast_any<uint64_t>);
    else
      run(cast_any<int64_t>);
  }
  check_launch("copy");
}

}  // namespace blutensor::cuda
