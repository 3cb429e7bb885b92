// What CUDA kernels are made of: element types on the device, conversions, 16-byte packs, strided indexing.
//
// In memory elements are float, __nv_bfloat16, __half, double, integers of every width and bool; kernels compute on the
// 16-bit floats in float. visit_device() turns a DType into such a type.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "ops/cuda/launch.h"
#include "ops/elementwise/iteration.h"

namespace blutensor::cuda {

// ---------------------------------------------------------------- element types

// visit_device(dtype, [&](auto tag) { using T = typename decltype(tag)::type; ... }). Every type is an instantiation:
// kernels of rare types rather take the DType and load_element().
template <class F>
decltype(auto) visit_device(DType dtype, F&& f) {
  switch (dtype) {
    case DType::float32:
      return f(TypeTag<float>{});
    case DType::bfloat16:
      return f(TypeTag<__nv_bfloat16>{});
    case DType::float16:
      return f(TypeTag<__half>{});
    case DType::float64:
      return f(TypeTag<double>{});
    case DType::int64:
      return f(TypeTag<int64_t>{});
    case DType::int32:
      return f(TypeTag<int32_t>{});
    case DType::uint8:
      return f(TypeTag<uint8_t>{});
    case DType::uint16:
      return f(TypeTag<uint16_t>{});
    case DType::boolean:
      return f(TypeTag<bool>{});
    case DType::int8:
      return f(TypeTag<int8_t>{});
    case DType::int16:
      return f(TypeTag<int16_t>{});
    case DType::uint32:
      return f(TypeTag<uint32_t>{});
    case DType::uint64:
      return f(TypeTag<uint64_t>{});
  }
  fail(Status::invalid_type, "unknown dtype number ", static_cast<int>(dtype));
}

// float32 and the 16-bit floats: what is trained with.
template <class F>
decltype(auto) visit_device_float(DType dtype, const char* op, F&& f) {
  switch (dtype) {
    case DType::float32:
      return f(TypeTag<float>{});
    case DType::bfloat16:
      return f(TypeTag<__nv_bfloat16>{});
    case DType::float16:
      return f(TypeTag<__half>{});
    default:
      fail(Status::invalid_type, "[", op, "] expected float32, bfloat16 or float16, got ", dtype_name(dtype));
  }
}
// All four floating types.
template <class F>
decltype(auto) visit_device_floating(DType dtype, const char* op, F&& f) {
  return dtype == DType::float64 ? f(TypeTag<double>{}) : visit_device_float(dtype, op, f);
}

template <class T>
inline constexpr bool is_16_bit = std::is_same_v<T, __nv_bfloat16> || std::is_same_v<T, __half>;

// The type in which kernels compute on T.
template <class T>
using device_compute_t = std::conditional_t<is_16_bit<T>, float, T>;

// Device code cannot call std::numeric_limits.
template <class T>
inline constexpr T kLowestInteger = std::numeric_limits<T>::min();
template <class T>
inline constexpr T kHighestInteger = std::numeric_limits<T>::max();

// ---------------------------------------------------------------- conversions (rules: ops/copy/copy_kernels.h)

// A double as float, rounded to odd: rounding once more to a narrower type then gives what rounding once would have.
__device__ inline float round_to_odd_float(double value) {
  const float nearest = __double2float_rn(value);
  const double back = static_cast<double>(nearest);
  if (back == value || value != value || isinf(nearest)) return nearest;
  uint32_t word = __float_as_uint(nearest);
  if (fabs(back) > fabs(value)) --word;  // towards zero
  return __uint_as_float(word | 1u);
}
__device__ inline double round_to_odd_double(uint64_t magnitude) {
  if (magnitude >> 53) magnitude = (magnitude & ~uint64_t{2047}) | ((magnitude & 2047) ? 2048 : 0);
  return static_cast<double>(magnitude);
}
__device__ inline double round_to_odd_double(int64_t value) {
  return value < 0 ? -round_to_odd_double(0 - static_cast<uint64_t>(value))
                   : round_to_odd_double(static_cast<uint64_t>(value));
}

template <class To, class From>
__device__ inline To convert(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (std::is_same_v<From, __nv_bfloat16>) {
    return convert<To>(__bfloat162float(value));
  } else if constexpr (std::is_same_v<From, __half>) {
    return convert<To>(__half2float(value));
  } else if constexpr (std::is_same_v<To, bool>) {
    return value != From{0};
  } else if constexpr (is_16_bit<To>) {
    if constexpr (std::is_same_v<From, double>) {
      return convert<To>(round_to_odd_float(value));
    } else if constexpr (!std::is_same_v<From, float>) {
      using Wide = std::conditional_t<std::is_same_v<From, uint64_t>, uint64_t, int64_t>;
      return convert<To>(round_to_odd_float(round_to_odd_double(static_cast<Wide>(value))));
    } else if constexpr (std::is_same_v<To, __half>) {
      return __float2half_rn(value);
    } else {
      return __float2bfloat16_rn(value);
    }
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    if (value != value) return To{0};
    if (value <= static_cast<From>(kLowestInteger<To>)) return kLowestInteger<To>;
    if (value >= static_cast<From>(kHighestInteger<To>)) return kHighestInteger<To>;
    return static_cast<To>(value);
  } else {
    return static_cast<To>(value);
  }
}

// Element i of memory of a dtype known at run time, converted to C (float, double, int64_t or uint64_t): a switch that all
// threads of a grid take alike. A bool may hold any byte: not zero is true.
template <class C>
__device__ inline C load_element(const void* p, int64_t i, DType dtype) {
  switch (dtype) {
    case DType::float32:
      return convert<C>(static_cast<const float*>(p)[i]);
    case DType::bfloat16:
      return convert<C>(static_cast<const __nv_bfloat16*>(p)[i]);
    case DType::float16:
      return convert<C>(static_cast<const __half*>(p)[i]);
    case DType::float64:
      return convert<C>(static_cast<const double*>(p)[i]);
    case DType::int64:
      return convert<C>(static_cast<const int64_t*>(p)[i]);
    case DType::int32:
      return convert<C>(static_cast<const int32_t*>(p)[i]);
    case DType::uint8:
      return convert<C>(static_cast<const uint8_t*>(p)[i]);
    case DType::uint16:
      return convert<C>(static_cast<const uint16_t*>(p)[i]);
    case DType::int8:
      return convert<C>(static_cast<const int8_t*>(p)[i]);
    case DType::int16:
      return convert<C>(static_cast<const int16_t*>(p)[i]);
    case DType::uint32:
      return convert<C>(static_cast<const uint32_t*>(p)[i]);
    case DType::uint64:
      return convert<C>(static_cast<const uint64_t*>(p)[i]);
    default:
      return static_cast<C>(static_cast<const uint8_t*>(p)[i] != 0);
  }
}
template <class C>
__device__ inline void store_element(void* p, int64_t i, DType dtype, C value) {
  switch (dtype) {
    case DType::float32:
      static_cast<float*>(p)[i] = convert<float>(value);
      break;
    case DType::bfloat16:
      static_cast<__nv_bfloat16*>(p)[i] = convert<__nv_bfloat16>(value);
      break;
    case DType::float16:
      static_cast<__half*>(p)[i] = convert<__half>(value);
      break;
    case DType::float64:
      static_cast<double*>(p)[i] = convert<double>(value);
      break;
    case DType::int64:
      static_cast<int64_t*>(p)[i] = convert<int64_t>(value);
      break;
    case DType::int32:
      static_cast<int32_t*>(p)[i] = convert<int32_t>(value);
      break;
    case DType::uint8:
      static_cast<uint8_t*>(p)[i] = convert<uint8_t>(value);
      break;
    case DType::uint16:
      static_cast<uint16_t*>(p)[i] = convert<uint16_t>(value);
      break;
    case DType::int8:
      static_cast<int8_t*>(p)[i] = convert<int8_t>(value);
      break;
    case DType::int16:
      static_cast<int16_t*>(p)[i] = convert<int16_t>(value);
      break;
    case DType::uint32:
      static_cast<uint32_t*>(p)[i] = convert<uint32_t>(value);
      break;
    case DType::uint64:
      static_cast<uint64_t*>(p)[i] = convert<uint64_t>(value);
      break;
    default:
      static_cast<uint8_t*>(p)[i] = convert<bool>(value);
      break;
  }
}

// ---------------------------------------------------------------- packs

// N elements that are loaded and stored together, 16 bytes at a time; their address is a multiple of
// min(16, sizeof(Pack)).
template <class T, int N>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Pack {
  T v[N];
  __device__ T& operator[](int i) { return v[i]; }
  __device__ const T& operator[](int i) const { return v[i]; }
};
// Elements of T in 16 bytes.
template <class T>
inline constexpr int kPackOf = 16 / static_cast<int>(sizeof(T));

template <int N, class T>
__device__ inline Pack<T, N> load_pack(const T* p) {
  return *reinterpret_cast<const Pack<T, N>*>(p);
}
template <int N, class T>
__device__ inline void store_pack(T* p, const Pack<T, N>& pack) {
  *reinterpret_cast<Pack<T, N>*>(p) = pack;
}
// Of data that no later kernel finds in L2: it is evicted first.
template <int N, class T>
__device__ inline Pack<T, N> load_pack_streaming(const T* p) {
  static_assert(sizeof(Pack<T, N>) % 16 == 0);
  Pack<T, N> pack;
#pragma unroll
  for (size_t i = 0; i < sizeof(Pack<T, N>) / 16; ++i)
    reinterpret_cast<uint4*>(&pack)[i] = __ldcs(reinterpret_cast<const uint4*>(p) + i);
  return pack;
}

// Two 16-bit floats in a word, the first in its low half.
template <class T>
__device__ inline float2 unpack_pair(uint32_t word) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return {__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u)};
  } else {
    __half2 pair;
    memcpy(&pair, &word, sizeof(pair));
    return __half22float2(pair);
  }
}
template <class T>
__device__ inline uint32_t pack_pair(float first, float second) {
  uint32_t word;
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
    memcpy(&word, &pair, sizeof(word));
  } else {
    const __half2 pair = __floats2half2_rn(first, second);
    memcpy(&word, &pair, sizeof(word));
  }
  return word;
}

