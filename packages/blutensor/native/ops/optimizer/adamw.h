// The call of adamw_ as both devices read it.
#pragma once

#include "ops/operator.h"
#include "ops/optimizer/optimizer_kernels.h"

namespace blutensor {

enum AdamwInput : size_t { kStep, kGradScale, kSkip, kAdamwFixed };
enum AdamwList : size_t { kParams, kGrads, kExpAvgs, kExpAvgSqs, kMasters, kLrs, kAdamwLists };
enum AdamwAttr : size_t { kBeta1, kBeta2, kEps, kWeightDecay };

// What groups of parameters differ in.
struct AdamwSettings {
  const View* lr;
  double beta1, beta2, eps, weight_decay;

  bool operator==(const AdamwSettings& other) const {
    return lr->data == other.lr->data && lr->dtype == other.lr->dtype && beta1 == other.beta1 && beta2 == other.beta2 &&
           eps == other.eps && weight_decay == other.weight_decay;
  }
};

// Those of the parameter at position i: one value for all, or one for each.
inline AdamwSettings adamw_settings(const Launch& launch, size_t i) {
  const auto value = [&](AdamwAttr k) {
    const std::vector<double>& values = launch.attrs.floats(k);
    return values[values.size() == 1 ? 0 : i];
  };
  return {&launch.inputs[kAdamwFixed + kLrs * static_cast<size_t>(launch.list_length) + i], value(kBeta1),
          value(kBeta2), value(kEps), value(kWeightDecay)};
}

// Scalars are computed in double and rounded once.
template <class T>
AdamwStep<T> rounded(const AdamwStep<double>& s) {
  return {static_cast<T>(s.grad_scale), static_cast<T>(s.decay),      static_cast<T>(s.beta1_rest),
          static_cast<T>(s.beta2),      static_cast<T>(s.beta2_rest), static_cast<T>(s.bias2_sqrt),
          static_cast<T>(s.eps),        static_cast<T>(s.step_size)};
}

}  // namespace blutensor
