// The language-model head and its loss without the logits: what linear_cross_entropy computes.
#pragma once

#include "ops/matmul/operand.h"

namespace blutensor {

struct HeadProblem {
  Matrix x;                // [N, C], float32 or float64
  Matrix weight;           // [V, C], likewise
  const int64_t* targets;  // [N]; negative: ignored
  bool mean = false;       // divide by the number of targets that count
  void* loss = nullptr;    // 0-d
  Matrix x_grad;           // [N, C], rows contiguous; rows 0: not wanted
  Matrix weight_grad;      // [V, C], likewise
};

// Classes that count: those that the attribute num_classes leaves, or all rows of weight.
inline int64_t num_classes(int64_t attribute, const View& weight) { return attribute ? attribute : weight.shape[0]; }

// Loss, and the gradients that are wanted for an upstream gradient of 1.
void run_head(const HeadProblem& problem, Execution& run);

}  // namespace blutensor
