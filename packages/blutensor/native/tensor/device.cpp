#include "tensor/device.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <mutex>

#ifdef BLUTENSOR_HAVE_CUDA
#include <blualloc/blualloc.h>
#include <cuda_runtime_api.h>
#endif

namespace blutensor {

namespace {

std::atomic<void (*)()> report_check{nullptr};
thread_local Device thread_creation_device;

}  // namespace

void set_report_check(void (*check)()) { report_check.store(check); }
void check_reports() {
  if (auto* const check = report_check.load(std::memory_order_relaxed)) check();
}

Device creation_device() { return thread_creation_device; }
void set_creation_device(Device device) { thread_creation_device = device; }

#ifndef BLUTENSOR_HAVE_CUDA

int cuda_device_count() { return 0; }

const std::string& cuda_unavailable_reason() {
  static const std::string reason =
      "this build of blutensor has no CUDA; build it with -DBLU_CUDA=ON where nvcc 13 is on PATH, or install a wheel "
      "that has CUDA";
  return reason;
}

void check_device(Device device) {
  if (device.type == DeviceType::cpu) return;
  fail(Status::unsupported, "[device] ", device_name(device), " cannot be used: ", cuda_unavailable_reason());
}

void use_device(Device) {}
void* compute_stream(Device) { return nullptr; }
void* memory_stream(Device) { return nullptr; }
bool in_use(Device device) { return device.type == DeviceType::cpu; }
void synchronize(Device device) { check_device(device); }
void drain(Device) noexcept {}
void copy_bytes(void* to, Device to_device, const void* from, Device from_device, size_t bytes) {
  check_device(to_device);
  check_device(from_device);
  if (bytes) std::memcpy(to, from, bytes);
}
void* allocate_pinned(size_t) { fail(Status::unsupported, "[pinned memory] ", cuda_unavailable_reason()); }
void free_pinned(void*) {}
void stream_waits_for_compute(Device device, void*) { check_device(device); }
void compute_waits_for_stream(Device device, void*) { check_device(device); }
std::string device_properties_json(Device device) {
  check_device(device);
  return "{}";
}
void cuda_failed(int error, const char* what) { fail(Status::runtime, "[", what, "] CUDA error ", error); }

#else

namespace {

constexpr int kMaxDevices = 64;
constexpr int kLeastCapability = 80;  // sm_80: bfloat16 tensor cores, asynchronous copies
constexpr int kLeastDriver = 13000;   // the CUDA version that this build was compiled for
constexpr const char* kLeastDriverName = "580";

void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) cuda_failed(error, what);
}

std::string version_text(int version) { return text(version / 1000, '.', version % 1000 / 10); }

struct DeviceRecord {
  std::string refused;  // why it cannot be used; empty when it can
  std::atomic<cudaStream_t> stream{nullptr};
};

// What the driver says, asked once.
struct Devices {
  int count = 0;  // that the driver lists
  int usable = 0;
  std::string reason;  // why none is usable
  std::array<DeviceRecord, kMaxDevices> record;
  std::mutex mutex;  // of making streams

  Devices() {
    look();
    static_cast<void>(cudaGetLastError());  // what failed here is told by our own messages
  }

  void look() {
    int driver = 0;
    if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
      reason = text("no NVIDIA driver was found; install driver ", kLeastDriverName,
                    " or newer (in a container, start it with access to the GPU)");
      return;
    }
    if (driver < kLeastDriver) {
      reason = text("the NVIDIA driver supports CUDA ", version_text(driver), ", and CUDA ", version_text(kLeastDriver),
                    " is needed; update it to version ", kLeastDriverName, " or newer");
      return;
    }
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess || count == 0) {
      count = 0;
      reason = error == cudaErrorNoDevice || error == cudaSuccess
                   ? std::string("the driver lists no GPU; check nvidia-smi and CUDA_VISIBLE_DEVICES")
                   : text("CUDA does not start: ", cudaGetErrorName(error), ": ", cudaGetErrorString(error),
                          "; check nvidia-smi");
      return;
    }
    count = std::min(count, kMaxDevices);
    for (int i = 0; i < count; ++i) {
      int major = 0, minor = 0;
      std::string& refused = record[static_cast<size_t>(i)].refused;
      if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, i) != cudaSuccess ||
          cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, i) != cudaSuccess) {
        refused = "the driver does not tell its compute capability; check nvidia-smi";
      } else if (major * 10 + minor < kLeastCapability) {
        refused = text("its compute capability is ", major, '.', minor,
                       ", and 8.0 or newer (A100, RTX 30) is needed; use another GPU or the cpu");
      } else {
        ++usable;
      }
    }
    if (!usable) reason = text("cuda:0: ", record[0].refused);
  }
};

