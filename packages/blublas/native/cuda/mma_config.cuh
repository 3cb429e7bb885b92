// A row of the tables of tensor-core tile kernels: a shape in its four layouts.
#pragma once

#include "cuda/configs.h"
#include "cuda/mma.cuh"

namespace blublas {

template <typename Shape>
CudaConfig mma_config(const char* name) {
  constexpr bool kIsTf32 = std::is_same_v<typename Shape::T, float>;
  return config_of<Shape>(name, kIsTf32 ? CudaMath::tf32 : CudaMath::bfloat16,
                          {{{reinterpret_cast<const void*>(gemm_mma<Shape, false, false>),
                             reinterpret_cast<const void*>(gemm_mma<Shape, false, true>)},
                            {reinterpret_cast<const void*>(gemm_mma<Shape, true, false>),
                             reinterpret_cast<const void*>(gemm_mma<Shape, true, true>)}}});
}

}  // namespace blublas
