// The second passes, which add partial results in a fixed order, and the sums of A's rows.
#pragma once

#include "cuda/epilogue.h"

namespace blublas {

// Adds the parts [batch][splits][m][row_stride] of a product whose K was split, and does the epilogue.
int64_t finish_rows_per_partial();
void finish_splits_launch(const CudaProblem& problem, const EpilogueParams& epilogue, const char* parts, int64_t splits,
                          int64_t row_stride);

// target[batch][n] (+)= sum over p of partials[batch][num_partials][n].
void add_partials_launch(const CudaProblem& problem, const char* partials, int64_t num_partials, int64_t n,
                         const Vector& target, bool accumulate);

// row_sum_a; the workspace holds row_sum_workspace() bytes.
size_t row_sum_workspace(const CudaProblem& problem);
void row_sum_launch(const CudaProblem& problem, char* workspace);

}  // namespace blublas
