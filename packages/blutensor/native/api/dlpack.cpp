// Dtypes as others know them: where two meet, and DLPack exchange. The structures are DLPack's published ABI (version 0,
// `DLManagedTensor`).
#include <memory>

#include "api/handles.h"

using namespace blutensor;
using namespace blutensor::api;

namespace {

struct DLDevice {
  int32_t device_type, device_id;
};
struct DLDataType {
  uint8_t code, bits;
  uint16_t lanes;
};
struct DLTensor {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
};
struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(DLManagedTensor*);
};
constexpr int32_t kDLCPU = 1, kDLCUDA = 2, kDLCUDAHost = 3, kDLCUDAManaged = 13;
enum : uint8_t { kDLInt = 0, kDLUInt = 1, kDLFloat = 2, kDLBfloat = 4, kDLBool = 6 };

struct TypeRow {
  DType dtype;
  DLDataType dl;
};
constexpr TypeRow kTypes[] = {
    {DType::float32, {kDLFloat, 32, 1}}, {DType::bfloat16, {kDLBfloat, 16, 1}}, {DType::float16, {kDLFloat, 16, 1}},
    {DType::float64, {kDLFloat, 64, 1}}, {DType::int64, {kDLInt, 64, 1}},       {DType::int32, {kDLInt, 32, 1}},
    {DType::uint8, {kDLUInt, 8, 1}},     {DType::uint16, {kDLUInt, 16, 1}},     {DType::boolean, {kDLBool, 8, 1}},
    {DType::int8, {kDLInt, 8, 1}},       {DType::int16, {kDLInt, 16, 1}},       {DType::uint32, {kDLUInt, 32, 1}},
    {DType::uint64, {kDLUInt, 64, 1}},
};

// Python's functions of capsules, of which there is one interpreter's.
int (*capsule_is_valid)(void*, const char*) = nullptr;
void* (*capsule_pointer)(void*, const char*) = nullptr;

void destroy_capsule(void* capsule) {
  constexpr const char* kFresh = "dltensor";
  if (!capsule_is_valid(capsule, kFresh)) return;  // somebody took it over
  auto* managed = static_cast<DLManagedTensor*>(capsule_pointer(capsule, kFresh));
  managed->deleter(managed);
}

// What an exported tensor keeps alive.
struct Exported {
  Tensor tensor;
  DLManagedTensor managed{};
  Shape shape;
  Strides strides;
};

}  // namespace

extern "C" {

int32_t blutensor_promote(int32_t first, int32_t second, int32_t* out) {
  return guarded([&] { *out = static_cast<int32_t>(promote(checked_dtype(first), checked_dtype(second))); });
}

int32_t blutensor_to_dlpack(blutensor_tensor* tensor, void** dl_managed_tensor) {
  return guarded([&] {
    auto exported = std::make_unique<Exported>();
    exported->tensor = needed(tensor, "to_dlpack");
    const Tensor& t = exported->tensor;
    exported->shape = t.shape();
    exported->strides = t.strides();
    DLTensor& dl = exported->managed.dl_tensor;
    check_host_access(t, false, "__dlpack__");
    dl.data = t.data();
    dl.device = {t.device().type == DeviceType::cpu ? kDLCPU : kDLCUDA, t.device().index};
    dl.ndim = t.rank();
    for (const TypeRow& row : kTypes)
      if (row.dtype == t.dtype()) dl.dtype = row.dl;
    dl.shape = const_cast<int64_t*>(exported->shape.data());
    dl.strides = const_cast<int64_t*>(exported->strides.data());
    exported->managed.manager_ctx = exported.get();
    exported->managed.deleter = [](DLManagedTensor* self) { delete static_cast<Exported*>(self->manager_ctx); };
    *dl_managed_tensor = &exported.release()->managed;
  });
}

blutensor_capsule_destructor blutensor_dlpack_destructor(int (*is_valid)(void*, const char*),
                                                         void* (*pointer)(void*, const char*)) {
  capsule_is_valid = is_valid;
  capsule_pointer = pointer;
  return destroy_capsule;
}

int32_t blutensor_from_dlpack(void* dl_managed_tensor, blutensor_tensor** out) {
  return guarded([&] {
    initialize();
    require_type(dl_managed_tensor != nullptr, "[from_dlpack] expected a DLManagedTensor, got NULL");
    auto* managed = static_cast<DLManagedTensor*>(dl_managed_tensor);
    const DLTensor& dl = managed->dl_tensor;
    const bool on_host = dl.device.device_type == kDLCPU || dl.device.device_type == kDLCUDAHost;
    require_type(on_host || dl.device.device_type == kDLCUDA || dl.device.device_type == kDLCUDAManaged,
                 "[from_dlpack] expected memory of the cpu or of a CUDA device, got DLPack device type ",
                 dl.device.device_type);
    const TypeRow* found = nullptr;
    for (const TypeRow& row : kTypes)
      if (row.dl.code == dl.dtype.code && row.dl.bits == dl.dtype.bits && dl.dtype.lanes == 1) found = &row;
    require_type(found != nullptr, "[from_dlpack] DLPack type (code ", int{dl.dtype.code}, ", ", int{dl.dtype.bits},
                 " bits, ", dl.dtype.lanes, " lanes) has no counterpart here");
    const Shape shape = dims(dl.shape, dl.ndim);
    const Strides strides = dl.strides ? dims(dl.strides, dl.ndim) : contiguous_strides(shape);
    // On success the tensor owns `managed`; on failure the caller still does.
    const auto release = [](void* p) {
      auto* m = static_cast<DLManagedTensor*>(p);
      if (m->deleter) m->deleter(m);
    };
    const int32_t status = blutensor_from_memory(
        static_cast<char*>(dl.data) + dl.byte_offset, shape.data(), strides.data(), dl.ndim,
        static_cast<int32_t>(found->dtype), on_host ? 0 : 1, on_host ? 0 : dl.device.device_id, release, managed, out);
    if (status) throw Error(static_cast<Status>(status), blutensor_last_error());
  });
}

}  // extern "C"
