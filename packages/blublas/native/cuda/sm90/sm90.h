// GEMM kernels for compute capability 9.0 (wgmma, TMA). The dispatcher asks them first on such a device.
#pragma once

#include "cuda/problem.h"

namespace blublas {

// Whether these kernels do this problem, epilogue included. Null pointers count as aligned.
bool sm90_supports(const CudaProblem& problem);
// Whether sm90_launch writes row_sum_a itself; otherwise the dispatcher does and clears the flag.
bool sm90_sums_rows(const CudaProblem& problem);
// Bytes of workspace, for any alignment of its pointers.
size_t sm90_workspace(const CudaProblem& problem);
void sm90_launch(const CudaProblem& problem);

}  // namespace blublas
