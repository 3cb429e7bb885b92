// float32 block kernels, written once over the lanes of blublas/simd: reference.cpp includes this file compiled for
// the baseline (one lane), cpu_avx2.cpp and cpu_avx512.cpp for their instruction sets. All give the same bits.
//
// Memory-bound but for the transcendental functions: 8 bytes per element (unary), 12 or 8 (binary); exp, tanh and
// GELU cost 15 to 35 vector operations per lane group.
#include <cmath>
#include <cstdint>

#include <blublas/simd/math.h>

#include "ops/elementwise/elementwise_kernels.h"

namespace blutensor {

namespace {

namespace simd = blublas::simd;
using simd::F;

// ---------------------------------------------------------------- operators on lanes

struct Negative {
  static F apply(F a) { return simd::negate(a); }
};
struct Absolute {
  static F apply(F a) { return simd::absolute(a); }
};
struct Sign {
  static F apply(F a) {
    const F zero = simd::broadcast(0.0f), one = simd::broadcast(1.0f);
    return simd::select(simd::less(zero, a), one, simd::select(simd::less(a, zero), simd::negate(one), a));
  }
};
struct Square {
  static F apply(F a) { return a * a; }
};
struct Reciprocal {
  static F apply(F a) { return simd::broadcast(1.0f) / a; }
};
struct Exp {
  static F apply(F a) { return simd::exp(a); }
};
struct Log {
  static F apply(F a) { return simd::log(a); }
};
struct Sqrt {
  static F apply(F a) { return simd::sqrt(a); }
};
struct Rsqrt {
  static F apply(F a) { return simd::broadcast(1.0f) / simd::sqrt(a); }
};
struct Tanh {
  static F apply(F a) { return simd::tanh(a); }
};
struct Erf {
  static F apply(F a) { return simd::erf(a); }
};
struct GeluTanh {
  static F apply(F a) { return simd::gelu_tanh(a); }
};
struct GeluErf {
  static F apply(F a) { return simd::gelu_erf(a); }
};

struct Sigmoid {
  static F apply(F a) { return simd::sigmoid(a); }
};
// Beyond 1000 e^-x is infinite or 0: infinities give the limits.
inline F bounded(F a) { return simd::min(simd::broadcast(1000.0f), simd::max(simd::broadcast(-1000.0f), a)); }
struct Silu {
  static F apply(F a) {
    const F one = simd::broadcast(1.0f);
    return simd::max(simd::broadcast(-1000.0f), a) / (one + simd::exp(simd::negate(a)));
  }
};
struct Relu {
  static F apply(F a) { return simd::max(simd::broadcast(0.0f), a); }  // NaN passes
};

struct Add {
  static F apply(F a, F b) { return a + b; }
};
struct Subtract {
  static F apply(F a, F b) { return a - b; }
};
struct Multiply {
  static F apply(F a, F b) { return a * b; }
};
struct Divide {
  static F apply(F a, F b) { return a / b; }
};
struct Maximum {
  static F apply(F a, F b) { return simd::select(simd::is_nan(a), a, simd::max(a, b)); }
};
struct Minimum {
  static F apply(F a, F b) { return simd::select(simd::is_nan(a), a, simd::min(a, b)); }
};
struct GeluTanhBackward {
  static F apply(F g, F x) { return g * simd::gelu_tanh_gradient(x); }
};
struct GeluErfBackward {
  static F apply(F g, F x) { return g * simd::gelu_erf_gradient(x); }
};
struct SiluBackward {
  static F apply(F g, F x) {
    const F a = bounded(x), s = simd::sigmoid(a), one = simd::broadcast(1.0f);
    return g * (s * (one + a * (one - s)));
  }
};

struct Equal {
  static bool apply(float a, float b) { return a == b; }
};
struct NotEqual {
  static bool apply(float a, float b) { return a != b; }
};
struct Less {
  static bool apply(float a, float b) { return a < b; }
};
struct LessEqual {
  static bool apply(float a, float b) { return a <= b; }
};
struct Greater {
  static bool apply(float a, float b) { return a > b; }
};
struct GreaterEqual {
  static bool apply(float a, float b) { return a >= b; }
};

// ---------------------------------------------------------------- loops

// A page ahead: a long function leaves the processor too little room to reach the next page's first misses by itself
// (GELU of 2^20 elements from beyond L2: 0.91 ms without, 0.47 ms with).
inline void prefetch_ahead([[maybe_unused]] const float* in, [[maybe_unused]] float* out) {
  if constexpr (simd::kLanes > 1) {
    __builtin_prefetch(in + 1024, 0);
    __builtin_prefetch(out + 1024, 1);
  }
}

template <class Op>
void unary(int64_t n, void* out, const void* a) {
  auto* o = static_cast<float*>(out);
  const auto* p = static_cast<const float*>(a);
  int64_t i = 0;
  for (; i + simd::kLanes <= n; i += simd::kLanes) {
    prefetch_ahead(p + i, o + i);
    simd::store(o + i, Op::apply(simd::load(p + i)));
  }
  if (i < n) simd::store_first(o + i, Op::apply(simd::load_first(p + i, n - i)), n - i);
}

template <class Op>
void binary(int64_t n, void* out, const void* a, const void* b, Scalar scalar) {
  auto* o = static_cast<float*>(out);
  const auto* p = static_cast<const float*>(a);
  const auto* q = static_cast<const float*>(b);
  int64_t i = 0;
  if (scalar == Scalar::none) {
    for (; i + simd::kLanes <= n; i += simd::kLanes) {
      prefetch_ahead(p + i, o + i);
      prefetch_ahead(q + i, o + i);
      simd::store(o + i, Op::apply(simd::load(p + i), simd::load(q + i)));
    }
    if (i < n)
      simd::store_first(o + i, Op::apply(simd::load_first(p + i, n - i), simd::load_first(q + i, n - i)), n - i);
  } else if (scalar == Scalar::first) {
    const F s = simd::broadcast(*p);
    for (; i + simd::kLanes <= n; i += simd::kLanes) simd::store(o + i, Op::apply(s, simd::load(q + i)));
    if (i < n) simd::store_first(o + i, Op::apply(s, simd::load_first(q + i, n - i)), n - i);
  } else {
    const F s = simd::broadcast(*q);
    for (; i + simd::kLanes <= n; i += simd::kLanes) simd::store(o + i, Op::apply(simd::load(p + i), s));
    if (i < n) simd::store_first(o + i, Op::apply(simd::load_first(p + i, n - i), s), n - i);
  }
}

// Plain loops: the compiler vectorizes them.
template <class Op>
void compare(int64_t n, void* out, const void* a, const void* b, Scalar scalar) {
  auto* o = static_cast<uint8_t*>(out);
  const auto* p = static_cast<const float*>(a);
  const auto* q = static_cast<const float*>(b);
  if (scalar == Scalar::none) {
    for (int64_t i = 0; i < n; ++i) o[i] = Op::apply(p[i], q[i]);
  } else if (scalar == Scalar::first) {
    const float s = *p;
    for (int64_t i = 0; i < n; ++i) o[i] = Op::apply(s, q[i]);
  } else {
    const float s = *q;
    for (int64_t i = 0; i < n; ++i) o[i] = Op::apply(p[i], s);
  }
}

void is_nan_block(int64_t n, void* out, const void* a) {
  auto* o = static_cast<uint8_t*>(out);
  const auto* p = static_cast<const float*>(a);
  for (int64_t i = 0; i < n; ++i) o[i] = p[i] != p[i];
}
void is_finite_block(int64_t n, void* out, const void* a) {
  auto* o = static_cast<uint8_t*>(out);
  const auto* p = static_cast<const float*>(a);
  for (int64_t i = 0; i < n; ++i) o[i] = p[i] - p[i] == 0.0f;  // inf - inf and NaN - NaN are NaN
}

// Moves bits: the same for every dtype of the size.
template <class Word>
void where(int64_t n, void* out, const void* condition, const void* a, const void* b) {
  auto* o = static_cast<Word*>(out);
  const auto* c = static_cast<const uint8_t*>(condition);
  const auto* p = static_cast<const Word*>(a);
  const auto* q = static_cast<const Word*>(b);
  for (int64_t i = 0; i < n; ++i) o[i] = c[i] ? p[i] : q[i];
}

// ---------------------------------------------------------------- table

void use_float32(ElementwiseKernels& kernels) {
  const auto unary_entry = [&](UnaryOp op) -> UnaryKernel& {
    return kernels.unary[static_cast<int>(op)][static_cast<int>(DType::float32)];
  };
  const auto binary_entry = [&](BinaryOp op) -> BinaryKernel& {
    return kernels.binary[static_cast<int>(op)][static_cast<int>(DType::float32)];
  };
  unary_entry(UnaryOp::negative) = unary<Negative>;
  unary_entry(UnaryOp::absolute) = unary<Absolute>;
  unary_entry(UnaryOp::sign) = unary<Sign>;
  unary_entry(UnaryOp::square) = unary<Square>;
  unary_entry(UnaryOp::reciprocal) = unary<Reciprocal>;
  unary_entry(UnaryOp::exp) = unary<Exp>;
  unary_entry(UnaryOp::log) = unary<Log>;
  unary_entry(UnaryOp::sqrt) = unary<Sqrt>;
  unary_entry(UnaryOp::rsqrt) = unary<Rsqrt>;
  unary_entry(UnaryOp::tanh) = unary<Tanh>;
  unary_entry(UnaryOp::erf) = unary<Erf>;
  unary_entry(UnaryOp::gelu_tanh) = unary<GeluTanh>;
  unary_entry(UnaryOp::gelu_erf) = unary<GeluErf>;
  unary_entry(UnaryOp::sigmoid) = unary<Sigmoid>;
  unary_entry(UnaryOp::silu) = unary<Silu>;
  unary_entry(UnaryOp::relu) = unary<Relu>;
  unary_entry(UnaryOp::isnan) = is_nan_block;
  unary_entry(UnaryOp::isfinite) = is_finite_block;
  binary_entry(BinaryOp::add) = binary<Add>;
  binary_entry(BinaryOp::subtract) = binary<Subtract>;
  binary_entry(BinaryOp::multiply) = binary<Multiply>;
  binary_entry(BinaryOp::divide) = binary<Divide>;
  binary_entry(BinaryOp::maximum) = binary<Maximum>;
  binary_entry(BinaryOp::minimum) = binary<Minimum>;
  binary_entry(BinaryOp::gelu_tanh_backward) = binary<GeluTanhBackward>;
  binary_entry(BinaryOp::gelu_erf_backward) = binary<GeluErfBackward>;
  binary_entry(BinaryOp::silu_backward) = binary<SiluBackward>;
  binary_entry(BinaryOp::equal) = compare<Equal>;
  binary_entry(BinaryOp::not_equal) = compare<NotEqual>;
  binary_entry(BinaryOp::less) = compare<Less>;
  binary_entry(BinaryOp::less_equal) = compare<LessEqual>;
  binary_entry(BinaryOp::greater) = compare<Greater>;
  binary_entry(BinaryOp::greater_equal) = compare<GreaterEqual>;
  for (int dtype = 0; dtype < kNumDTypes; ++dtype) {
    switch (dtype_size(static_cast<DType>(dtype))) {
      case 1:
        kernels.where[dtype] = where<uint8_t>;
        break;
      case 2:
        kernels.where[dtype] = where<uint16_t>;
        break;
      case 4:
        kernels.where[dtype] = where<uint32_t>;
        break;
      default:
        kernels.where[dtype] = where<uint64_t>;
        break;
    }
  }
}

}  // namespace

}  // namespace blutensor
