// What autograd attaches to a tensor. The graph itself lives in autograd/; this is only the hook it hangs on, so that tensor/
// needs to know nothing of nodes.
#pragma once

namespace blutensor {

class AutogradMeta {
 public:
  virtual ~AutogradMeta() = default;
};

}  // namespace blutensor
