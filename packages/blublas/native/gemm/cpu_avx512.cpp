// Kernels for AVX-512: 14 x 32 float, 14 x 16 double. 28 of 32 registers hold sums.
// Benchmark: python benchmarks/gemm.py
#include "gemm/finish.h"
#include "gemm/kernels.h"
#include "gemm/micro.h"
#include "gemm/pack.h"
#include "gemm/small.h"
#include "simd/vector_avx512.h"

namespace blublas {
namespace {

constexpr int kMr = 14, kVectors = 2;

// kc: so many products are added in one chain before the sum goes to memory; longer chains round worse. mc x kg of A
// stays in the second level of cache, about.
template <typename V>
constexpr GemmKernels<typename V::Element> table(const char* name, int64_t kc, int64_t mc) {
  return {name,
          kMr,
          kVectors * V::width,
          kc,
          mc,
          12,
          Micro<V, kMr, kVectors>::packed,
          Micro<V, kMr, kVectors>::in_place,
          pack<V>,
          finish<V>,
          row_sum<V>,
          small_dot<V>,
          small_axpy<V>};
}

}  // namespace

const KernelSet avx512_kernels{"avx512", BLUBLAS_CPU_AVX2 | BLUBLAS_CPU_AVX512,
                               table<Float16>("gemm_f32_avx512_14x32", 256, 378),
                               table<Double8>("gemm_f64_avx512_14x16", 384, 182)};

}  // namespace blublas
