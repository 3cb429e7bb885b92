// Which problems the kernels for compute capability 9.0 take, and how they run.
#include "cuda/sm90/sm90.h"

#include "cuda/sm90/launch.h"

namespace blublas {

bool sm90_supports(const CudaProblem& problem) {
  const sm90::Plan plan = sm90::make_plan(problem);
  return plan.kernel != nullptr && (plan.sums_rows || !(problem.epilogue & BLUBLAS_EPILOGUE_ROW_SUM_A));
}
bool sm90_sums_rows(const CudaProblem& problem) { return sm90::make_plan(problem).sums_rows; }
size_t sm90_workspace(const CudaProblem& problem) { return sm90::make_plan(problem).bytes; }
void sm90_launch(const CudaProblem& problem) { sm90::run(problem, sm90::make_plan(problem)); }

}  // namespace blublas
