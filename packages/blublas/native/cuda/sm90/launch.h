// Runs a plan.
#pragma once

#include "cuda/sm90/plan.h"

namespace blublas::sm90 {

void run(const CudaProblem& problem, const Plan& plan);

}  // namespace blublas::sm90
