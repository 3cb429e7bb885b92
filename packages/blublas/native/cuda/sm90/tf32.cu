// The instantiations for float32 operands in tf32.
#include "cuda/sm90/kernel.cuh"
#include "cuda/sm90/table.h"

namespace blublas::sm90 {
namespace {

template <Major a, Kind kind, int tile_n, bool cooperative, int cluster>
Kernel entry() {
  using C = Config<float, a, Major::k, kind, tile_n, cooperative, cluster>;
  return {reinterpret_cast<const void*>(&gemm_sm90<C>),
          C::shared_bytes,
          a,
          Major::k,
          kind,
          tile_n,
          C::tile_k,
          cooperative,
          cluster};
}

}  // namespace

std::span<const Kernel> tf32_kernels() {
  constexpr Major k = Major::k, mn = Major::mn;
  static const Kernel kernels[] = {
      entry<k, Kind::plain, 128, false, 2>(),     entry<k, Kind::plain, 192, true, 2>(),
      entry<k, Kind::gelu_tanh, 128, false, 2>(), entry<k, Kind::gelu_tanh_gradient, 128, false, 2>(),
      entry<k, Kind::gelu_erf, 128, false, 2>(),  entry<k, Kind::gelu_erf_gradient, 256, true, 2>(),
      entry<k, Kind::partial, 256, true, 2>(),    entry<mn, Kind::partial, 256, true, 2>(),
  };
  return kernels;
}

}  // namespace blublas::sm90
