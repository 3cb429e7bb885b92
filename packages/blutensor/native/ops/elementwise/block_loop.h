// Runs a block kernel over operands of any strides and dtypes.
//
// Operands that are contiguous along the inner axis and have the compute dtype are passed as they are; others are
// gathered and converted into blocks of kBlock elements on the stack, results likewise. Work is cut by position
// alone.
#pragma once

#include <array>
#include <span>

#include "ops/elementwise/iteration.h"
#include "ops/kernels.h"
#include "ops/parallel.h"

namespace blutensor {

inline constexpr int64_t kBlock = 512;
inline constexpr int64_t kShortRun = 32;  // inner runs shorter than this are gathered many at a time

struct BlockInput {
  const void* data = nullptr;
  bool scalar = false;
};

struct BlockOperand {
  const View* view = nullptr;
  DType compute = DType::float32;
};

namespace detail {

// How one operand is reached.
struct Access {
  char* base = nullptr;
  int64_t size = 0, compute_size = 0, stride = 0;  // stride of the inner axis, in elements
  CastKernel cast = nullptr;                       // to the compute dtype (inputs), from it (the output)
  bool same_dtype = false, linear = false, scalar = false;
};

inline Access access_input(const Iteration& it, int k, const BlockOperand& operand) {
  const auto index = static_cast<size_t>(k);
  return {static_cast<char*>(operand.view->data),
          static_cast<int64_t>(dtype_size(operand.view->dtype)),
          static_cast<int64_t>(dtype_size(operand.compute)),
          it.stride[index][0],
          kernels().copy.from_to(operand.view->dtype, operand.compute),
          operand.view->dtype == operand.compute && operand.compute != DType::boolean,
          it.linear(k),
          it.scalar(k)};
}

}  // namespace detail

// kernel(n, void* out, std::array<BlockInput, kMaxOperands> inputs, position), position being that of the block's
// first element. With `scalars`, at most all inputs but one are passed as scalars where one element serves a whole
// block; without, blocks are always full.
template <class Kernel>
void block_loop(const BlockOperand& output, std::span<const BlockOperand> inputs, bool scalars, const Kernel& kernel) {
  std::array<const View*, kMaxOperands> views{output.view};
  const size_t count = inputs.size();
  for (size_t k = 0; k < count; ++k) views[k + 1] = inputs[k].view;
  const Iteration it = make_iteration(output.view->shape, std::span(views).first(count + 1));
  if (it.numel == 0) return;

  std::array<detail::Access, kMaxOperands> access{};
  access[0] = detail::access_input(it, 0, output);
  access[0].cast = kernels().copy.from_to(output.compute, output.view->dtype);
  access[0].same_dtype = output.view->dtype == output.compute;
  for (size_t k = 1; k <= count; ++k) access[k] = detail::access_input(it, static_cast<int>(k), inputs[k - 1]);
  const bool short_runs = it.rank > 1 && it.extent[0] < kShortRun;

  parallel_for(it.numel, kElementwiseGrain, [&](int64_t begin, int64_t end) {
    alignas(64) std::array<std::array<char, kBlock * 8>, kMaxOperands> buffer;
    std::array<BlockInput, kMaxOperands> in{};

    // One element of an operand, converted once.
    const auto scalar_input = [&](size_t k, int64_t offset) {
      access[k].cast(1, buffer[k].data(), 1, access[k].base + offset * access[k].size, 0);
      in[k - 1] = {buffer[k].data(), true};
    };

    if (short_runs) {
      for (int64_t first = begin; first < end; first += kBlock) {
        const int64_t length = std::min(kBlock, end - first);
        size_t others = count;
        for (size_t k = 1; k <= count; ++k) {
          const detail::Access& a = access[k];
          if (a.same_dtype && a.linear) {
            in[k - 1] = {a.base + first * a.size, false};
          } else if (scalars && a.scalar && others > 1) {
            scalar_input(k, 0);
            --others;
          } else {
            for_each_run(it, first, first + length, [&](int64_t n, const auto& offset, int64_t position) {
              a.cast(n, buffer[k].data() + (position - first) * a.compute_size, 1, a.base + offset[k] * a.size,
                     a.stride);
            });
            in[k - 1] = {buffer[k].data(), false};
          }
        }
        const detail::Access& o = access[0];
        const bool direct = o.same_dtype && o.linear;
        kernel(length, direct ? static_cast<void*>(o.base + first * o.size) : buffer[0].data(), in, first);
        if (!direct)
          for_each_run(it, first, first + length, [&](int64_t n, const auto& offset, int64_t position) {
            o.cast(n, o.base + offset[0] * o.size, o.stride, buffer[0].data() + (position - first) * o.compute_size, 1);
          });
      }
      return;
    }

    for_each_run(it, begin, end, [&](int64_t run, const auto& offset, int64_t position) {
      std::array<bool, kMaxOperands> fixed{};  // scalar along this run
      bool whole = access[0].same_dtype && access[0].stride == 1;
      size_t others = count;
      for (size_t k = 1; k <= count; ++k) {
        if (scalars && access[k].stride == 0 && others > 1) {
          scalar_input(k, offset[k]);
          fixed[k] = true;
          --others;
        } else {
          whole = whole && access[k].same_dtype && access[k].stride == 1;
        }
      }
      for (int64_t done = 0; done < run;) {
        const int64_t length = whole ? run : std::min(kBlock, run - done);
        for (size_t k = 1; k <= count; ++k) {
          if (fixed[k]) continue;
          const detail::Access& a = access[k];
          char* from = a.base + (offset[k] + done * a.stride) * a.size;
          if (a.same_dtype && a.stride == 1) {
            in[k - 1] = {from, false};
          } else {
            a.cast(length, buffer[k].data(), 1, from, a.stride);
            in[k - 1] = {buffer[k].data(), false};
          }
        }
        const detail::Access& o = access[0];
        char* to = o.base + (offset[0] + done * o.stride) * o.size;
        if (o.same_dtype && o.stride == 1) {
          kernel(length, static_cast<void*>(to), in, position + done);
        } else {
          kernel(length, static_cast<void*>(buffer[0].data()), in, position + done);
          o.cast(length, to, o.stride, buffer[0].data(), 1);
        }
        done += length;
      }
    });
  });
}

}  // namespace blutensor
