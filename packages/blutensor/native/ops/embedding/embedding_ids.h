// The ids that embedding takes: all rows of its table, or the first ones where the others are padding.
#pragma once

#include "ops/registry.h"

namespace blutensor {

inline int64_t num_ids(const Launch& launch) {
  const int64_t attribute = launch.attrs.i(0);
  return attribute ? attribute : launch.inputs[1].shape[0];
}

}  // namespace blutensor
