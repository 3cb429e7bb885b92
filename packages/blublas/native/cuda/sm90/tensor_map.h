// Tensor maps: how the copy engine sees an operand.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace blublas::sm90 {

// A matrix [outer, inner] with `stride` elements from row to row, read in boxes of box_inner (128 bytes) by box_outer with
// the 128-byte swizzle. What lies outside reads as 0. float32 is rounded to tf32 on the way, to nearest even.
CUtensorMap tensor_map(const void* data, int32_t dtype, int64_t inner, int64_t outer, int64_t stride,
                       int32_t box_outer);

}  // namespace blublas::sm90
