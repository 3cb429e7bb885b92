// What is folded on the device: states, how elements join them, how they combine and what becomes of the last one. The
// order of positions is free: where it matters (argmax) the state holds the position.
//
// Sums of float32 and the 16-bit floats accumulate in float32 over a tree of many short sums, float64 with the rounding
// errors carried along (Neumaier 1974), integers in 64 bits.
#pragma once

#include <cstdint>

namespace blutensor::cuda {

struct SumOfFloats {
  using In = float;
  using Acc = float;
  double factor = 1;  // 1 / n of a mean
  __device__ Acc start() const { return 0; }
  __device__ Acc one(In x, int64_t) const { return x; }
  __device__ Acc combine(Acc a, Acc b) const { return a + b; }
  __device__ float finish(Acc a) const { return static_cast<float>(a * factor); }
};

struct SumOfDoubles {
  using In = double;
  struct Acc {
    double sum, error;
  };
  double divisor = 1;
  __device__ Acc start() const { return {0, 0}; }
  __device__ Acc one(In x, int64_t) const { return {x, 0}; }
  __device__ Acc combine(Acc a, Acc b) const {
    const double sum = __dadd_rn(a.sum, b.sum);
    const double lost = fabs(a.sum) >= fabs(b.sum) ? __dadd_rn(__dadd_rn(a.sum, -sum), b.sum)
                                                   : __dadd_rn(__dadd_rn(b.sum, -sum), a.sum);
    return {sum, a.error + b.error + lost};
  }
  // Infinities make the error NaN: then the sum speaks for itself.
  __device__ double finish(Acc a) const { return (isfinite(a.sum) ? a.sum + a.error : a.sum) / divisor; }
};

struct SumOfIntegers {
  using In = int64_t;
  using Acc = int64_t;
  __device__ Acc start() const { return 0; }
  __device__ Acc one(In x, int64_t) const { return x; }
  __device__ Acc combine(Acc a, Acc b) const {
    return static_cast<Acc>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));  // wraps
  }
  __device__ int64_t finish(Acc a) const { return a; }
};

struct ProductOfFloats {
  using In = double;
  using Acc = double;
  __device__ Acc start() const { return 1; }
  __device__ Acc one(In x, int64_t) const { return x; }
  __device__ Acc combine(Acc a, Acc b) const { return a * b; }
  __device__ double finish(Acc a) const { return a; }
};

struct ProductOfIntegers {
  using In = int64_t;
  using Acc = int64_t;
  __device__ Acc start() const { return 1; }
  __device__ Acc one(In x, int64_t) const { return x; }
  __device__ Acc combine(Acc a, Acc b) const {
    return static_cast<Acc>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));  // wraps
  }
  __device__ int64_t finish(Acc a) const { return a; }
};

// How many elements are true; with `at_least`, whether they are that many.
struct CountTrue {
  using In = bool;
  using Acc = int64_t;
  int64_t at_least = -1;
  __device__ Acc start() const { return 0; }
  __device__ Acc one(In x, int64_t) const { return x; }
  __device__ Acc combine(Acc a, Acc b) const { return a + b; }
  __device__ int64_t finish(Acc a) const { return at_least < 0 ? a : a >= at_least; }
};

// Mean and sum of squared deviations from it, joined without cancellation (Chan, Golub and LeVeque 1983).
struct Moments {
  using In = double;
  struct Acc {
    double count, mean, squares;
  };
  double divisor = 1;
  bool root = false;
  __device__ Acc start() const { return {0, 0, 0}; }
  __device__ Acc one(In x, int64_t) const { return {1, x, 0 * x}; }  // NaN and infinities have no deviation
  __device__ Acc combine(Acc a, Acc b) const {
    if (a.count == 0 || b.count == 0) return a.count == 0 ? b : a;
    const double count = a.count + b.count, delta = b.mean - a.mean, share = b.count / count;
    return {count, a.mean + delta * share, a.squares + b.squares + delta * delta * a.count * share};
  }
  __device__ double finish(Acc a) const { return root ? sqrt(a.squares / divisor) : a.squares / divisor; }
};

// log(sum(e^x)), by the largest element and the sum relative to it.
struct LogOfSum {
  using In = double;
  struct Acc {
    double largest, sum;  // 0: of nothing
  };
  __device__ static double relative(double x, double largest) { return x == largest ? 1 : exp(x - largest); }
  __device__ Acc start() const { return {0, 0}; }
  __device__ Acc one(In x, int64_t) const { return {x, 1}; }
  __device__ Acc combine(Acc a, Acc b) const {
    if (a.sum == 0 || b.sum == 0) return a.sum == 0 ? b : a;
    const double largest = a.largest != a.largest || a.largest > b.largest ? a.largest : b.largest;
    return {largest, a.sum * relative(a.largest, largest) + b.sum * relative(b.largest, largest)};
  }
  __device__ double finish(Acc a) const { return a.sum == 0 ? log(0.0) : a.largest + log(a.sum); }
};

// The largest or smallest element and its position: the lowest of equals; NaN comes before all numbers. The result is
// the element, or the position.
template <class T, bool position>
struct Extreme {
  using In = T;
  struct Acc {
    T value;
    int64_t at;  // -1: none
  };
  bool largest = true;
  __device__ Acc start() const { return {T(0), -1}; }
  __device__ Acc one(In x, int64_t at) const { return {x, at}; }
  __device__ Acc combine(Acc a, Acc b) const {
    if (a.at < 0 || b.at < 0) return a.at < 0 ? b : a;
    const bool a_nan = a.value != a.value, b_nan = b.value != b.value;
    if (a_nan ? b_nan : a.value == b.value) return a.at < b.at ? a : b;
    if (a_nan || b_nan) return a_nan ? a : b;
    return (a.value > b.value) == largest ? a : b;
  }
  __device__ auto finish(Acc a) const {
    if constexpr (position)
      return a.at;
    else
      return a.value;
  }
};

}  // namespace blutensor::cuda
