// Grouped-query attention (Ainslie et al., 2023): query heads [..., H, T, D] that share key heads [..., H_kv, S, D].
//
// Kernels see both with the same leading axes. So heads become two axes, [H_kv, group], and keys and values repeat along
// the second with a stride of 0: nothing is copied.
#pragma once

#include <array>
#include <string_view>

#include "ops/operator.h"

namespace blutensor {

// Query heads per key head: 1 where there are as many of both. `query` and `key` are shapes [..., H, T, D].
inline int64_t head_group(const Shape& query, const Shape& key) {
  const int axis = query.size() - 3;
  return axis < 0 || key[axis] == query[axis] ? 1 : query[axis] / key[axis];
}

// A launch with its heads in groups. `inputs` and `outputs` say what the operands are, a letter each: q is
// [..., H, T, D], r is [..., H, T], k is [..., H_kv, S, D]; anything else stays as it is.
class GroupedHeads {
 public:
  GroupedHeads(const Launch& launch, std::string_view inputs, std::string_view outputs) : launch_(launch) {
    const View &query = launch.inputs[inputs.find('q')], &key = launch.inputs[inputs.find('k')];
    group_ = head_group(query.shape, key.shape);
    if (group_ == 1) return;
    for (size_t i = 0; i < inputs.size(); ++i) inputs_[i] = grouped(launch.inputs[i], inputs[i]);
    for (size_t i = 0; i < outputs.size(); ++i) outputs_[i] = grouped(launch.outputs[i], outputs[i]);
    launch_.inputs = {inputs_.data(), inputs.size()};
    launch_.outputs = {outputs_.data(), outputs.size()};
  }
  GroupedHeads(const GroupedHeads&) = delete;  // the launch points into it
  GroupedHeads& operator=(const GroupedHeads&) = delete;

  const Launch& launch() const { return launch_; }

 private:
  View grouped(const View& view, char kind) const {
    if (!view.defined() || (kind != 'q' && kind != 'r' && kind != 'k')) return view;
    View result = view;
    const int heads = view.rank() - (kind == 'r' ? 2 : 3);
    if (kind != 'k') result.shape[heads] /= group_;
    result.shape.insert(heads + 1, group_);
    result.strides.insert(heads + 1, kind == 'k' ? 0 : view.strides[heads]);
    if (kind != 'k') result.strides[heads] *= group_;
    return result;
  }

  Launch launch_;
  int64_t group_ = 1;
  std::array<View, 7> inputs_;
  std::array<View, 3> outputs_;
};

}  // namespace blutensor
