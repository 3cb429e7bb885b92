// Which tile kernel does a product, and into how many parts its K is cut.
#pragma once

#include "cuda/configs.h"

namespace blublas {

// How the tile kernels see a product's operands.
struct CudaLayout {
  bool fits = false;  // contiguous along one axis and aligned to 16 bytes, both operands
  bool k_major_a = false, k_major_b = false;
};

struct CudaPlan {
  const CudaConfig* config = nullptr;  // none: the general kernel
  int64_t splits = 1, k_per_split = 0;
};

CudaLayout cuda_layout(const CudaProblem& problem);
// Takes the configuration that was chosen by name where it fits, then the tuned table, then the model.
CudaPlan choose_plan(const CudaProblem& problem, const CudaLayout& layout);

// "auto", "general", the name of a configuration, or that and "/" and the number of parts of K. Throws.
void set_cuda_config(const char* name);
// Whether a configuration was chosen by name that has a say in this product.
bool is_config_chosen(const CudaProblem& problem);
// Names by index; null past the last.
const char* cuda_config_name(int32_t index);

}  // namespace blublas
