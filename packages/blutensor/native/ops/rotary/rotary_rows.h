// Rows of rotary_embedding in float32, as loops that the compiler turns into the including file's vectors.
//
// angles: a = k pi/2 + r, |r| <= pi/4, in double, and Taylor's polynomials of r, which are off by less than 2e-9: far
// below a rounding of float32. Positions up to 2^31 keep 20 bits behind the point of k.
#pragma once

#include <cstdint>

#include "ops/rotary/rotary_kernels.h"

namespace blutensor {
namespace {

inline void angles(double position, const double* frequency, int64_t half, float* cos, float* sin) {
  constexpr double kHalfPiHigh = 1.57079632673412561417e+00, kHalfPiLow = 6.07710050650619224932e-11;
  for (int64_t i = 0; i < half; ++i) {
    const double a = position * frequency[i], k = __builtin_rint(a * 0.63661977236758134308);
    const double r = (a - k * kHalfPiHigh) - k * kHalfPiLow, q = r * r;
    const double s = r * (1 + q * (-1.0 / 6 + q * (1.0 / 120 + q * (-1.0 / 5040 + q * (1.0 / 362880)))));
    const double c = 1 + q * (-1.0 / 2 + q * (1.0 / 24 + q * (-1.0 / 720 + q * (1.0 / 40320 + q * (-1.0 / 3628800)))));
    const double quarter = k - 4 * __builtin_floor(k * 0.25);  // 0, 1, 2 or 3 quarter turns
    const bool swaps = quarter == 1 || quarter == 3;
    const double sine = swaps ? c : s, cosine = swaps ? s : c;
    sin[i] = static_cast<float>(quarter >= 2 ? -sine : sine);
    cos[i] = static_cast<float>(quarter == 1 || quarter == 2 ? -cosine : cosine);
  }
}

inline void rotate(const float* x, const float* cos, const float* sin, int64_t half, bool inverse, float* y) {
  const float sign = inverse ? -1.0F : 1.0F;
  for (int64_t i = 0; i < half; ++i) {
    const float a = x[i], b = x[i + half], s = sign * sin[i];
    y[i] = a * cos[i] - b * s;
    y[i + half] = b * cos[i] + a * s;
  }
}

}  // namespace
}  // namespace blutensor
