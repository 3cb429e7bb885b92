// rotary_embedding: channel i of a head and channel i + D/2 are turned by position * base^(-2 i / D), as in Llama.
//
// Shapes: x [..., T, D], positions: integers that broadcast to [..., T]. The gradient turns back, so the operator is its
// own gradient. Cosines and sines are computed once for every position that is given, in double.
// Bytes: 2 N elements; 2 FLOPs each, and a sine and cosine for every position and frequency.
#include "ops/rotary/rotary.h"

#include "ops/all_operators.h"
#include "ops/kernels.h"
#include "ops/matmul/operand.h"
#include "ops/parallel.h"
#include "ops/registry.h"
#include "ops/softmax/row_offsets.h"
#include "ops/views/views.h"

namespace blutensor {

namespace {

constexpr const char* kName = "rotary_embedding";

std::vector<TensorSpec> infer_rotary(const OpCall& call) {
  const Tensor &x = call.inputs[0], &positions = call.inputs[1];
  require_type(is_floating(x.dtype()), "[", kName, "] expected floating-point x, got ", describe(x));
  require(x.rank() >= 2, "[", kName, "] expected x [..., T, D], got shape ", x.shape());
  require(x.size(-1) % 2 == 0 && x.size(-1) <= kRotaryMaxHeadDim, "[", kName, "] expected an even D of at most ",
          kRotaryMaxHeadDim, ", got shape ", x.shape());
  require(std::isfinite(call.attrs.f(kRotaryBase)) && call.attrs.f(kRotaryBase) > 0, "[", kName,
          "] expected a positive base, got ", call.attrs.f(kRotaryBase));
  if (positions.defined()) {
    require_type(positions.dtype() == DType::int32 || positions.dtype() == DType::int64, "[", kName,
                 "] expected positions of dtype int32 or int64, got ", describe(positions), ": use astype");
    const Shape rows = rotary_rows(x.shape());
    require(broadcasts_to(positions.shape(), rows), "[", kName, "] expected positions that broadcast to ", rows,
            ", x without its last axis, got ", positions.shape());
  }
  return {{x.dtype(), x.shape(), {}, false}};
}

// Cosines and sines [P, D/2] of the positions as they were given, in their order.
template <class C>
struct AngleTable {
  C *cos, *sin;
};

template <class C>
AngleTable<C> angle_table(Execution& run, const View& positions, int64_t count, int64_t half, double base) {
  AngleTable<C> table{run.take<C>(count * half), run.take<C>(count * half)};
  if (run.dry()) return table;
  const RotaryFrequencies frequency = rotary_frequencies(base, 2 * half);
  const RowOffsets offsets(positions, -1);
  parallel_for(count, std::max<int64_t>(1, 2048 / std::max<int64_t>(1, half)), [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      double position = static_cast<double>(p);
      if (positions.defined())
        position = positions.dtype == DType::int32 ? static_cast<double>(positions.ptr<int32_t>()[offsets(p)])
                                                   : static_cast<double>(positions.ptr<int64_t>()[offsets(p)]);
      C *cos = table.cos + p * half, *sin = table.sin + p * half;
      if constexpr (std::is_same_v<C, float>) {
        kernels().rotary.angles(position, frequency.data(), half, cos, sin);
      } else {
        for (int64_t i = 0; i < half; ++i) {
          const double angle = position * frequency[static_cast<size_t>(i)];
          cos[i] = std::cos(angle);
          sin[i] = std::sin(angle);
        }
      }
    }
  });
  return table;
}

template <class T, class C>
void rotate_reference(const T* x, int64_t stride, const C* cos, const C* sin, int64_t half, bool inverse, T* y) {
  for (int64_t i = 0; i < half; ++i) {
    const C a = static_cast<C>(x[i * stride]), b = static_cast<C>(x[(i + half) * stride]),
            s = inverse ? -sin[i] : sin[i];
    y[i] = static_cast<T>(a * cos[i] - b * s);
    y[i + half] = static_cast<T>(b * cos[i] + a * s);
  }
}

void execute_rotary(const Launch& launch, Execution& run) {
  const View &x = launch.inputs[0], &given = launch.inputs[1];
  const bool inverse = launch.attrs.b(kRotaryInverse);
  const int64_t head_dim = x.shape.back(), half = head_dim / 2, stride = x.strides.back();
  // The table's row of each row of x: positions numbered in their own order, broadcast as they are.
  View numbered = given;
  if (given.defined()) numbered.strides = contiguous_strides(given.shape);
  numbered = rotary_positions(numbered, x);
  const int64_t count = given.defined() ? given.numel() : x.shape[x.rank() - 2];
  visit_floating(x.dtype, kName, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = compute_t<T>;
    const AngleTable<C> table = angle_table<C>(run, given, count, half, launch.attrs.f(kRotaryBase));
    if (run.dry()) return;
    const RowOffsets x_rows(x, x.rank() - 1), table_rows(numbered, -1);
    parallel_for(x_rows.count(), std::max<int64_t>(1, kElementwiseGrain / std::max<int64_t>(1, head_dim)),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t row = begin; row < end; ++row) {
                     const T* from = x.ptr<T>() + x_rows(row);
                     const int64_t at = table_rows(row) * half;
                     T* to = launch.outputs[0].ptr<T>() + row * head_dim;
                     if constexpr (std::is_same_v<T, float>) {
                       if (stride == 1) {
                         kernels().rotary.rotate(from, table.cos + at, table.sin + at, half, inverse, to);
                         continue;
                       }
                     }
                     rotate_reference<T, C>(from, stride, table.cos + at, table.sin + at, half, inverse, to);
                   }
                 });
  });
}

Tensors rotary_gradient(GradContext& ctx) {
  static const OpRef rotary{"rotary_embedding"};
  Tensors grads(2);
  if (const Tensor grad = ctx.grad_output(0); grad.defined() && ctx.needs(0))
    grads[0] = rotary({grad, ctx.has_input(1) ? ctx.input(1) : Tensor{}},
                      {ctx.attrs()[kRotaryBase], Attr::of_bool(!ctx.attrs().b(kRotaryInverse))});
  return grads;
}

}  // namespace

void register_rotary(OperatorRegistry& registry) {
  using Kind = InputSpec::Kind;
  Operator op;
  op.name = kName;
  op.doc =
      "Rotary position embedding (Su et al., 2021) with rotated halves, as in Llama: with a = position * "
      "base^(-2 i / D), y[..., i] = x[..., i] cos a - x[..., i + D/2] sin a and y[..., i + D/2] = x[..., i + D/2] cos "
      "a "
      "+ x[..., i] sin a. x: [..., T, D], D even and at most 512, any floating dtype; positions: int32 or int64, "
      "broadcast to [..., T], by default 0, 1, ... along T; result: like x, row-major. inverse turns the other way.";
  op.category = "Neural network";
  op.inputs = {{"x", Kind::required}, {"positions", Kind::optional}};
  op.attrs = {{"base", AttrKind::floating, Attr::of_float(10000), false, {}},
              {"inverse", AttrKind::boolean, Attr::of_bool(false), false, {}}};
  op.output_names = {"y"};
  op.infer = infer_rotary;
  op.workspace = workspace_of<execute_rotary>;
  op.launch_cpu = launch_of<execute_rotary>;
  op.gradient = rotary_gradient;
  op.save_inputs = 0b10;
  op.grad_cases = {{{{2, 3, 4}}, {}, "normal"}, {{{5, 6}}, {Attr::of_float(100), Attr::of_bool(true)}, "normal"}};
  registry.add(std::move(op));
}

}  // namespace blutensor
