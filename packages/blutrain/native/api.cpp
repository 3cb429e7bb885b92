// The C edge: catches everything, turns it into a status and a message.
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "blutrain/blutrain.h"
#include "error.h"
#include "loader.h"
#include "shard.h"

struct blutrain_loader {
  blutrain::Loader loader;
};

namespace {

thread_local std::string last_error;

int32_t remember(int32_t status, const char* message) noexcept {
  try {
    last_error = message;
  } catch (...) {
    last_error.clear();
  }
  return status;
}

/// Runs `body`; returns its status.
template <typename Body>
int32_t guarded(const Body& body) noexcept {
  try {
    body();
    return BLUTRAIN_OK;
  } catch (const blutrain::Error& error) {
    return remember(error.status(), error.what());
  } catch (const std::bad_alloc&) {
    return remember(BLUTRAIN_OUT_OF_MEMORY, "[blutrain] out of host memory");
  } catch (const std::exception& error) {
    return remember(BLUTRAIN_RUNTIME_FAILURE, error.what());
  } catch (...) {
    return remember(BLUTRAIN_RUNTIME_FAILURE, "[blutrain] unknown failure");
  }
}

void require(bool condition, const char* message) {
  if (!condition) throw blutrain::Error(BLUTRAIN_INVALID_VALUE, message);
}

}  // namespace

extern "C" {

uint32_t blutrain_abi_version(void) {
  return (static_cast<uint32_t>(BLUTRAIN_ABI_MAJOR) << 16) | static_cast<uint32_t>(BLUTRAIN_ABI_MINOR);
}

const char* blutrain_last_error(void) { return last_error.c_str(); }

int32_t blutrain_shard_num_tokens(const char* path, int64_t* out_num_tokens) {
  return guarded([&] {
    require(path != nullptr && out_num_tokens != nullptr, "[shard] expected a path and a result, got NULL");
    *out_num_tokens = blutrain::shard_header(path).num_tokens;
  });
}

int32_t blutrain_shard_token_bytes(const char* path, int64_t* out_token_bytes) {
  return guarded([&] {
    require(path != nullptr && out_token_bytes != nullptr, "[shard] expected a path and a result, got NULL");
    *out_token_bytes = blutrain::shard_header(path).token_bytes;
  });
}

int32_t blutrain_loader_create(const char* const* paths, int64_t num_paths, const blutrain_loader_options* options,
                               blutrain_loader** out) {
  return guarded([&] {
    require(options != nullptr && out != nullptr && (paths != nullptr || num_paths == 0),
            "[loader] expected paths, options and a result, got NULL");
    require(options->struct_size >= sizeof(blutrain_loader_options), "[loader] the caller's options are too short");
    const std::vector<std::string> names(paths, paths + (num_paths > 0 ? num_paths : 0));
    *out = std::make_unique<blutrain_loader>(blutrain_loader{blutrain::Loader(names, *options)}).release();
  });
}

void blutrain_loader_destroy(blutrain_loader* loader) { std::unique_ptr<blutrain_loader>{loader}; }

int32_t blutrain_loader_next(void* handle, void* const* slots, int32_t num_slots) {
  auto* loader = static_cast<blutrain_loader*>(handle);
  const int32_t status = guarded([&] {
    require(loader != nullptr && slots != nullptr, "[loader] expected a loader and slots, got NULL");
    require(num_slots == 2 && slots[0] != nullptr && slots[1] != nullptr,
            "[loader] expected 2 slots: tokens and targets, int32 [B, T] each");
    loader->loader.next(static_cast<int32_t*>(slots[0]), static_cast<int32_t*>(slots[1]));
  });
  if (status != BLUTRAIN_OK && loader != nullptr) {
    guarded([&] { loader->loader.last_error = std::string(last_error); });
  }
  return status;
}

const char* blutrain_loader_error(const blutrain_loader* loader) {
  return loader == nullptr ? "" : loader->loader.last_error.c_str();
}

int32_t blutrain_loader_get_info(const blutrain_loader* loader, blutrain_loader_info* inout_info) {
  return guarded([&] {
    require(loader != nullptr && inout_info != nullptr, "[loader] expected a loader and a result, got NULL");
    blutrain_loader_info info = loader->loader.info();
    const uint32_t size = inout_info->struct_size;
    require(size >= sizeof(uint32_t) && size <= sizeof info, "[loader] the caller's info has an unknown size");
    info.struct_size = size;
    std::memcpy(inout_info, &info, size);
  });
}

int32_t blutrain_loader_get_state(const blutrain_loader* loader, int64_t* out_state, int64_t size) {
  return guarded([&] {
    require(loader != nullptr && out_state != nullptr, "[loader] expected a loader and a result, got NULL");
    require(size == BLUTRAIN_LOADER_STATE_SIZE, "[loader] expected a state of 8 integers");
    loader->loader.get_state(out_state);
  });
}

int32_t blutrain_loader_set_state(blutrain_loader* loader, const int64_t* state, int64_t size) {
  return guarded([&] {
    require(loader != nullptr && state != nullptr, "[loader] expected a loader and a state, got NULL");
    require(size == BLUTRAIN_LOADER_STATE_SIZE, "[loader] expected a state of 8 integers");
    loader->loader.set_state(state);
  });
}

}  // extern "C"
