// The portable rows of rotary_embedding.
#include "ops/rotary/rotary_rows.h"

namespace blutensor {

void use_reference(RotaryKernels& kernels) { kernels = {angles, rotate}; }

}  // namespace blutensor
