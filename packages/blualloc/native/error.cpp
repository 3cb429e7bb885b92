#include "error.h"

namespace blualloc {
namespace {

thread_local std::string last_error_text;
thread_local std::string device_failure_text;

}  // namespace

int32_t fail(int32_t status, const char* text) noexcept {
  try {
    last_error_text = text;
  } catch (...) {
    last_error_text.clear();
  }
  return status;
}

void set_device_failure(std::string text) noexcept { device_failure_text = std::move(text); }

std::string take_device_failure() { return std::exchange(device_failure_text, {}); }

}  // namespace blualloc

const char* blualloc_last_error(void) { return blualloc::last_error_text.c_str(); }

uint32_t blualloc_abi_version(void) { return (BLUALLOC_ABI_MAJOR << 16) | BLUALLOC_ABI_MINOR; }
