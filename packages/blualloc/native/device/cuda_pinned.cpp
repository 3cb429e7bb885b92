// Pinned host memory: page-locked, at the same address for the host and all CUDA devices, so that copies to and from it
// run asynchronously. Taken in whole segments, because locking pages is slow and cannot be undone in parts.
#include "device/cuda.h"
#include "device/cuda_device.h"
#include "error.h"

namespace blualloc {
namespace {

constexpr uint64_t kGranularity = 64 * 1024;
constexpr uint64_t kMinAlignment = 256;

CUcontext context_of(void* ctx) { return static_cast<CudaDevice*>(ctx)->context; }

int32_t pinned_reserve(void* ctx, uint64_t bytes, void** address) {
  const CurrentContext current(context_of(ctx));
  return status_of("cuMemHostAlloc", driver().cuMemHostAlloc(address, bytes, CU_MEMHOSTALLOC_PORTABLE));
}

int32_t pinned_release(void* ctx, void* address, uint64_t) {
  const CurrentContext current(context_of(ctx));
  return status_of("cuMemFreeHost", driver().cuMemFreeHost(address));
}

int32_t pinned_memory(void*, uint64_t* free_bytes, uint64_t* total_bytes) {
  return blualloc_host_device()->memory(nullptr, free_bytes, total_bytes);
}

}  // namespace

const blualloc_device_ops& pinned_device(int32_t index, const char* operation) {
  if (index != 0) {
    throw Error(BLUALLOC_UNSUPPORTED, "[" + std::string(operation) + "] expected pinned:0, which all devices share, " +
                                          "got pinned:" + std::to_string(index));
  }
  if (cuda_device_count() == 0) {
    throw Error(BLUALLOC_UNSUPPORTED, "[" + std::string(operation) +
                                          "] expected a device that is there, got pinned:0: " + cuda_reason() +
                                          "; or use cpu:0");
  }
  // Whose context does not matter: the memory is portable. cuda:0's is there wherever CUDA is.
  static const blualloc_device_ops* const only = [&] {
    auto* const ops = new blualloc_device_ops(cuda_device(0, BLUALLOC_SEGMENTS_WHOLE, operation));
    ops->name = "pinned:0";
    ops->granularity = kGranularity;
    ops->min_alignment = kMinAlignment;
    ops->reserve = pinned_reserve;
    ops->release = pinned_release;
    ops->memory = pinned_memory;
    return ops;
  }();
  return *only;
}

}  // namespace blualloc
