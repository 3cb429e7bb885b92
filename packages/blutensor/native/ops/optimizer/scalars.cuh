// Scalars that live on the device, and arithmetic of which every operation rounds on its own: the CPU's bits.
#pragma once

#include "ops/cuda/vector.cuh"

namespace blutensor::cuda {

struct Scalar {
  const void* data = nullptr;
  DType dtype = DType::float32;
};
inline Scalar scalar(const View& view) { return view.defined() ? Scalar{view.data, view.dtype} : Scalar{}; }
__device__ inline double read(const Scalar& s, double absent) {
  return s.data ? load_element<double>(s.data, 0, s.dtype) : absent;
}

__device__ inline float add(float a, float b) { return __fadd_rn(a, b); }
__device__ inline float multiply(float a, float b) { return __fmul_rn(a, b); }
__device__ inline float divide(float a, float b) { return __fdiv_rn(a, b); }
__device__ inline float root(float a) { return __fsqrt_rn(a); }
__device__ inline double add(double a, double b) { return __dadd_rn(a, b); }
__device__ inline double multiply(double a, double b) { return __dmul_rn(a, b); }
__device__ inline double divide(double a, double b) { return __ddiv_rn(a, b); }
__device__ inline double root(double a) { return __dsqrt_rn(a); }

}  // namespace blutensor::cuda
