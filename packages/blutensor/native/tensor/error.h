// Errors inside blutensor: C++ code throws Error, the C edge (api/) turns it into a status code and a message.
#pragma once

#include <cstdint>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

namespace blutensor {

// Values are part of the C ABI (blutensor.h, BLUTENSOR_STATUS_*).
enum class Status : int32_t {
  ok = 0,
  invalid_value = 1,
  invalid_type = 2,
  out_of_memory = 3,
  unsupported = 4,
  runtime = 5,
  io = 6,
  interrupted = 7,
  index = 8,
  capture = 9,
  autograd = 10,
  device_lost = 11,
};

class Error : public std::runtime_error {
 public:
  Error(Status status, const std::string& message) : std::runtime_error(message), status_(status) {}
  Status status() const noexcept { return status_; }

 private:
  Status status_;
};

// Concatenates anything that streams.
template <class... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return std::move(out).str();
}

template <class... Parts>
[[noreturn]] void fail(Status status, const Parts&... parts) {
  throw Error(status, text(parts...));
}

// Preconditions on what the user gave: `[op] expected ..., got ...`.
template <class... Parts>
void require(bool condition, const Parts&... parts) {
  if (!condition) fail(Status::invalid_value, parts...);
}
template <class... Parts>
void require_type(bool condition, const Parts&... parts) {
  if (!condition) fail(Status::invalid_type, parts...);
}

}  // namespace blutensor
