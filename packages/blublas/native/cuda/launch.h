// Launches tile kernels.
#pragma once

#include "cuda/heuristics.h"

namespace blublas {

// With several splits the epilogue is one that stores partial products, `splits` for every batch.
void tile_launch(const CudaProblem& problem, const CudaLayout& layout, const CudaPlan& plan,
                 const EpilogueParams& epilogue);

}  // namespace blublas
