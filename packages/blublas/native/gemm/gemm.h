// Runs a checked GEMM.
#pragma once

#include <cstddef>

#include "gemm/problem.h"

namespace blublas {

size_t gemm_workspace(const Problem& problem);
// Throws Error when the workspace is too small for one thread, before anything is written.
void gemm(const Problem& problem, void* workspace, size_t workspace_bytes);

}  // namespace blublas
