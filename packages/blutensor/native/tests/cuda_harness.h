// Runs an operator's CUDA launcher and compares it with its CPU launcher, below tensors, dispatch and pools.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <random>
#include <string>
#include <vector>

#include "ops/registry.h"

namespace blutensor::test {

// How the results must agree with those of the CPU.
enum class Rule {
  bits,   // the same bits; any NaN for a NaN
  equal,  // equal numbers: 0 for -0 (which of two equal extremes is given depends on the order)
  close,  // at most twice the CPU's error against the CPU's float64, plus one unit of the dtype
  sum,    // of n terms, accumulated in float32 (float64) by chains of up to some 500: rounding errors walk at random to
  // about sqrt(250) units of sqrt(sum x^2), 48 units leave a factor of three; where all terms are alike the errors
  // of a chain add up instead: 8 units of the sum
};

enum class Layout { contiguous, offset, transposed, stepped, reversed, broadcast, scalar };
inline constexpr Layout kLayouts[] = {Layout::contiguous, Layout::offset,    Layout::transposed, Layout::stepped,
                                      Layout::reversed,   Layout::broadcast, Layout::scalar};
inline constexpr DType kAllDTypes[] = {DType::float32, DType::bfloat16, DType::float16, DType::float64, DType::int64,
                                       DType::int32,   DType::uint8,    DType::uint16,  DType::boolean, DType::int8,
                                       DType::int16,   DType::uint32,   DType::uint64};

class Harness {
 public:
  Harness();
  ~Harness();

  // Random elements: normal for floating dtypes (with NaN, infinities, zeros and denormals among them when `special`),
  // all bits for integers.
  Tensor random(const Shape& shape, DType dtype, Layout layout = Layout::contiguous, bool special = false,
                double scale = 2);

  // Runs one case on both devices: outputs poisoned, memory behind them watched, twice at different addresses. False
  // when the operator is not defined for these operands.
  bool check(const std::string& op, const Tensors& inputs, const Attrs& attrs, Rule rule, int64_t list_length = 0);

  // The launcher alone, on operands that lie in device memory. Workspace is taken from the arena.
  void launch(const Operator& op, std::span<const View> inputs, std::span<const View> outputs, const Attrs& attrs);

  // Runs one case in `every` alone: for the sanitizer, under which each takes milliseconds.
  void sample(int every) { every_ = every; }
  void fail(const std::string& what);
  int failures() const { return failures_; }
  int cases() const { return cases_; }
  std::mt19937_64& generator() { return generator_; }

 private:
  struct DeviceRun {
    Tensors outputs, written;
    std::string error;
  };
  char* take(size_t bytes);
  DeviceRun run(const Operator& op, const Tensors& inputs, const std::vector<TensorSpec>& specs, const Attrs& attrs,
                int64_t list_length, size_t shift);
  void compare(const std::string& label, const Tensor& got, const Tensor& cpu, const Tensor* reference, Rule rule,
               const double* bounds = nullptr);

  std::mt19937_64 generator_{7};
  char* arena_ = nullptr;
  size_t used_ = 0;
  int failures_ = 0, cases_ = 0, every_ = 1, asked_ = 0;
};

// Text of a case for messages.
std::string case_text(const std::string& op, const Tensors& inputs, const Attrs& attrs);

}  // namespace blutensor::test
