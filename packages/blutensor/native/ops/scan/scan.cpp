// Cumulative sums and products along an axis.
#include "ops/scan/scan.h"

#include "ops/all_operators.h"
#include "ops/elementwise/block_loop.h"
#include "ops/reduce/reduce_operator.h"
#include "ops/registry.h"

namespace blutensor {

namespace {

constexpr int kAxis = 0, kReverse = 1, kExclusive = 2;  // attributes

// One operand's line, read and written in blocks of a compute type; `reverse` walks it from its end.
struct Line {
  char* data = nullptr;
  int64_t size = 0, stride = 0;
  Line(const View& x, const Lines& lines, int64_t line, bool reverse)
      : size(static_cast<int64_t>(dtype_size(x.dtype))), stride(x.strides[lines.axis] * (reverse ? -1 : 1)) {
    const int64_t first = lines.base(x, line) + (reverse ? (lines.length - 1) * x.strides[lines.axis] : 0);
    data = static_cast<char*>(x.data) + first * size;
  }
  char* at(int64_t i) const { return data + i * stride * size; }
};

// State: double for floats, uint64_t (which wraps) for integers.
template <class State, bool product>
void scan(const Launch& args) {
  const View &x = args.inputs[0], &out = args.outputs[0];
  const Lines lines(x.shape, args.attrs.i(kAxis), "cumulative");
  const bool reverse = args.attrs.b(kReverse), exclusive = args.attrs.b(kExclusive);
  constexpr DType kState = dtype_of<State>::value;
  const CastKernel load = kernels().copy.from_to(x.dtype, kState), store = kernels().copy.from_to(kState, out.dtype);
  const int64_t grain = std::max<int64_t>(1, kElementwiseGrain / std::max<int64_t>(lines.length, 1));
  parallel_for(lines.count, grain, [&](int64_t begin, int64_t end) {
    State block[kBlock];
    for (int64_t line = begin; line < end; ++line) {
      const Line from(x, lines, line, reverse), to(out, lines, line, reverse);
      State total = product ? State{1} : State{0};
      for (int64_t first = 0; first < lines.length; first += kBlock) {
        const int64_t n = std::min(kBlock, lines.length - first);
        load(n, block, 1, from.at(first), from.stride);
        for (int64_t i = 0; i < n; ++i) {
          const State before = total;
          total = product ? total * block[i] : total + block[i];
          block[i] = exclusive ? before : total;
        }
        store(n, to.at(first), to.stride, block, 1);
      }
    }
  });
}

template <bool product>
void launch_scan(const Launch& args) {
  if (is_floating(args.inputs[0].dtype)) return scan<double, product>(args);
  scan<uint64_t, product>(args);
}

std::vector<AttrSpec> scan_attrs() {
  return {{"axis", AttrKind::integer, {}, true, {}},
          {"reverse", AttrKind::boolean, Attr::of_bool(false), false, {}},
          {"exclusive", AttrKind::boolean, Attr::of_bool(false), false, {}}};
}

template <bool product>
Operator scan_operator(const char* name, const char* doc) {
  Operator o;
  o.name = name;
  o.doc = doc;
  o.category = "Reductions";
  o.inputs = {{.name = "x"}};
  o.attrs = scan_attrs();
  o.output_names = {"out"};
  o.infer = [name](const OpCall& call) -> std::vector<TensorSpec> {
    const Tensor& x = call.inputs[0];
    Lines(x.shape(), call.attrs.i(kAxis), name);
    return {{sum_dtype(x.dtype()), x.shape(), {}, false}};
  };
  o.launch_cpu = launch_scan<product>;
  for (bool reverse : {false, true})
    for (int64_t axis : {0, -1})
      o.grad_cases.push_back({{{3, 5}}, {Attr::of_int(axis), Attr::of_bool(reverse), Attr::of_bool(axis == 0)}});
  return o;
}

// ---------------------------------------------------------------- gradient of the product

// The gradient of x[i] is the product of those before it times s[i], the sum of the gradients of what x[i] went into,
// each by the products behind it: s[i] = g[i] + x[i+1] s[i+1] (exclusive: g[i+1] + x[i+1] s[i+1]). No division.
void launch_product_backward(const Launch& args) {
  const View &g = args.inputs[0], &x = args.inputs[1], &out = args.outputs[0];
  const Lines lines(x.shape, args.attrs.i(kAxis), "cumulative_prod");
  const bool reverse = args.attrs.b(kReverse), exclusive = args.attrs.b(kExclusive);
  const CastKernel load_g = kernels().copy.from_to(g.dtype, DType::float64);
  const CastKernel load_x = kernels().copy.from_to(x.dtype, DType::float64);
  const CastKernel store = kernels().copy.from_to(DType::float64, out.dtype);
  auto* sums = static_cast<double*>(args.workspace);
  const int64_t n = lines.length, grain = std::max<int64_t>(1, kElementwiseGrain / std::max<int64_t>(n, 1));
  parallel_for(lines.count, grain, [&](int64_t begin, int64_t end) {
    for (int64_t line = begin; line < end; ++line) {
      const Line g_line(g, lines, line, reverse), x_line(x, lines, line, reverse), to(out, lines, line, reverse);
      double* s = sums + line * n;
      double sum = 0, gradient = 0, factor = 0;
      for (int64_t i = n - 1; i >= 0; --i) {
        if (i + 1 < n) load_x(1, &factor, 1, x_line.at(i + 1), 1);
        if (exclusive) {
          sum = i + 1 < n ? gradient + factor * sum : 0;
          load_g(1, &gradient, 1, g_line.at(i), 1);
        } else {
          load_g(1, &gradient, 1, g_line.at(i), 1);
          sum = i + 1 < n ? gradient + factor * sum : gradient;
        }
        s[i] = sum;
      }
      double before = 1;
      for (int64_t i = 0; i < n; ++i) {
        s[i] *= before;
        load_x(1, &factor, 1, x_line.at(i), 1);
        before *= factor;
      }
      store(n, to.at(0), to.stride, s, 1);
    }
  });
}

void register_product_backward(OperatorRegistry& registry) {
  Operator o;
  o.name = "cumulative_prod_backward";
  o.doc = "The gradient of cumulative_prod, right for zeros too. grad, x: of one shape, floating; out: x's dtype.";
  o.category = "Gradient helpers";
  o.is_public = false;
  o.inputs = {{.name = "grad"}, {.name = "x"}};
  o.attrs = scan_attrs();
  o.output_names = {"out"};
  o.infer = [](const OpCall& call) -> std::vector<TensorSpec> {
    const Tensor &g = call.inputs[0], &x = call.inputs[1];
    require(g.shape() == x.shape(), "[cumulative_prod_backward] expected grad and x of one shape, got ", g.shape(),
            " and ", x.shape());
    require_type(is_floating(g.dtype()) && is_floating(x.dtype()),
                 "[cumulative_prod_backward] expected floating-point tensors, got ", dtype_name(g.dtype()), " and ",
                 dtype_name(x.dtype()));
    Lines(x.shape(), call.attrs.i(kAxis), "cumulative_prod_backward");
    return {{x.dtype(), x.shape(), {}, false}};
  };
  o.workspace = [](const Launch& args) { return static_cast<size_t>(args.inputs[1].numel()) * sizeof(double); };
  o.launch_cpu = launch_product_backward;
  registry.add(std::move(o));
}

}  // namespace

void register_scan(OperatorRegistry& registry) {
  Operator sum = scan_operator<false>("cumulative_sum",
                                      "Sums of all elements up to each one along an axis. reverse: from the end; "
                                      "exclusive: without the element itself. "
                                      "Floats accumulate in float64; signed integers and bool give int64, unsigned "
                                      "ones uint64, and wrap. out: the same "
                                      "shape.");
  sum.gradient = [](GradContext& context) -> Tensors {
    static const OpRef cumulative_sum{"cumulative_sum"};
    const Tensor g = context.grad_output(0);
    if (!g.defined() || !context.needs(0)) return {Tensor{}};
    const Attrs& attrs = context.attrs();
    return {cumulative_sum({g}, {attrs[kAxis], Attr::of_bool(!attrs.b(kReverse)), attrs[kExclusive]})};
  };
  registry.add(std::move(sum));

  Operator prod = scan_operator<true>(
      "cumulative_prod",
      "Products of all elements up to each one along an axis. reverse: from the end; exclusive: without the element "
      "itself. Floats accumulate in float64; signed integers and bool give int64, unsigned ones uint64, and wrap. out: "
      "the same shape.");
  prod.save_inputs = 1;
  prod.gradient = [](GradContext& context) -> Tensors {
    static const OpRef backward{"cumulative_prod_backward"};
    const Tensor g = context.grad_output(0);
    if (!g.defined() || !context.needs(0)) return {Tensor{}};
    return {backward({g, context.input(0)}, context.attrs())};
  };
  registry.add(std::move(prod));
  register_product_backward(registry);
}

}  // namespace blutensor
