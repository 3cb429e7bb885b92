// Kernels of rotary_embedding: one row at a time. rotary.cpp owns the loops over rows and threads.
#pragma once

#include <cstdint>

namespace blutensor {

// Head dimensions beyond this are no attention's; on CUDA their frequencies are kernel arguments.
inline constexpr int64_t kRotaryMaxHeadDim = 512;

struct RotaryKernels {
  // cos and sin [half] of position * frequency[i].
  void (*angles)(double position, const double* frequency, int64_t half, float* cos, float* sin) = nullptr;
  // y[i] = x[i] cos[i] - x[i + half] sin[i], y[i + half] = x[i + half] cos[i] + x[i] sin[i]; the other way round where
  // `inverse`.
  void (*rotate)(const float* x, const float* cos, const float* sin, int64_t half, bool inverse, float* y) = nullptr;
};

void use_reference(RotaryKernels& kernels);
void use_avx2(RotaryKernels& kernels);
void use_avx512(RotaryKernels& kernels);

}  // namespace blutensor
