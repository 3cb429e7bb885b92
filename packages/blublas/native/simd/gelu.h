// exp, GELU and its gradient on vectors (the interface of vector_avx512.h), within a few units in the last place of 1.
//
//   exp(x)    x = n ln 2 + r, |r| <= ln 2 / 2; Taylor series of e^r, times 2^n.
//   tanh GELU x / (1 + exp(-2 u)), u = sqrt(2/pi) (x + 0.044715 x^3): the sigmoid form has no cancellation.
//   erf GELU  x erfc(-x / sqrt 2) / 2 with erfc(z) = exp(-z^2) P(t) / (1 + 2 z), t = (z - 3.75) / (z + 3.75), z >= 0
//   [Shepherd and Laframboise 1981];
//             P interpolates at Chebyshev nodes: relative error 1.3e-8 (degree 11) and 3.8e-18 (degree 24).
#pragma once

#include <cstdint>

namespace blublas {
namespace {

// Denormal numbers take microcode, hundreds of cycles, so none may come up: exp's argument is held in exp_range, and
// beyond tanh_range or erf_range GELU is x or 0, its gradient 1 or 0. What that drops is below 1e-32.
template <typename T>
struct GeluConstants;

template <>
struct GeluConstants<float> {
  static constexpr float ln2_high = 0.693359375F, ln2_low = -2.12194440e-4F;
  static constexpr int exp_degree = 7;
  static constexpr float exp_range = 80;
  static constexpr float tanh_range = 9.6F, erf_range = 12.5F;
  static constexpr float erfc[] = {1.2375126192676998937F,    -0.14024065832138641091F,   0.0035862703940246181059F,
                                   0.082278419983470466632F,  -0.10881427014905069487F,   0.092290769591303782833F,
                                   -0.058646858735546142856F, 0.028409252364127258028F,   -0.0098444948596749509555F,
                                   0.0016759122179811311847F, 0.00039630761298936272223F, -0.00022411674674416021157F};
};

template <>
struct GeluConstants<double> {
  static constexpr double ln2_high = 6.93147180369123816490e-01, ln2_low = 1.90821492927058770002e-10;
  static constexpr int exp_degree = 13;
  static constexpr double exp_range = 690;
  static constexpr double tanh_range = 20.5, erf_range = 37;
  static constexpr double erfc[] = {
      1.2375126308378275796,      -0.14024059858554696245,   0.003585415485464429369,     0.082276738490145207683,
      -0.10880393014174885723,    0.09230432116037747776,    -0.058693398589636774061,    0.028362277418956404286,
      -0.0097465795580292755337,  0.0017556258528952953569,  0.00029371366559134481992,   -0.00029015408054084171105,
      0.000051649098892682403449, 0.00002238423915508222982, -0.000011444146237700523373, -9.7355989673677493407e-7,
      1.7516376488490621431e-6,   -5.7218230603224087501e-8, -2.5866850716155885443e-7,   2.3263508708859123732e-8,
      3.8675334242222356816e-8,   -3.7442100809620186444e-9, -5.1739902140113096269e-9,   3.1114333809799251993e-10,
      4.2514714447963897761e-10};
};

template <typename T, int degree>
struct InverseFactorials {
  T value[degree + 1];
  constexpr InverseFactorials() : value{} {
    double factorial = 1;
    for (int i = 0; i <= degree; ++i) {
      value[i] = static_cast<T>(1 / factorial);
      factorial *= i + 1;
    }
  }
};

template <typename V>
inline V vector_exp(V x) {
  using T = typename V::Element;
  using C = GeluConstants<T>;
  x = V::clamp(x, -C::exp_range, C::exp_range);
  const V n = V::round(x * V::all(static_cast<T>(1.44269504088896340736)));
  const V r = V::fnma(n, V::all(C::ln2_low), V::fnma(n, V::all(C::ln2_high), x));
  constexpr auto series_of = InverseFactorials<T, C::exp_degree>{};
  V series = V::all(series_of.value[C::exp_degree]);
#pragma GCC unroll 16
  for (int i = C::exp_degree - 1; i >= 0; --i) series = V::fma(series, r, V::all(series_of.value[i]));
  return V::scale(series, n);
}

template <typename V>
inline V twice_tanh_argument(V x) {
  using T = typename V::Element;
  const V root = V::all(static_cast<T>(2 * 0.79788456080286535588)),
          cubic = V::all(static_cast<T>(2 * 0.79788456080286535588 * 0.044715));
  return x * V::fma(cubic, x * x, root);
}

template <typename V>
inline V gelu_tanh(V x) {
  using C = GeluConstants<typename V::Element>;
  const V sigmoid = V::all(1) / (V::all(1) + vector_exp(V::zero() - twice_tanh_argument(x)));
  return x * V::select_negative(x + V::all(C::tanh_range), V::zero(), sigmoid);
}

// s + 2 x s (1 - s) u', s = sigmoid(2 u)
template <typename V>
inline V gelu_tanh_gradient(V x) {
  using T = typename V::Element;
  using C = GeluConstants<T>;
  x = V::clamp(x, -C::tanh_range, C::tanh_range);
  const V one = V::all(1), e = vector_exp(V::zero() - twice_tanh_argument(x)), s = one / (one + e);
  const V slope = V::fma(V::all(static_cast<T>(6 * 0.79788456080286535588 * 0.044715)), x * x,
                         V::all(static_cast<T>(2 * 0.79788456080286535588)));
  return V::fma(x * s * (e * s), slope, s);
}

// The normal distribution function, and exp(-x^2 / 2) on the side.
template <typename V>
inline V normal_distribution(V x, V& gauss) {
  using T = typename V::Element;
  using C = GeluConstants<T>;
  constexpr int degree = static_cast<int>(sizeof(C::erfc) / sizeof(T)) - 1;
  const V z = V::abs(x) * V::all(static_cast<T>(0.70710678118654752440));
  gauss = vector_exp(V::zero() - z * z);
  // t = 1 - 7.5 / (z + 3.75) has its limit 1 at infinity, where (z - 3.75) / (z + 3.75) is NaN.
  const V t = V::all(1) - V::all(static_cast<T>(7.5)) / (z + V::all(static_cast<T>(3.75)));
  V p = V::all(C::erfc[degree]);
#pragma GCC unroll 32
  for (int i = degree - 1; i >= 0; --i) p = V::fma(p, t, V::all(C::erfc[i]));
  const V tail = V::all(static_cast<T>(0.5)) * gauss * p / V::fma(V::all(2), z, V::all(1));
  return V::select_negative(x, tail, V::all(1) - tail);
}

template <typename V>
inline V gelu_erf(V x) {
  using C = GeluConstants<typename V::Element>;
  V gauss;
  const V distribution = normal_distribution(x, gauss);
  return x * V::select_negative(x + V::all(C::erf_range), V::zero(), distribution);
}

template <typename V>
inline V gelu_erf_gradient(V x) {
  using T = typename V::Element;
  using C = GeluConstants<T>;
  x = V::clamp(x, -C::erf_range, C::erf_range);
  V gauss;
  const V distribution = normal_distribution(x, gauss);
  return V::fma(x * gauss, V::all(static_cast<T>(0.39894228040143267794)), distribution);
}

}  // namespace
}  // namespace blublas
