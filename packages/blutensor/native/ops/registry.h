// The operator table and the one way to call an operator.
#pragma once

#include <atomic>
#include <string_view>

#include "ops/operator.h"

namespace blutensor {

class OperatorRegistry {
 public:
  static OperatorRegistry& instance();
  // Validates the descriptor; the name must be new. Returns the stored descriptor (its address never changes).
  const Operator& add(Operator op);
  const Operator* find(std::string_view name) const;  // nullptr when unknown
  const Operator& at(uint32_t id) const;
  uint32_t size() const;

 private:
  OperatorRegistry();
  struct Impl;
  Impl* impl_;
};

// Runs an operator: validates, infers, allocates, launches, records it for autograd and for a running capture.
// Inputs are flattened (fixed inputs, then lists). Operators that only write return no tensors.
Tensors call(const Operator& op, std::span<const Tensor> inputs, const Attrs& attrs, int64_t list_length = 0);

// By name, looked up once:  static const OpRef mul{"multiply"};  Tensor c = mul({a, b});
class OpRef {
 public:
  explicit OpRef(const char* name) : name_(name) {}
  Tensor operator()(std::initializer_list<Tensor> inputs, Attrs attrs = {}) const;  // one output
  Tensors many(std::initializer_list<Tensor> inputs, Attrs attrs = {}) const;       // several or none
  Tensors lists(std::span<const Tensor> flat_inputs, int64_t list_length, Attrs attrs = {}) const;
  const Operator& op() const;

 private:
  const char* name_;
  mutable std::atomic<const Operator*> op_{nullptr};
};

}  // namespace blutensor
