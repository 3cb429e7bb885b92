// Failures inside the library: one exception type that carries the status of the C interface.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace blutrain {

class Error : public std::runtime_error {
 public:
  Error(int32_t status, const std::string& message) : std::runtime_error(message), status_(status) {}
  [[nodiscard]] int32_t status() const noexcept { return status_; }

 private:
  int32_t status_;
};

}  // namespace blutrain
