// GEMM on CUDA, as the C edge calls it. In builds without CUDA (none.cpp) everything throws "unsupported".
#pragma once

#include <cstddef>

#include "gemm/problem.h"

namespace blublas {

size_t cuda_gemm_workspace(const Problem& problem, const blublas_gemm_args& args);
void cuda_gemm(const Problem& problem, const blublas_gemm_args& args);

}  // namespace blublas
