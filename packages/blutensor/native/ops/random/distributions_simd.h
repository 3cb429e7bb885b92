// Random words to numbers, over the lanes of blublas/simd: included by reference.cpp, cpu_avx2.cpp and
// cpu_avx512.cpp, all with the same bits, so that weights drawn from a seed are the same on every machine.
#include <cstdint>

#include <blublas/simd/math.h>

#include "ops/random/random_kernels.h"

namespace blutensor {

namespace {

namespace simd = blublas::simd;

void dropout_f32(int64_t n, float* out, const float* x, const uint32_t* random, uint32_t threshold, float scale) {
  for (int64_t i = 0; i < n; ++i) out[i] = x[i] * ((random[i] >> 8) < threshold ? scale : 0.0f);
}

void uniform_f32(int64_t n, float* out, const uint32_t* random, double low, double width, float largest) {
  for (int64_t i = 0; i < n; ++i) {
    const auto u = static_cast<double>(static_cast<float>(static_cast<int32_t>(random[i] >> 8)) * kUnit24);
    const auto value = static_cast<float>(low + width * u);
    out[i] = value < largest ? value : largest;
  }
}

void normal_f32(int64_t n, float* out, const uint32_t* random, float mean, float deviation) {
  constexpr int64_t kPairs = 64;  // a multiple of every vector width
  float u[kPairs], v[kPairs];
  for (int64_t first = 0; first < n; first += 2 * kPairs) {
    const int64_t pairs = n - first < 2 * kPairs ? (n - first) / 2 : kPairs;
    for (int64_t i = 0; i < pairs; ++i) {
      // u = (k + 1/2) / 2^24, never 0
      u[i] = (static_cast<float>(static_cast<int32_t>(random[first + 2 * i] >> 8)) + 0.5f) * kUnit24;
      v[i] = static_cast<float>(static_cast<int32_t>(random[first + 2 * i + 1] >> 8)) * kUnit24;
    }
    for (int64_t i = pairs; i < kPairs; ++i) u[i] = v[i] = 0.5f;
    for (int64_t i = 0; i < pairs; i += simd::kLanes) {
      const simd::F radius =
          simd::broadcast(deviation) * simd::sqrt(simd::broadcast(-2.0f) * simd::log(simd::load(u + i)));
      simd::F sine, cosine;
      simd::sin_cos_turn(simd::load(v + i), sine, cosine);
      simd::store(u + i, simd::fma(radius, cosine, simd::broadcast(mean)));
      simd::store(v + i, simd::fma(radius, sine, simd::broadcast(mean)));
    }
    for (int64_t i = 0; i < pairs; ++i) {
      out[first + 2 * i] = u[i];
      out[first + 2 * i + 1] = v[i];
    }
  }
}

void use_distributions(RandomKernels& kernels) {
  kernels.dropout_f32 = dropout_f32;
  kernels.uniform_f32 = uniform_f32;
  kernels.normal_f32 = normal_f32;
}

}  // namespace

}  // namespace blutensor
