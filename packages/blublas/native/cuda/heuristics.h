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

  // Whether the sums over K are added to totals on the way: errors of one chain of additions grow like its length. Of
  // products with few tiles cuBLAS cuts K as well: chains of 2048 had 2.2 times its error at 768 x 3072 x 4096 (H200).
  bool has_totals() const {
    const bool has_few_tiles = config->block_m * config->block_n < 128 * 128 || (splits > 1 && splits < 5);
    return config->totals_bytes > 0 && k_per_split > (has_few_tiles ? 1024 : 3072);
  }
  int shared_bytes() const { return config->shared_bytes + (has_totals() ? config->totals_bytes : 0); }
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
