// The special function unit alone: errors of one or two units in the last place, denormals are zero.
#pragma once

namespace blutensor::cuda::ptx {

// 2^x
__device__ inline float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// 1 / x; 0 beyond 2^126.
__device__ inline float reciprocal_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace blutensor::cuda::ptx
