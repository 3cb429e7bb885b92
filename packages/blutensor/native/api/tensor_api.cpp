// Tensors: creation, description, memory.
#include "api/handles.h"
#include "autograd/node.h"
#include "program/recorder.h"
#include "tensor/device.h"

using namespace blutensor;
using namespace blutensor::api;

namespace {

// First and one-past-last element that a strided view touches, relative to element (0, ..., 0).
std::pair<int64_t, int64_t> extent(const Shape& shape, const Strides& strides) {
  int64_t low = 0, high = 1;
  for (int i = 0; i < shape.size(); ++i) {
    if (shape[i] == 0) return {0, 0};
    int64_t reach = 0;
    require(!__builtin_mul_overflow(strides[i], shape[i] - 1, &reach), "[from_memory] strides ", strides, " overflow");
    (reach < 0 ? low : high) += reach;
  }
  return {low, high};
}

}  // namespace

void blutensor::api::check_host_access(const Tensor& t, bool write, const char* op) {
  if (Recorder::active())
    fail(Status::capture, "[", op, "] cannot ", write ? "write" : "read", " the value of a tensor (", describe(t),
         ") on the host while a function is captured; return it from the function, or do it before the capture");
  if (t.storage().captured_by())
    fail(Status::capture, "[", op, "] this tensor was made inside the captured function '", t.storage().captured_by(),
         "' and not returned by it: its memory is reused. Return it from the function");
}

extern "C" {

int32_t blutensor_empty(const int64_t* shape, int32_t rank, int32_t dtype, int32_t device_type, int32_t device_index,
                        blutensor_tensor** out) {
  return guarded([&] {
    initialize();
    *out = to_handle(
        Tensor::empty(dims(shape, rank), checked_dtype(dtype), checked_device(device_type, device_index), "empty"));
  });
}

int32_t blutensor_from_memory(void* data, const int64_t* shape, const int64_t* strides, int32_t rank, int32_t dtype,
                              int32_t device_type, int32_t device_index, void (*release)(void*), void* context,
                              blutensor_tensor** out) {
  return guarded([&] {
    initialize();
    const Shape s = dims(shape, rank);
    const Strides st = dims(strides, rank);
    const DType d = checked_dtype(dtype);
    const auto element = static_cast<int64_t>(dtype_size(d));
    require(data || num_elements(s) == 0, "[from_memory] expected an address for shape ", s, ", got NULL");
    const auto [low, high] = extent(s, st);
    const Device device = checked_device(device_type, device_index);
    const auto owner = make_ref<CallbackContext>(context, release);
    // Our stream may still be using memory of a device when its last tensor dies; the owner does not know of that stream.
    const auto done = [owner, device] { drain(device); };
    auto storage = make_ref<Storage>(static_cast<char*>(data) + low * element,
                                     static_cast<size_t>((high - low) * element), device, done);
    *out = to_handle(Tensor(make_ref<TensorImpl>(std::move(storage), d, s, st, -low)));
  });
}

void blutensor_tensor_retain(blutensor_tensor* tensor) { reinterpret_cast<TensorImpl*>(tensor)->retain(); }
void blutensor_tensor_release(blutensor_tensor* tensor) {
  if (tensor) reinterpret_cast<TensorImpl*>(tensor)->release();
}

int32_t blutensor_tensor_get_info(const blutensor_tensor* tensor, blutensor_tensor_info* info) {
  return guarded([&] {
    const Tensor t = needed(tensor, "tensor_get_info");
    require(info->struct_size >= sizeof(blutensor_tensor_info), "[tensor_get_info] struct_size is too small");
    info->dtype = static_cast<int32_t>(t.dtype());
    info->device_type = static_cast<int32_t>(t.device().type);
    info->device_index = t.device().index;
    info->rank = t.rank();
    info->requires_grad = requires_grad(t);
    info->is_leaf = is_leaf(t);
    info->contiguous = t.contiguous();
    std::copy(t.shape().begin(), t.shape().end(), info->shape);
    std::copy(t.strides().begin(), t.strides().end(), info->strides);
    info->offset = t.offset();
    info->storage_id = t.storage().id();
    info->storage_bytes = t.storage().bytes();
    info->version = t.storage().version();
    info->grad_fn = is_leaf(t) ? nullptr : grad_meta(t)->grad_fn->name();
  });
}

int32_t blutensor_tensor_is_shared(const blutensor_tensor* tensor) {
  return tensor && from_handle(tensor).storage().use_count() > 1;
}

int32_t blutensor_tensor_data(blutensor_tensor* tensor, int32_t write, const char* op, void** data) {
  return guarded([&] {
    const Tensor t = needed(tensor, "tensor_data");
    check_host_access(t, write != 0, op);
    require_type(t.device().type == DeviceType::cpu, "[", op, "] expected a tensor on the cpu, got ", describe(t),
                 "; use .cpu() for a copy there");
    if (write) t.storage().mark_written(intern(op));
    *data = t.data();
  });
}

void* blutensor_tensor_address(const blutensor_tensor* tensor) { return from_handle(tensor).data(); }

}  // extern "C"
