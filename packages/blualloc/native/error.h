// How failures travel: C++ inside throws Error, every exported function runs its body in guard(), which turns
// exceptions into a status and this thread's message.
#pragma once

#include <blualloc/blualloc.h>

#include <cstdint>
#include <cstring>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

namespace blualloc {

class Error : public std::runtime_error {
 public:
  Error(int32_t status, const std::string& text) : std::runtime_error(text), status_(status) {}
  int32_t status() const noexcept { return status_; }

 private:
  int32_t status_;
};

// Stores the text for blualloc_last_error() and returns the status.
int32_t fail(int32_t status, const char* text) noexcept;

// What went wrong inside a callback of a built-in device: kept per thread for the message of the status that it returns.
void set_device_failure(std::string text) noexcept;
// The kept text, which is then gone; empty when there was none.
std::string take_device_failure();

[[noreturn]] inline void invalid(const std::string& text) { throw Error(BLUALLOC_INVALID_VALUE, text); }

template <class Body>
int32_t guard(Body&& body) noexcept {
  try {
    std::forward<Body>(body)();
    return BLUALLOC_OK;
  } catch (const Error& error) {
    return fail(error.status(), error.what());
  } catch (const std::bad_alloc&) {
    return fail(BLUALLOC_RUNTIME_FAILURE, "[blualloc] expected host memory for bookkeeping, got none");
  } catch (const std::exception& error) {
    return fail(BLUALLOC_RUNTIME_FAILURE, error.what());
  } catch (...) {
    return fail(BLUALLOC_RUNTIME_FAILURE, "[blualloc] unknown failure");
  }
}

template <class Pointer>
void require_not_null(Pointer* pointer, const char* operation, const char* name) {
  if (pointer == nullptr) {
    invalid("[" + std::string(operation) + "] expected a pointer for `" + name + "`, got NULL");
  }
}

// Copies as much of `full` as the caller's struct has room for; its struct_size stays.
template <class Struct>
void write_sized(Struct* out, const Struct& full, const char* operation) {
  require_not_null(out, operation, "out");
  const uint32_t size = out->struct_size;
  if (size < 2 * sizeof(uint32_t)) {
    invalid("[" + std::string(operation) + "] expected out->struct_size = sizeof(the struct), got " +
            std::to_string(size));
  }
  std::memcpy(static_cast<void*>(out), &full, size < sizeof(Struct) ? size : sizeof(Struct));
  out->struct_size = size;
}

// The caller's struct, with zeros for the fields that its (older) header did not have yet.
template <class Struct>
Struct read_sized(const Struct* in, const char* operation) {
  require_not_null(in, operation, "argument");
  if (in->struct_size < 2 * sizeof(uint32_t)) {
    invalid("[" + std::string(operation) + "] expected struct_size = sizeof(the struct), got " +
            std::to_string(in->struct_size));
  }
  Struct full{};
  std::memcpy(static_cast<void*>(&full), in, in->struct_size < sizeof(Struct) ? in->struct_size : sizeof(Struct));
  return full;
}

}  // namespace blualloc
