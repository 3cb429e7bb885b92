// where(condition, a, b): packs of words for one dtype and a bool condition, one element at a time for all else.
#include "ops/elementwise/cuda.h"
#include "ops/elementwise/map.cuh"

namespace blutensor::cuda {

namespace {

template <class Word>
__global__ void __launch_bounds__(kMapThreads)
    where_packs(Word* out, const uint8_t* condition, const Word* a, const Word* b, PackPlan<3> plan) {
  constexpr int N = kPackOf<Word>;
  const auto load = [](const auto* p, bool splat) {
    Pack<std::remove_cvref_t<decltype(*p)>, N> pack;
    if (!splat) return load_pack<N>(p);
    const auto value = *p;
#pragma unroll
    for (int i = 0; i < N; ++i) pack[i] = value;
    return pack;
  };
  const int64_t step = int64_t{gridDim.x} * kMapThreads;
  for (int64_t i = int64_t{blockIdx.x} * kMapThreads + threadIdx.x; i < plan.num_packs; i += step) {
    int64_t offset[4] = {};
    plan.index.add_offsets(i, offset);
    const Pack<uint8_t, N> c = load(condition + offset[1], plan.splat[1]);
    const Pack<Word, N> x = load(a + offset[2], plan.splat[2]), y = load(b + offset[3], plan.splat[3]);
    Pack<Word, N> result;
#pragma unroll
    for (int j = 0; j < N; ++j) result[j] = c[j] ? x[j] : y[j];
    store_pack<N>(out + offset[0], result);
  }
  if (blockIdx.x == 0 && threadIdx.x < plan.tail) {
    const int64_t i = plan.num_packs * N + threadIdx.x;
    const auto at = [&](int k) { return plan.splat[k] ? 0 : i; };
    out[i] = condition[at(1)] ? a[at(2)] : b[at(3)];
  }
}

template <class Word>
__device__ void copy_word(void* out, int64_t to, const void* in, int64_t from) {
  static_cast<Word*>(out)[to] = static_cast<const Word*>(in)[from];
}

__global__ void __launch_bounds__(kMapThreads)
    where_any(void* out, DType dtype, int size, AnyOperands<3> operands, StridedIndex<4> index, int64_t numel) {
  const int64_t step = int64_t{gridDim.x} * kMapThreads;
  for (int64_t i = int64_t{blockIdx.x} * kMapThreads + threadIdx.x; i < numel; i += step) {
    int64_t offset[4] = {};
    index.add_offsets(i, offset);
    const bool chosen = load_element<double>(operands.data[0], offset[1], operands.dtype[0]) != 0;
    const void* from = chosen ? operands.data[1] : operands.data[2];
    const DType from_dtype = chosen ? operands.dtype[1] : operands.dtype[2];
    const int64_t at = chosen ? offset[2] : offset[3];
    if (from_dtype != dtype || dtype == DType::boolean) {
      if (from_dtype <= DType::float64)
        store_element<double>(out, offset[0], dtype, load_element<double>(from, at, from_dtype));
      else if (from_dtype == DType::uint64)
        store_element<uint64_t>(out, offset[0], dtype, load_element<uint64_t>(from, at, from_dtype));
      else
        store_element<int64_t>(out, offset[0], dtype, load_element<int64_t>(from, at, from_dtype));
      continue;
    }
    switch (size) {
      case 1:
        copy_word<uint8_t>(out, offset[0], from, at);
        break;
      case 2:
        copy_word<uint16_t>(out, offset[0], from, at);
        break;
      case 4:
        copy_word<uint32_t>(out, offset[0], from, at);
        break;
      default:
        copy_word<uint64_t>(out, offset[0], from, at);
        break;
    }
  }
}

}  // namespace

void launch_where(const Launch& args) {
  const View &out = args.outputs[0], &condition = args.inputs[0], &a = args.inputs[1], &b = args.inputs[2];
  const View* views[] = {&out, &condition, &a, &b};
  const Iteration it = make_iteration(out.shape, views);
  if (it.numel == 0) return;
  const cudaStream_t stream = stream_of(args);
  const auto size = static_cast<int>(dtype_size(out.dtype));
  PackPlan<3> plan;
  if (condition.dtype == DType::boolean && a.dtype == out.dtype && b.dtype == out.dtype &&
      plan_packs<3>(it, views, 16 / size, plan)) {
    const auto run = [&](auto tag) {
      using Word = typename decltype(tag)::type;
      where_packs<Word><<<map_blocks(std::max<int64_t>(plan.num_packs, 1), kMapThreads), kMapThreads, 0, stream>>>(
          out.ptr<Word>(), condition.ptr<const uint8_t>(), a.ptr<const Word>(), b.ptr<const Word>(), plan);
    };
    size == 1   ? run(TypeTag<uint8_t>{})
    : size == 2 ? run(TypeTag<uint16_t>{})
    : size == 4 ? run(TypeTag<uint32_t>{})
                : run(TypeTag<uint64_t>{});
  } else {
    AnyOperands<3> operands;
    for (int k = 0; k < 3; ++k) {
      operands.data[k] = args.inputs[static_cast<size_t>(k)].data;
      operands.dtype[k] = args.inputs[static_cast<size_t>(k)].dtype;
    }
    where_any<<<map_blocks(it.numel, kMapThreads), kMapThreads, 0, stream>>>(out.data, out.dtype, size, operands,
                                                                             StridedIndex<4>(it), it.numel);
  }
  check_launch("where");
}

}  // namespace blutensor::cuda
