// The instantiations for bfloat16 operands.
#include "cuda/sm90/kernel.cuh"
#include "cuda/sm90/table.h"

namespace blublas::sm90 {
namespace {

template <Major a, Major b, Kind kind, int tile_n, bool cooperative, int cluster>
Kernel entry() {
  using C = Config<__nv_bfloat16, a, b, kind, tile_n, cooperative, cluster>;
  return {reinterpret_cast<const void*>(&gemm_sm90<C>),
          C::shared_bytes,
          a,
          b,
          kind,
          tile_n,
          C::tile_k,
          cooperative,
          cluster};
}

}  // namespace

std::span<const Kernel> bf16_kernels() {
  constexpr Major k = Major::k, mn = Major::mn;
  static const Kernel kernels[] = {
      entry<k, k, Kind::plain, 128, false, 2>(),
      entry<k, k, Kind::plain, 192, true, 2>(),
      entry<k, k, Kind::gelu_tanh, 128, false, 2>(),
      entry<k, k, Kind::gelu_tanh, 192, true, 2>(),
      entry<k, k, Kind::gelu_erf, 128, false, 2>(),
      entry<k, k, Kind::partial, 256, true, 2>(),
      entry<k, mn, Kind::plain, 128, false, 2>(),
      entry<k, mn, Kind::plain, 192, true, 2>(),
      entry<k, mn, Kind::gelu_tanh_gradient, 128, false, 2>(),
      entry<k, mn, Kind::gelu_tanh_gradient, 192, true, 2>(),
      entry<k, mn, Kind::gelu_erf_gradient, 128, false, 2>(),
      entry<k, mn, Kind::partial, 256, true, 2>(),
      entry<mn, mn, Kind::plain, 256, true, 2>(),
      entry<mn, mn, Kind::partial, 256, true, 2>(),
      entry<mn, mn, Kind::partial, 192, true, 2>(),
  };
  return kernels;
}

}  // namespace blublas::sm90