Devices& devices() {
  static auto& d = *new Devices;  // never destroyed: storages free their memory at any time
  return d;
}

DeviceRecord& record_of(Device device) {
  check_device(device);
  return devices().record[static_cast<size_t>(device.index)];
}

bool is_pinned(const void* memory) {
  cudaPointerAttributes attributes{};
  if (cudaPointerGetAttributes(&attributes, memory) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return false;
  }
  return attributes.type == cudaMemoryTypeHost;
}

blualloc_pool* pinned_pool() {
  blualloc_pool* pool = nullptr;
  if (const int32_t status = blualloc_default_pool(BLUALLOC_DEVICE_PINNED, 0, &pool))
    throw Error(static_cast<Status>(status), blualloc_last_error());
  return pool;
}

cudaStream_t stream_of(Device device) { return static_cast<cudaStream_t>(compute_stream(device)); }

// Of this thread.
struct Recorded {
  int device = -1;
  cudaStream_t stream = nullptr;
};
thread_local Recorded recorded;

// `later` waits for what `earlier` has now.
void order(cudaStream_t earlier, cudaStream_t later) {
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "streams");
  cudaError_t error = cudaEventRecord(event, earlier);
  if (error == cudaSuccess) error = cudaStreamWaitEvent(later, event, 0);
  static_cast<void>(cudaEventDestroy(event));
  check(error, "streams");
}

void copy_across(void* to, Device to_device, const void* from, Device from_device, size_t bytes) {
  use_device(from_device);
  const cudaStream_t source = stream_of(from_device), target = stream_of(to_device);
  order(source, target);
  use_device(to_device);
  check(cudaMemcpyPeerAsync(to, to_device.index, from, from_device.index, bytes, target), "copy");
  order(target, source);  // memory freed in the order of the source's stream may be used again only then
}

bool loses_device(cudaError_t error) {
  switch (error) {
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContained:
    case cudaErrorMpsClientTerminated:
    case cudaErrorExternalDevice:
      return true;
    default:
      return false;
  }
}

}  // namespace

int cuda_device_count() { return devices().usable ? devices().count : 0; }
const std::string& cuda_unavailable_reason() { return devices().reason; }

void check_device(Device device) {
  if (device.type == DeviceType::cpu) return;
  const Devices& d = devices();
  if (device.index >= 0 && device.index < d.count && d.record[static_cast<size_t>(device.index)].refused.empty())
      [[likely]]
    return;
  if (!d.count) fail(Status::unsupported, "[device] ", device_name(device), " cannot be used: ", d.reason);
  if (device.index < 0 || device.index >= d.count)
    fail(Status::unsupported, "[device] ", device_name(device), " does not exist: this process sees ", d.count,
         d.count == 1 ? " GPU (cuda:0)" : " GPUs", "; use an index below ", d.count, " or set CUDA_VISIBLE_DEVICES");
  fail(Status::unsupported, "[device] ", device_name(device),
       " cannot be used: ", d.record[static_cast<size_t>(device.index)].refused);
}

void use_device(Device device) {
  // Other libraries change the thread's current device too, so where there are several it is set every time.
  if (device.type == DeviceType::cuda && devices().count > 1) check(cudaSetDevice(device.index), "device");
}

void* compute_stream(Device device) {
  if (device.type == DeviceType::cuda && recorded.device == device.index) [[unlikely]]
    return recorded.stream;
  return memory_stream(device);
}

void* memory_stream(Device device) {
  if (device.type == DeviceType::cpu) return nullptr;
  DeviceRecord& record = record_of(device);
  if (const cudaStream_t stream = record.stream.load(std::memory_order_acquire)) [[likely]]
    return stream;
  const std::lock_guard lock(devices().mutex);
  if (const cudaStream_t stream = record.stream.load(std::memory_order_acquire)) return stream;
  use_device(device);
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "device");
  record.stream.store(stream, std::memory_order_release);
  return stream;
}

bool in_use(Device device) {
  return device.type == DeviceType::cpu || devices().record[static_cast<size_t>(device.index)].stream.load() != nullptr;
}

void synchronize(Device device) {
  if (device.type == DeviceType::cpu) return;
  use_device(device);
  check(cudaStreamSynchronize(stream_of(device)), "synchronize");
  check_reports();
}

void drain(Device device) noexcept {
  if (device.type == DeviceType::cpu) return;
  const cudaStream_t stream = devices().record[static_cast<size_t>(device.index)].stream.load();
  if (!stream) return;
  const RelaxedCapture relaxed;  // what the collector destroys may come while this thread records
  static_cast<void>(cudaStreamSynchronize(stream));
}

