#include "common/status.h"

#include <cstring>

namespace blublas {
namespace {

thread_local char message[1024] = "";

}  // namespace

const char* last_error() noexcept { return message; }

void set_last_error(const char* text) noexcept {
  std::strncpy(message, text, sizeof(message) - 1);
  message[sizeof(message) - 1] = '\0';
}

}  // namespace blublas
