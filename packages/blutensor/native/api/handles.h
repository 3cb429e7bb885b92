// The C edge: handles to C++ and back, exceptions to status codes.
#pragma once

#include <blutensor/blutensor.h>

#include <new>
#include <span>
#include <string>

#include "ops/operator.h"
#include "tensor/tensor.h"

namespace blutensor::api {

void set_last_error(const std::string& message);

// Runs body and turns what it throws into a status and a message. Nothing leaves through the C edge.
template <class Body>
int32_t guarded(const Body& body) noexcept {
  try {
    body();
    return BLUTENSOR_STATUS_OK;
  } catch (const Error& e) {
    set_last_error(e.what());
    return static_cast<int32_t>(e.status());
  } catch (const std::bad_alloc&) {
    set_last_error("out of host memory for bookkeeping");
    return BLUTENSOR_STATUS_OUT_OF_MEMORY;
  } catch (const std::exception& e) {
    set_last_error(e.what());
    return BLUTENSOR_STATUS_RUNTIME;
  } catch (...) {
    set_last_error("unknown failure");
    return BLUTENSOR_STATUS_RUNTIME;
  }
}

// Borrowed handle; NULL gives an undefined tensor.
inline Tensor from_handle(const blutensor_tensor* handle) {
  return Tensor(Ref<TensorImpl>(reinterpret_cast<TensorImpl*>(const_cast<blutensor_tensor*>(handle))));
}
inline Tensor needed(const blutensor_tensor* handle, const char* function) {
  require_type(handle != nullptr, "[", function, "] expected a tensor, got NULL");
  return from_handle(handle);
}
// Owned handle (NULL for an undefined tensor).
inline blutensor_tensor* to_handle(Tensor tensor) {
  Ref<TensorImpl> ref = tensor.ref();
  return reinterpret_cast<blutensor_tensor*>(ref.detach());
}
// Borrowed, for the length of a callback.
inline blutensor_tensor* borrow(const Tensor& tensor) { return reinterpret_cast<blutensor_tensor*>(tensor.impl()); }
inline Tensor adopt(blutensor_tensor* handle) {
  return Tensor(Ref<TensorImpl>::adopt(reinterpret_cast<TensorImpl*>(handle)));
}
inline Tensors from_handles(blutensor_tensor* const* handles, int32_t count) {
  Tensors list;
  list.reserve(static_cast<size_t>(count));
  for (int32_t i = 0; i < count; ++i) list.push_back(handles ? from_handle(handles[i]) : Tensor{});
  return list;
}
inline Dims dims(const int64_t* values, int32_t rank) {
  require(rank >= 0 && rank <= kMaxRank, "expected a rank from 0 to ", kMaxRank, ", got ", rank);
  return Dims(std::span(values, static_cast<size_t>(rank)));
}
// Throws Status::capture where the host may not see the tensor's values: during a capture, and for what one left behind.
void check_host_access(const Tensor& tensor, bool write, const char* op);
DType checked_dtype(int32_t dtype);
Device checked_device(int32_t type, int32_t index);

Attrs to_attrs(const blutensor_attr* attrs, int32_t count);
// Views into `attrs`, valid as long as it lives.
std::vector<blutensor_attr> from_attrs(const Attrs& attrs);
blutensor_view to_c_view(const View& view);

// Registers built-in operators and autograd once.
void initialize();

// Releases a C callback's context when the last copy of the owning std::function dies.
class CallbackContext : public RefCounted {
 public:
  CallbackContext(void* callback_context, void (*on_release)(void*))
      : context(callback_context), release_(on_release) {}
  ~CallbackContext() override {
    if (release_) release_(context);
  }
  void* const context;

 private:
  void (*release_)(void*);
};

}  // namespace blutensor::api
