// CUDA devices: which there are, their tables, and events. Streams and memory of the whole process are shared: everything
// happens in the primary context.
#include "device/cuda.h"

#include <array>
#include <memory>

#include "device/cuda_device.h"
#include "error.h"
#include "units.h"

namespace blualloc {
namespace {

// What pinned and whole segments are made of, and virtual ones at least: a page of the device.
constexpr uint64_t kWholeGranularity = 2ull << 20;
// What cudaMalloc promises, and what vector loads and TMA need.
constexpr uint64_t kMinAlignment = 256;

// ---- events ---------------------------------------------------------------------------------------------------------

// The context that a stream belongs to; the special streams (NULL, legacy, per thread) belong to whatever is current.
CUcontext context_of(const CudaDevice& device, CUstream stream) {
  CUcontext context = nullptr;
  const bool is_special = reinterpret_cast<uintptr_t>(stream) <= reinterpret_cast<uintptr_t>(CU_STREAM_PER_THREAD);
  if (!is_special && driver().cuStreamGetCtx(stream, &context) == CUDA_SUCCESS && context != nullptr) {
    return context;
  }
  return device.context;
}

int32_t record_event(void* ctx, void* stream, void** event) {
  const auto cuda_stream = static_cast<CUstream>(stream);
  const CurrentContext current(context_of(*static_cast<CudaDevice*>(ctx), cuda_stream));
  CUevent made = nullptr;
  CUresult result = driver().cuEventCreate(&made, CU_EVENT_DISABLE_TIMING);
  if (result != CUDA_SUCCESS) {
    return status_of("cuEventCreate", result);
  }
  result = driver().cuEventRecord(made, cuda_stream);
  if (result != CUDA_SUCCESS) {
    (void)driver().cuEventDestroy(made);
    return status_of("cuEventRecord", result);
  }
  *event = made;
  return BLUALLOC_OK;
}

int32_t wait_event(void* ctx, void* stream, void* event) {
  const auto cuda_stream = static_cast<CUstream>(stream);
  const CurrentContext current(context_of(*static_cast<CudaDevice*>(ctx), cuda_stream));
  return status_of("cuStreamWaitEvent", driver().cuStreamWaitEvent(cuda_stream, static_cast<CUevent>(event), 0));
}

int32_t query_event(void* ctx, void* event, int32_t* done) {
  const CurrentContext current(static_cast<CudaDevice*>(ctx)->context);
  const CUresult result = driver().cuEventQuery(static_cast<CUevent>(event));
  *done = result == CUDA_SUCCESS ? 1 : 0;
  return status_of("cuEventQuery", result == CUDA_ERROR_NOT_READY ? CUDA_SUCCESS : result);
}

int32_t synchronize_event(void* ctx, void* event) {
  const CurrentContext current(static_cast<CudaDevice*>(ctx)->context);
  return status_of("cuEventSynchronize", driver().cuEventSynchronize(static_cast<CUevent>(event)));
}

int32_t destroy_event(void* ctx, void* event) {
  const CurrentContext current(static_cast<CudaDevice*>(ctx)->context);
  return driver().cuEventDestroy(static_cast<CUevent>(event)) == CUDA_SUCCESS ? BLUALLOC_OK : BLUALLOC_RUNTIME_FAILURE;
}

// ---- tables ---------------------------------------------------------------------------------------------------------

struct Tables {
  CudaDevice device;
  CUresult virtual_result = CUDA_SUCCESS;  // why there are no virtual segments
  blualloc_device_ops virtual_ops{};
  blualloc_device_ops whole_ops{};
};

[[noreturn]] void unsupported(const char* operation, int32_t index, const std::string& why) {
  throw Error(BLUALLOC_UNSUPPORTED, "[" + std::string(operation) + "] expected a device that is there, got cuda:" +
                                        std::to_string(index) + ": " + why + "; or use cpu:0");
}

std::unique_ptr<Tables> make_tables(int32_t index, const char* operation) {
  auto tables = std::make_unique<Tables>();
  CudaDevice& device = tables->device;
  device.index = index;
  device.name = "cuda:" + std::to_string(index);
  CUresult result = driver().cuDeviceGet(&device.handle, index);
  if (result != CUDA_SUCCESS) {
    unsupported(operation, index, describe_result("cuDeviceGet", result));
  }
  result = driver().cuDevicePrimaryCtxRetain(&device.context, device.handle);
  if (result != CUDA_SUCCESS) {
    unsupported(operation, index,
                "it cannot be started: " + describe_result("cuDevicePrimaryCtxRetain", result) +
                    "; see whether another process holds it (nvidia-smi)");
  }
  tables->virtual_result = try_virtual_segments(device);

  blualloc_device_ops base{};
  base.struct_size = sizeof base;
  base.name = device.name.c_str();
  base.ctx = &device;
  base.min_alignment = kMinAlignment;
  add_event_callbacks(base);
  tables->virtual_ops = tables->whole_ops = base;
  tables->virtual_ops.granularity = device.granularity;
  tables->whole_ops.granularity = kWholeGranularity;
  add_virtual_callbacks(tables->virtual_ops);
  add_whole_callbacks(tables->whole_ops);
  return tables;
}

const Tables& tables_of(int32_t index, const char* operation) {
  const int32_t count = cuda_device_count();
  if (count == 0) {
    unsupported(operation, index, cuda_reason());
  }
  if (index < 0 || index >= count) {
    unsupported(operation, index,
                "this process sees " + std::to_string(count) +
                    (count == 1 ? " CUDA device, cuda:0" : " CUDA devices, from cuda:0 on") +
                    "; see CUDA_VISIBLE_DEVICES and nvidia-smi");
  }
  static std::mutex* const mutex = new std::mutex();
  static auto* const made = new std::map<int32_t, std::unique_ptr<Tables>>();
  const std::lock_guard<std::mutex> lock(*mutex);
  std::unique_ptr<Tables>& tables = (*made)[index];
  if (tables == nullptr) {
    tables = make_tables(index, operation);
  }
  return *tables;
}

}  // namespace

void add_event_callbacks(blualloc_device_ops& ops) {
  ops.record_event = record_event;
  ops.wait_event = wait_event;
  ops.query_event = query_event;
  ops.synchronize_event = synchronize_event;
  ops.destroy_event = destroy_event;
}

int32_t cuda_device_count() { return cuda_machine().num_devices; }

const std::string& cuda_reason() { return cuda_machine().reason; }

const blualloc_device_ops& cuda_device(int32_t index, int32_t segments, const char* operation) {
  if (segments < BLUALLOC_SEGMENTS_AUTO || segments > BLUALLOC_SEGMENTS_WHOLE) {
    invalid("[" + std::string(operation) + "] expected segments to be a BLUALLOC_SEGMENTS_ value, got " +
            std::to_string(segments));
  }
  const Tables& tables = tables_of(index, operation);
  const bool has_virtual = tables.virtual_result == CUDA_SUCCESS && is_power_of_two(tables.device.granularity);
  if (segments == BLUALLOC_SEGMENTS_VIRTUAL && !has_virtual) {
    unsupported(operation, index,
                "it has no virtual memory management (" + describe_result("cuMemMap", tables.virtual_result) +
                    "); use BLUALLOC_SEGMENTS_WHOLE");
  }
  return segments != BLUALLOC_SEGMENTS_WHOLE && has_virtual ? tables.virtual_ops : tables.whole_ops;
}

// The default stream cannot be captured.
bool is_captured(void* stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  return stream != nullptr && driver().cuStreamIsCapturing(static_cast<CUstream>(stream), &status) == CUDA_SUCCESS &&
         status != CU_STREAM_CAPTURE_STATUS_NONE;
}

}  // namespace blualloc
