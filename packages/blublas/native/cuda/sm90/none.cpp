// A build without kernels for compute capability 9.0: the portable ones do everything.
#include "cuda/sm90/sm90.h"

namespace blublas {

bool sm90_supports(const CudaProblem&) { return false; }
bool sm90_sums_rows(const CudaProblem&) { return false; }
size_t sm90_workspace(const CudaProblem&) { return 0; }
void sm90_launch(const CudaProblem&) {}

}  // namespace blublas
