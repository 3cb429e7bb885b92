#include "ops/reduce/reduce_operator.h"

namespace blutensor {

std::vector<AttrSpec> reduce_attrs() {
  return {{"axis", AttrKind::axes, Attr::of_all_axes(), false, {}},
          {"keepdims", AttrKind::boolean, Attr::of_bool(false), false, {}}};
}

std::vector<GradCase> reduce_cases() {
  std::vector<GradCase> cases;
  for (bool keepdims : {false, true}) {
    cases.push_back({{{3, 5}}, {Attr::of_all_axes(), Attr::of_bool(keepdims)}});
    cases.push_back({{{2, 3, 4}}, {Attr::of_axes({1}), Attr::of_bool(keepdims)}});
    cases.push_back({{{2, 3, 4}}, {Attr::of_axes({-1, 0}), Attr::of_bool(keepdims)}});
    cases.push_back({{{2, 3}}, {Attr::of_axes({}), Attr::of_bool(keepdims)}});
  }
  return cases;
}

Tensor stretched(const Tensor& t, const Shape& shape, unsigned axes) {
  return broadcast_to(reshaped(t, reduced_shape(shape, axes, true)), shape);
}

Operator reduce_operator(const char* name, const char* doc) {
  Operator o;
  o.name = name;
  o.doc = doc;
  o.category = "Reductions";
  o.inputs = {{.name = "x"}};
  o.attrs = reduce_attrs();
  o.output_names = {"out"};
  return o;
}

}  // namespace blutensor
