// What is folded: block results, how they combine, and what becomes of the last one.
//
// A fold names the type of its elements (In: what operands are converted to) and of its state (Acc), and has
//   start()                      the state of no elements
//   block(n, x, position)        the state of n contiguous elements, the first at this position of the reduction
//   one(x, position)             the state of one element
//   combine(first, second)       of two neighbouring stretches
//   finish(state, length)        the result
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "ops/kernels.h"

namespace blutensor {

struct SumOfFloats {
  using In = float;
  using Acc = double;
  static Acc start() { return 0; }
  static Acc block(int64_t n, const In* x, int64_t) { return kernels().reduce.sum_f32(n, x); }
  static Acc one(In x, int64_t) { return static_cast<Acc>(x); }
  static Acc combine(Acc a, Acc b) { return a + b; }
  static double finish(Acc a, int64_t) { return a; }
};

// float64 sums carry the rounding errors of their additions along (Neumaier 1974): blocks are 8 lanes.
struct SumOfDoubles {
  using In = double;
  struct Acc {
    double sum, error;
  };
  static Acc start() { return {0, 0}; }
  static Acc block(int64_t n, const In* x, int64_t) {
    double lanes[8] = {};
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
      for (int j = 0; j < 8; ++j) lanes[j] += x[i + j];
    for (int j = 0; i < n; ++i, ++j) lanes[j] += x[i];
    return {((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7])), 0};
  }
  static Acc one(In x, int64_t) { return {x, 0}; }
  static Acc combine(Acc a, Acc b) {
    const double sum = a.sum + b.sum;
    const double lost = std::fabs(a.sum) >= std::fabs(b.sum) ? (a.sum - sum) + b.sum : (b.sum - sum) + a.sum;
    return {sum, a.error + b.error + lost};
  }
  // Infinities make the error NaN: then the sum speaks for itself.
  static double finish(Acc a, int64_t) { return std::isfinite(a.sum) ? a.sum + a.error : a.sum; }
};

struct SumOfIntegers {
  using In = int64_t;
  using Acc = uint64_t;  // wraps
  static Acc start() { return 0; }
  static Acc block(int64_t n, const In* x, int64_t) {
    Acc sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += static_cast<Acc>(x[i]);
    return sum;
  }
  static Acc one(In x, int64_t) { return static_cast<Acc>(x); }
  static Acc combine(Acc a, Acc b) { return a + b; }
  static int64_t finish(Acc a, int64_t) { return static_cast<int64_t>(a); }
};

template <class Sum>
struct MeanOf : Sum {
  static double finish(typename Sum::Acc a, int64_t length) {
    return Sum::finish(a, length) / static_cast<double>(length);
  }
};

struct ProductOfFloats {
  using In = double;
  using Acc = double;
  static Acc start() { return 1; }
  static Acc block(int64_t n, const In* x, int64_t) {
    Acc product = 1;
    for (int64_t i = 0; i < n; ++i) product *= x[i];
    return product;
  }
  static Acc one(In x, int64_t) { return x; }
  static Acc combine(Acc a, Acc b) { return a * b; }
  static double finish(Acc a, int64_t) { return a; }
};

struct ProductOfIntegers {
  using In = int64_t;
  using Acc = uint64_t;  // wraps
  static Acc start() { return 1; }
  static Acc block(int64_t n, const In* x, int64_t) {
    Acc product = 1;
    for (int64_t i = 0; i < n; ++i) product *= static_cast<Acc>(x[i]);
    return product;
  }
  static Acc one(In x, int64_t) { return static_cast<Acc>(x); }
  static Acc combine(Acc a, Acc b) { return a * b; }
  static int64_t finish(Acc a, int64_t) { return static_cast<int64_t>(a); }
};

// How many elements are true.
struct CountTrue {
  using In = bool;
  using Acc = int64_t;
  static Acc start() { return 0; }
  static Acc block(int64_t n, const In* x, int64_t) {
    Acc count = 0;
    for (int64_t i = 0; i < n; ++i) count += reinterpret_cast<const uint8_t*>(x)[i] != 0;  // a bool may hold any byte
    return count;
  }
  static Acc one(In x, int64_t) { return x; }
  static Acc combine(Acc a, Acc b) { return a + b; }
  static int64_t finish(Acc a, int64_t) { return a; }
};
struct AnyTrue : CountTrue {
  static int64_t finish(Acc a, int64_t) { return a > 0; }
};
struct AllTrue : CountTrue {
  static int64_t finish(Acc a, int64_t length) { return a == length; }
};