// Packs to and from the type that is computed in. 16-bit floats are taken two at a time, as the words that were loaded:
// element by element the compiler would first cut all words apart.
template <class C, class T, int N>
__device__ inline Pack<C, N> convert_pack(const Pack<T, N>& from) {
  Pack<C, N> to;
  if constexpr (N % 2 == 0 && is_16_bit<C> && std::is_same_v<T, float>) {
#pragma unroll
    for (int i = 0; i < N; i += 2) {
      const uint32_t word = pack_pair<C>(from[i], from[i + 1]);
      memcpy(&to.v[i], &word, sizeof(word));
    }
  } else if constexpr (N % 2 == 0 && is_16_bit<T> && std::is_same_v<C, float>) {
#pragma unroll
    for (int i = 0; i < N; i += 2) {
      uint32_t word;
      memcpy(&word, &from.v[i], sizeof(word));
      const float2 pair = unpack_pair<T>(word);
      to[i] = pair.x;
      to[i + 1] = pair.y;
    }
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) to[i] = convert<C>(from[i]);
  }
  return to;
}

inline bool is_aligned(const void* p, size_t bytes) { return reinterpret_cast<uintptr_t>(p) % bytes == 0; }

// ---------------------------------------------------------------- strided indexing

// n / divisor for n < 2^31 by one multiplication (Granlund and Montgomery 1994).
struct Divider {
  uint32_t divisor = 1, multiplier = 1, shift = 0;

