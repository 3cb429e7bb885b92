// Kernels that move and convert elements.
#pragma once

#include <cstdint>

#include "tensor/dtype.h"

namespace blutensor {

// destination[i * destination_stride] = convert(source[i * source_stride]) for 0 <= i < n; strides in elements, any
// sign, 0 too for the source. Conversions: to a floating type round to nearest even (once, from the exact value),
// floating to integer truncates and saturates (NaN gives 0), integer to integer keeps the low bits, anything to bool
// is "not zero" (NaN is true).
using CastKernel = void (*)(int64_t n, void* destination, int64_t destination_stride, const void* source,
                            int64_t source_stride);

struct CopyKernels {
  CastKernel cast[kNumDTypes][kNumDTypes] = {};  // [from][to]

  CastKernel from_to(DType from, DType to) const { return cast[static_cast<int>(from)][static_cast<int>(to)]; }
};

void use_reference(CopyKernels& kernels);
void use_avx2(CopyKernels& kernels);
void use_avx512(CopyKernels& kernels);

}  // namespace blutensor
