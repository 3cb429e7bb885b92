// Kernels for AVX2 and FMA: 6 x 16 float, 6 x 8 double. 12 of 16 registers hold sums.
// Benchmark: python benchmarks/gemm.py --kernel avx2
#include "gemm/finish.h"
#include "gemm/kernels.h"
#include "gemm/micro.h"
#include "gemm/pack.h"
#include "gemm/small.h"
#include "simd/vector_avx2.h"

namespace blublas {
namespace {

constexpr int kMr = 6, kVectors = 2;

// kc: a panel of B [kc, 16] takes 16 KiB of the first level of cache; mc x kg of A stays in the second.
template <typename V>
constexpr GemmKernels<typename V::Element> table(const char* name, int64_t kc, int64_t mc) {
  return {name,
          kMr,
          kVectors * V::width,
          kc,
          mc,
          8,
          Micro<V, kMr, kVectors>::packed,
          Micro<V, kMr, kVectors>::in_place,
          pack<V>,
          finish<V>,
          row_sum<V>,
          small_dot<V>,
          small_axpy<V>};
}

}  // namespace

const KernelSet avx2_kernels{"avx2", BLUBLAS_CPU_AVX2, table<Float8>("gemm_f32_avx2_6x16", 256, 96),
                             table<Double4>("gemm_f64_avx2_6x8", 256, 48)};

}  // namespace blublas