// Mean and sum of squared deviations from it: two passes over a block, blocks joined without cancellation (Chan, Golub
// and LeVeque 1983).
struct Moments {
  using In = double;
  struct Acc {
    double count, mean, squares;
  };
  static Acc start() { return {0, 0, 0}; }
  static Acc block(int64_t n, const In* x, int64_t) {
    double sum = 0, squares = 0, rest = 0;
    for (int64_t i = 0; i < n; ++i) sum += x[i];
    const double mean = sum / static_cast<double>(n);
    for (int64_t i = 0; i < n; ++i) {
      squares += (x[i] - mean) * (x[i] - mean);
      rest += x[i] - mean;
    }
    return {static_cast<double>(n), mean, squares - rest * rest / static_cast<double>(n)};
  }
  static Acc one(In x, int64_t) { return {1, x, 0 * x}; }  // NaN and infinities have no deviation
  static Acc combine(Acc a, Acc b) {
    if (a.count == 0 || b.count == 0) return a.count == 0 ? b : a;
    const double count = a.count + b.count, delta = b.mean - a.mean, share = b.count / count;
    return {count, a.mean + delta * share, a.squares + b.squares + delta * delta * a.count * share};
  }
};

// The largest or smallest element; the first NaN when there is one.
template <class T, bool largest>
struct Extreme {
  using In = T;
  struct Acc {
    T value;
    bool any;
  };
  static bool better(T a, T b) { return largest ? a > b : a < b; }
  static T extreme(int64_t n, const T* x) {
    if constexpr (std::is_same_v<T, float>)
      return largest ? kernels().reduce.max_f32(n, x) : kernels().reduce.min_f32(n, x);
    T best = x[0];
    for (int64_t i = 1; i < n && best == best; ++i)
      if (better(x[i], best) || x[i] != x[i]) best = x[i];
    return best;
  }
  static Acc start() { return {T{}, false}; }
  static Acc block(int64_t n, const In* x, int64_t) { return {extreme(n, x), true}; }
  static Acc one(In x, int64_t) { return {x, true}; }
  static Acc combine(Acc a, Acc b) {
    if (!a.any || !b.any) return a.any ? a : b;
    return a.value != a.value || !(better(b.value, a.value) || b.value != b.value) ? a : b;
  }
  static T finish(Acc a, int64_t) { return a.value; }
};

// The position of it; the first of equals.
template <class T, bool largest>
struct ArgExtreme {
  using In = T;
  struct Acc {
    T value;
    int64_t position;
  };
  static Acc start() { return {T{}, -1}; }
  static Acc block(int64_t n, const In* x, int64_t position) {
    const T best = Extreme<T, largest>::extreme(n, x);
    int64_t i = 0;
    while (i < n && x[i] != best && (best == best || x[i] == x[i])) ++i;
    return {best, position + i};
  }
  static Acc one(In x, int64_t position) { return {x, position}; }
  static Acc combine(Acc a, Acc b) {
    if (a.position < 0 || b.position < 0) return a.position < 0 ? b : a;
    const bool second = a.value == a.value && (Extreme<T, largest>::better(b.value, a.value) || b.value != b.value);
    return second ? b : a;
  }
  static int64_t finish(Acc a, int64_t) { return a.position; }
};

// log(sum(e^x)), by the largest element and the sum relative to it.
struct LogOfSum {
  using In = double;
  struct Acc {
    double largest, sum;
  };
  static constexpr double kNothing = -std::numeric_limits<double>::infinity();
  static double relative(double x, double largest) { return x == largest ? 1 : std::exp(x - largest); }
  static Acc start() { return {kNothing, 0}; }
  static Acc block(int64_t n, const In* x, int64_t) {
    const double largest = Extreme<double, true>::extreme(n, x);
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += relative(x[i], largest);
    return {largest, sum};
  }
  static Acc one(In x, int64_t) { return {x, 1}; }
  static Acc combine(Acc a, Acc b) {
    if (a.sum == 0 || b.sum == 0) return a.sum == 0 ? b : a;
    const double largest = a.largest != a.largest || a.largest > b.largest ? a.largest : b.largest;
    return {largest, a.sum * relative(a.largest, largest) + b.sum * relative(b.largest, largest)};
  }
  static double finish(Acc a, int64_t) { return a.sum == 0 ? kNothing : a.largest + std::log(a.sum); }
};

}  // namespace blutensor
