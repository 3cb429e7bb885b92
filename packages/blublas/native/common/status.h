// Errors inside blublas: C++ throws Error, the C edge turns it into a status and a thread-local message.
#pragma once

#include <cstdint>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>

#include "blublas/blublas.h"

namespace blublas {

class Error : public std::runtime_error {
 public:
  Error(int32_t status, const std::string& text) : std::runtime_error(text), status_(status) {}
  int32_t status() const noexcept { return status_; }

 private:
  int32_t status_;
};

[[noreturn]] inline void fail_value(const std::string& text) { throw Error(BLUBLAS_INVALID_VALUE, text); }
[[noreturn]] inline void fail_dtype(const std::string& text) { throw Error(BLUBLAS_INVALID_DTYPE, text); }

const char* last_error() noexcept;
// Cuts the text to a fixed thread-local buffer, so that reporting out of memory needs no memory.
void set_last_error(const char* text) noexcept;

// Runs `body`, and answers with its status.
template <typename Body>
int32_t guarded(Body&& body) noexcept {
  try {
    body();
    return BLUBLAS_OK;
  } catch (const Error& error) {
    set_last_error(error.what());
    return error.status();
  } catch (const std::bad_alloc&) {
    set_last_error("[blublas] out of host memory");
    return BLUBLAS_OUT_OF_MEMORY;
  } catch (const std::exception& error) {
    set_last_error(error.what());
    return BLUBLAS_RUNTIME_ERROR;
  } catch (...) {
    set_last_error("[blublas] unknown failure");
    return BLUBLAS_RUNTIME_ERROR;
  }
}

}  // namespace blublas
