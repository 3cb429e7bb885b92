// GEMM on CUDA, as the C edge calls it. In builds without CUDA (none.cpp) everything throws "unsupported".
#pragma once

#include <cstddef>

#include "gemm/problem.h"

namespace blublas {

size_t cuda_gemm_workspace(const Problem& problem, const blublas_gemm_args& args);
void cuda_gemm(const Problem& problem, const blublas_gemm_args& args);

// Which tile kernel does the products of its precision; heuristics.h.
void cuda_set_config(const char* name);
// Null past the last, and in builds without CUDA.
const char* cuda_config(int32_t index);

}  // namespace blublas
