// argsort along an axis, and positions in a sorted line.
#include <algorithm>
#include <numeric>

#include "ops/all_operators.h"
#include "ops/elementwise/block_loop.h"
#include "ops/registry.h"
#include "ops/scan/scan.h"

namespace blutensor {

namespace {

// Keys are compared as double, int64_t or uint64_t, whichever holds the dtype's values. NaN comes behind all numbers.
template <class Visitor>
decltype(auto) visit_key(DType dtype, const Visitor& visit) {
  if (is_floating(dtype)) return visit(TypeTag<double>{});
  return dtype == DType::uint64 ? visit(TypeTag<uint64_t>{}) : visit(TypeTag<int64_t>{});
}
template <class Key>
bool before(Key a, Key b) {
  return a < b || (b != b && a == a);
}

template <class Key>
void sort_lines(const Launch& args) {
  const View &x = args.inputs[0], &out = args.outputs[0];
  const Lines lines(x.shape, args.attrs.i(0), "argsort");
  const bool descending = args.attrs.b(1);
  const CastKernel load = kernels().copy.from_to(x.dtype, dtype_of<Key>::value);
  const CastKernel store = kernels().copy.from_to(DType::int64, DType::int64);
  const auto size = static_cast<int64_t>(dtype_size(x.dtype));
  parallel_for(lines.count, std::max<int64_t>(1, 1024 / lines.length), [&](int64_t begin, int64_t end) {
    std::vector<Key> keys(static_cast<size_t>(lines.length));
    std::vector<int64_t> order(keys.size());
    for (int64_t line = begin; line < end; ++line) {
      load(lines.length, keys.data(), 1, static_cast<const char*>(x.data) + lines.base(x, line) * size,
           x.strides[lines.axis]);
      std::iota(order.begin(), order.end(), 0);
      const Key* k = keys.data();
      if (descending)
        std::stable_sort(order.begin(), order.end(), [k](int64_t a, int64_t b) { return before(k[b], k[a]); });
      else
        std::stable_sort(order.begin(), order.end(), [k](int64_t a, int64_t b) { return before(k[a], k[b]); });
      store(lines.length, out.ptr<int64_t>() + lines.base(out, line), out.strides[lines.axis], order.data(), 1);
    }
  });
}

template <class Key>
void search(const Launch& args) {
  const View &sorted = args.inputs[0], &values = args.inputs[1], &out = args.outputs[0];
  constexpr DType kKey = dtype_of<Key>::value;
  const bool right = args.attrs.s(0) == "right";
  const CastKernel load = kernels().copy.from_to(sorted.dtype, kKey);
  const auto size = static_cast<int64_t>(dtype_size(sorted.dtype));
  const BlockOperand inputs[] = {{&values, kKey}};
  block_loop({&out, DType::int64}, inputs, false, [&](int64_t n, void* o, const auto& in, int64_t) {
    for (int64_t i = 0; i < n; ++i) {
      const Key value = static_cast<const Key*>(in[0].data)[i];
      int64_t low = 0, high = sorted.shape[0];
      while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        Key key;
        load(1, &key, 1, static_cast<const char*>(sorted.data) + middle * sorted.strides[0] * size, 1);
        const bool behind = right ? !before(value, key) : before(key, value);
        (behind ? low : high) = behind ? middle + 1 : middle;
      }
      static_cast<int64_t*>(o)[i] = low;
    }
  });
}

}  // namespace

void register_sort(OperatorRegistry& registry) {
  Operator argsort;
  argsort.name = "argsort";
  argsort.doc =
      "Positions that sort x along an axis: int64, of x's shape. Stable: equal elements stay in their order; NaN comes "
      "behind all numbers (descending: before them).";
  argsort.category = "Sorting and searching";
  argsort.inputs = {{.name = "x"}};
  argsort.attrs = {{"axis", AttrKind::integer, Attr::of_int(-1), false, {}},
                   {"descending", AttrKind::boolean, Attr::of_bool(false), false, {}}};
  argsort.output_names = {"out"};
  argsort.infer = [](const OpCall& call) -> std::vector<TensorSpec> {
    const Tensor& x = call.inputs[0];
    Lines(x.shape(), call.attrs.i(0), "argsort");
    return {{DType::int64, x.shape(), {}, false}};
  };
  argsort.launch_cpu = [](const Launch& args) {
    if (args.outputs[0].numel() == 0) return;
    visit_key(args.inputs[0].dtype, [&](auto tag) { sort_lines<typename decltype(tag)::type>(args); });
  };
  registry.add(std::move(argsort));

  Operator searchsorted;
  searchsorted.name = "searchsorted";
  searchsorted.doc =
      "Where each of `values` would have to be inserted into the ascending 1-d `sorted` to keep it so: int64, of the "
      "shape "
      "of values. side=\"left\": before equal elements, \"right\": behind them. NaN counts as larger than all numbers. "
      "dtypes promote.";
  searchsorted.category = "Sorting and searching";
  searchsorted.inputs = {{.name = "sorted"}, {.name = "values"}};
  searchsorted.attrs = {{"side", AttrKind::string, Attr::of_string("left"), false, {"left", "right"}}};
  searchsorted.output_names = {"out"};
  searchsorted.infer = [](const OpCall& call) -> std::vector<TensorSpec> {
    const Tensor &sorted = call.inputs[0], &values = call.inputs[1];
    require(sorted.rank() == 1, "[searchsorted] expected a sorted tensor of one axis, got shape ", sorted.shape());
    promote(sorted.dtype(), values.dtype());
    return {{DType::int64, values.shape(), {}, false}};
  };
  searchsorted.launch_cpu = [](const Launch& args) {
    visit_key(promote(args.inputs[0].dtype, args.inputs[1].dtype),
              [&](auto tag) { search<typename decltype(tag)::type>(args); });
  };
  registry.add(std::move(searchsorted));
}

}  // namespace blutensor
