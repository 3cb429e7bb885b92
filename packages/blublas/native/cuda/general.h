// The kernel for operands of any strides.
#pragma once

#include "cuda/epilogue.h"

namespace blublas {

// Rows of M that one partial column sum covers.
int64_t general_rows_per_partial();
// With several splits the epilogue is one that stores partial products, `splits` for every batch.
void general_launch(const CudaProblem& problem, const EpilogueParams& epilogue, int64_t splits);

}  // namespace blublas
