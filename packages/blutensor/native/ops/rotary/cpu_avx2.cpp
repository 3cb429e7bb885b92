// rotary_embedding for AVX2: rotary_rows.h compiled with that instruction set.
#include "ops/rotary/rotary_rows.h"

namespace blutensor {

void use_avx2(RotaryKernels& kernels) { kernels = {angles, rotate}; }

}  // namespace blutensor