  Divider() = default;
  explicit Divider(uint32_t d) : divisor(d) {  // 1 <= d <= 2^31
    while ((uint64_t{1} << shift) < d) ++shift;
    multiplier = static_cast<uint32_t>(((uint64_t{1} << 32) * ((uint64_t{1} << shift) - d)) / d + 1);
  }
  __device__ uint32_t divide(uint32_t n) const { return (__umulhi(n, multiplier) + n) >> shift; }
};

// The same for n < 2^63; the compiler's own division is a call.
struct WideDivider {
  uint64_t divisor = 1, multiplier = 1;
  uint32_t shift = 0;

  WideDivider() = default;
  explicit WideDivider(uint64_t d) : divisor(d) {  // 1 <= d <= 2^63
    __extension__ typedef unsigned __int128 Product;
    while ((uint64_t{1} << shift) < d) ++shift;
    multiplier = static_cast<uint64_t>((Product{1} << 64) * ((uint64_t{1} << shift) - d) / d + 1);
  }
  __device__ uint64_t divide(uint64_t n) const { return (__umul64hi(n, multiplier) + n) >> shift; }
};

// Where position i of a shape lies in each of K operands: passed by value to kernels. Axis 0 is the innermost.
template <int K>
struct StridedIndex {
  int rank = 0;
  bool wide = false;  // positions reach 2^31
  Divider divider[kMaxRank];
  WideDivider wide_divider[kMaxRank];
  int64_t stride[K][kMaxRank] = {};

  StridedIndex() = default;
  // Axes [first_axis, rank) of an iteration; positions are counted over these alone.
  explicit StridedIndex(const Iteration& it, int first_axis = 0) : rank(it.rank - first_axis) {
    int64_t numel = 1;
    for (int axis = 0; axis < rank; ++axis) {
      const auto from = static_cast<size_t>(axis + first_axis);
      const int64_t extent = std::max<int64_t>(it.extent[from], 1);
      numel *= extent;
      wide_divider[axis] = WideDivider(static_cast<uint64_t>(extent));
      if (extent <= (int64_t{1} << 31) - 1) divider[axis] = Divider(static_cast<uint32_t>(extent));
      for (int k = 0; k < K; ++k) stride[k][axis] = it.stride[static_cast<size_t>(k)][from];
    }
    wide = numel > (int64_t{1} << 31) - 1;
  }

  // Adds the offsets of position i, in elements.
  __device__ void add_offsets(int64_t i, int64_t (&offset)[K]) const {
    if (rank == 1) {
#pragma unroll
      for (int k = 0; k < K; ++k) offset[k] += i * stride[k][0];
      return;
    }
    if (wide) {
#pragma unroll 1
      for (int axis = 0; axis < rank; ++axis) {
        const auto rest = static_cast<int64_t>(wide_divider[axis].divide(static_cast<uint64_t>(i)));
        const int64_t index = i - rest * static_cast<int64_t>(wide_divider[axis].divisor);
        i = rest;
#pragma unroll
        for (int k = 0; k < K; ++k) offset[k] += index * stride[k][axis];
      }
      return;
    }
    auto n = static_cast<uint32_t>(i);
#pragma unroll 1
    for (int axis = 0; axis < rank; ++axis) {
      const uint32_t rest = divider[axis].divide(n);
      const uint32_t index = n - rest * divider[axis].divisor;
      n = rest;
#pragma unroll
      for (int k = 0; k < K; ++k) offset[k] += static_cast<int64_t>(index) * stride[k][axis];
    }
  }
};

}  // namespace blutensor::cuda
