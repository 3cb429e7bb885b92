// Devices, copies between them, pinned memory.
#include <memory>

#include "api/handles.h"
#include "tensor/device.h"
#ifdef BLUTENSOR_HAVE_CUDA
#include "runtime/graph.h"
#endif

using namespace blutensor;
using namespace blutensor::api;

namespace {

// The bytes of a row-major tensor, for copies as a whole.
Tensor whole(const blutensor_tensor* handle, const char* op, bool write) {
  const Tensor t = needed(handle, op);
  check_host_access(t, write, op);
  require(t.contiguous(), "[", op, "] expected a row-major tensor, got shape ", t.shape(), " with strides ",
          t.strides());
  return t;
}

}  // namespace

extern "C" {

int32_t blutensor_device_count(int32_t device_type) {
  return device_type == 0 ? 1 : device_type == 1 ? cuda_device_count() : 0;
}

const char* blutensor_cuda_unavailable_reason(void) { return cuda_unavailable_reason().c_str(); }

int32_t blutensor_check_device(int32_t device_type, int32_t device_index) {
  return guarded([&] { checked_device(device_type, device_index); });
}

const char* blutensor_device_properties(int32_t device_index) {
  thread_local std::string buffer;
  const int32_t status = guarded([&] { buffer = device_properties_json({DeviceType::cuda, device_index}); });
  return status ? "" : buffer.c_str();
}

int32_t blutensor_synchronize(int32_t device_type, int32_t device_index) {
  return guarded([&] { synchronize(checked_device(device_type, device_index)); });
}

int32_t blutensor_compute_stream(int32_t device_type, int32_t device_index, void** stream) {
  return guarded([&] { *stream = compute_stream(checked_device(device_type, device_index)); });
}

int32_t blutensor_event_record(int32_t device_type, int32_t device_index, void** event) {
  return guarded([&] {
    const Device device = checked_device(device_type, device_index);
    *event = nullptr;
#ifdef BLUTENSOR_HAVE_CUDA
    if (device.type == DeviceType::cpu) return;
    use_device(device);
    auto mark = std::make_unique<Event>();
    mark->record(compute_stream(device));
    *event = mark.release();
#else
    static_cast<void>(device);
#endif
  });
}

int32_t blutensor_event_wait(void* event) {
  return guarded([&] {
#ifdef BLUTENSOR_HAVE_CUDA
    if (event) static_cast<const Event*>(event)->wait();
#else
    static_cast<void>(event);
#endif
  });
}

void blutensor_event_release(void* event) {
#ifdef BLUTENSOR_HAVE_CUDA
  delete static_cast<Event*>(event);
#else
  static_cast<void>(event);
#endif
}

int32_t blutensor_set_default_device(int32_t device_type, int32_t device_index) {
  return guarded([&] { set_creation_device(checked_device(device_type, device_index)); });
}

int32_t blutensor_empty_pinned(const int64_t* shape, int32_t rank, int32_t dtype, blutensor_tensor** out) {
  return guarded([&] {
    initialize();
    const Shape s = dims(shape, rank);
    const DType d = checked_dtype(dtype);
    const size_t bytes = static_cast<size_t>(num_elements(s)) * dtype_size(d);
    void* memory = allocate_pinned(bytes);
    auto storage = make_ref<Storage>(memory, bytes, Device{}, [memory] { free_pinned(memory); });
    *out = to_handle(Tensor(make_ref<TensorImpl>(std::move(storage), d, s, contiguous_strides(s), int64_t{0})));
  });
}

int32_t blutensor_copy_to_device(blutensor_tensor* tensor, int32_t device_type, int32_t device_index,
                                 blutensor_tensor** out) {
  return guarded([&] {
    const Tensor from = whole(tensor, "to", false);
    const Tensor to = Tensor::empty(from.shape(), from.dtype(), checked_device(device_type, device_index), "to");
    copy_bytes(to.data(), to.device(), from.data(), from.device(), from.nbytes());
    *out = to_handle(to);
  });
}

int32_t blutensor_copy_bytes(blutensor_tensor* to, blutensor_tensor* from) {
  return guarded([&] {
    const Tensor source = whole(from, "copy_", false), target = whole(to, "copy_", true);
    require(target.shape() == source.shape() && target.dtype() == source.dtype(),
            "[copy_] expected tensors of one shape and dtype, got ", describe(target), " and ", describe(source));
    copy_bytes(target.data(), target.device(), source.data(), source.device(), source.nbytes());
    target.storage().mark_written("copy_");
  });
}

int32_t blutensor_tensor_read(blutensor_tensor* tensor, const char* op, void* host, uint64_t bytes) {
  return guarded([&] {
    const Tensor t = whole(tensor, op, false);
    require(t.nbytes() == bytes, "[", op, "] expected ", t.nbytes(), " bytes, got ", bytes);
    copy_bytes(host, Device{}, t.data(), t.device(), bytes);
    synchronize(t.device());
  });
}

int32_t blutensor_tensor_write(blutensor_tensor* tensor, const char* op, const void* host, uint64_t bytes) {
  return guarded([&] {
    const Tensor t = whole(tensor, op, true);
    require(t.nbytes() == bytes, "[", op, "] expected ", t.nbytes(), " bytes, got ", bytes);
    copy_bytes(t.data(), t.device(), host, Device{}, bytes);
    synchronize(t.device());  // the host's memory may be pinned, and is the caller's
    t.storage().mark_written(intern(op));
  });
}

int32_t blutensor_stream_begin(blutensor_tensor* tensor, void* stream) {
  return guarded([&] {
    const Tensor t = needed(tensor, "stream_begin");
    require_type(t.device().type == DeviceType::cuda, "[stream_begin] expected a CUDA tensor, got ", describe(t));
    stream_waits_for_compute(t.device(), stream);
    record_use(t.storage(), stream);
  });
}

}  // extern "C"