RelaxedCapture::RelaxedCapture() {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  static_cast<void>(cudaThreadExchangeStreamCaptureMode(&mode));
  mode_ = mode;
}

RelaxedCapture::~RelaxedCapture() {
  auto mode = static_cast<cudaStreamCaptureMode>(mode_);
  static_cast<void>(cudaThreadExchangeStreamCaptureMode(&mode));
}

RecordedStream::RecordedStream(Device device) {
  use_device(device);
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "graph");
  recorded = {device.index, stream};
  stream_ = stream;
}

RecordedStream::~RecordedStream() {
  recorded = {};
  static_cast<void>(cudaStreamDestroy(static_cast<cudaStream_t>(stream_)));
}

void copy_bytes(void* to, Device to_device, const void* from, Device from_device, size_t bytes) {
  if (!bytes) return;
  if (to_device.type == DeviceType::cpu && from_device.type == DeviceType::cpu) {
    std::memcpy(to, from, bytes);
    return;
  }
  if (to_device.type == from_device.type && to_device.index != from_device.index)
    return copy_across(to, to_device, from, from_device, bytes);
  const Device device = to_device.type == DeviceType::cuda ? to_device : from_device;
  use_device(device);
  const cudaStream_t stream = stream_of(device);
  // CUDA stages pageable memory that a copy to the device reads before it returns.
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream), "copy");
  if (to_device.type == DeviceType::cpu && !is_pinned(to)) {
    check(cudaStreamSynchronize(stream), "copy");
    check_reports();
  }
}

void* allocate_pinned(size_t bytes) {
  if (!cuda_device_count()) fail(Status::unsupported, "[pinned memory] ", cuda_unavailable_reason());
  void* memory = nullptr;
  if (const int32_t status = blualloc_allocate(pinned_pool(), bytes, nullptr, "pinned", &memory))
    throw Error(static_cast<Status>(status), blualloc_last_error());
  return memory;
}

void free_pinned(void* memory) {
  if (!memory) return;
  for (int i = 0; i < devices().count; ++i) drain({DeviceType::cuda, i});
  static_cast<void>(blualloc_free(pinned_pool(), memory, nullptr));
}

void stream_waits_for_compute(Device device, void* stream) {
  use_device(device);
  if (stream != compute_stream(device)) order(stream_of(device), static_cast<cudaStream_t>(stream));
}

void compute_waits_for_stream(Device device, void* stream) {
  use_device(device);
  if (stream != compute_stream(device)) order(static_cast<cudaStream_t>(stream), stream_of(device));
}

std::string device_properties_json(Device device) {
  check_device(device);
  require_type(device.type == DeviceType::cuda, "[device] expected a CUDA device, got ", device_name(device));
  use_device(device);
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device.index), "device");
  compute_stream(device);  // the memory that is free once the device is in use
  size_t free_bytes = 0, total_bytes = 0;
  check(cudaMemGetInfo(&free_bytes, &total_bytes), "device");
  int driver = 0, runtime = 0;
  check(cudaDriverGetVersion(&driver), "device");
  check(cudaRuntimeGetVersion(&runtime), "device");
  return text("{\"name\": \"", properties.name, "\", \"total_bytes\": ", total_bytes, ", \"free_bytes\": ", free_bytes,
              ", \"capability\": [", properties.major, ", ", properties.minor,
              "], \"multiprocessors\": ", properties.multiProcessorCount, ", \"driver\": \"", version_text(driver),
              "\", \"runtime\": \"", version_text(runtime), "\"}");
}

void cuda_failed(int code, const char* what) {
  const auto error = static_cast<cudaError_t>(code);
  static_cast<void>(cudaGetLastError());
  if (loses_device(error))
    fail(Status::device_lost, "[", what, "] the GPU was lost to this process: ", cudaGetErrorName(error), ": ",
         cudaGetErrorString(error),
         ". Nothing on it can be read any more: restart the process and resume from the last checkpoint; run it under "
         "compute-sanitizer to find a kernel that caused it, and see dmesg for faults of the hardware");
  if (error == cudaErrorNoKernelImageForDevice)
    fail(Status::unsupported, "[", what,
         "] this build has no code for the architecture of this GPU; add it to -DBLU_CUDA_ARCHS and build again");
  fail(error == cudaErrorMemoryAllocation ? Status::out_of_memory : Status::runtime, "[", what,
       "] CUDA: ", cudaGetErrorName(error), ": ", cudaGetErrorString(error));
}

#endif

}  // namespace blutensor
