// Operators that make tensors from nothing.
#include "ops/all_operators.h"
#include "ops/copy/copy.h"
#include "ops/elementwise/block_loop.h"
#include "ops/registry.h"

namespace blutensor {

namespace {

void launch_full(const Launch& args) {
  const double value = args.attrs.f(1);
  alignas(8) unsigned char element[8];
  kernels().copy.from_to(DType::float64, args.outputs[0].dtype)(1, element, 1, &value, 0);
  fill_view(args.outputs[0], element);
}

void launch_full_integer(const Launch& args) {
  const int64_t value = args.attrs.i(1);
  alignas(8) unsigned char element[8];
  kernels().copy.from_to(DType::int64, args.outputs[0].dtype)(1, element, 1, &value, 0);
  fill_view(args.outputs[0], element);
}

int64_t arange_length(const Attrs& attrs) {
  const double start = attrs.f(0), stop = attrs.f(1), step = attrs.f(2);
  require(step != 0 && std::isfinite(start) && std::isfinite(stop) && std::isfinite(step),
          "[arange] expected finite start, stop and a step other than 0, got ", start, ", ", stop, ", ", step);
  const double length = std::ceil((stop - start) / step);
  require(length < 0x1p62, "[arange] expected fewer than 2^62 elements, got ", length);
  return length > 0 ? static_cast<int64_t>(length) : 0;
}

void launch_arange(const Launch& args) {
  const View& out = args.outputs[0];
  const double start = args.attrs.f(0), step = args.attrs.f(2);
  const CastKernel cast = kernels().copy.from_to(DType::float64, out.dtype);
  parallel_for(out.numel(), kElementwiseGrain, [&](int64_t begin, int64_t end) {
    double block[kBlock];
    for (int64_t first = begin; first < end; first += kBlock) {
      const int64_t length = std::min(kBlock, end - first);
      for (int64_t i = 0; i < length; ++i) block[i] = start + static_cast<double>(first + i) * step;
      cast(length, static_cast<char*>(out.data) + first * static_cast<int64_t>(dtype_size(out.dtype)), 1, block, 1);
    }
  });
}

}  // namespace

void register_creation(OperatorRegistry& registry) {
  Operator full;
  full.name = "full";
  full.doc = "A tensor of one value, converted to the dtype.";
  full.category = "Creation";
  full.attrs = {{"shape", AttrKind::integers, {}, true, {}},
                {"value", AttrKind::floating, {}, true, {}},
                {"dtype", AttrKind::dtype, Attr::of_dtype(DType::float32), false, {}}};
  full.output_names = {"out"};
  full.infer = [](const OpCall& call) -> std::vector<TensorSpec> {
    num_elements(call.attrs.ints(0));  // checks the sizes
    return {{call.attrs.dtype(2), call.attrs.ints(0), {}, false}};
  };
  full.launch_cpu = launch_full;
  Operator full_integer = full;
  full_integer.name = "full_integer";
  full_integer.doc =
      "A tensor of one integer of 64 bits, of which float64, and so full, could not hold all digits; uint64 takes the "
      "same bits.";
  full_integer.is_public = false;
  full_integer.attrs[1].kind = AttrKind::integer;
  full_integer.attrs[2].default_value = Attr::of_dtype(DType::int64);
  full_integer.launch_cpu = launch_full_integer;
  registry.add(std::move(full));
  registry.add(std::move(full_integer));

  Operator arange;
  arange.name = "arange";
  arange.doc =
      "start, start + step, ... below stop (above it for a negative step), computed in float64 and converted: 1-d.";
  arange.category = "Creation";
  arange.attrs = {{"start", AttrKind::floating, {}, true, {}},
                  {"stop", AttrKind::floating, {}, true, {}},
                  {"step", AttrKind::floating, Attr::of_float(1), false, {}},
                  {"dtype", AttrKind::dtype, Attr::of_dtype(DType::float32), false, {}}};
  arange.output_names = {"out"};
  arange.infer = [](const OpCall& call) -> std::vector<TensorSpec> {
    require_type(call.attrs.dtype(3) != DType::boolean, "[arange] expected a numeric dtype, got bool");
    return {{call.attrs.dtype(3), {arange_length(call.attrs)}, {}, false}};
  };
  arange.launch_cpu = launch_arange;
  registry.add(std::move(arange));
}

}  // namespace blutensor
