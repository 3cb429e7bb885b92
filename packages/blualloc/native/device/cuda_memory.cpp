// Memory of a CUDA device, taken in one of two ways.
//
// Virtual segments: address space from cuMemAddressReserve; each granule (2 MiB) gets a physical allocation of its own,
// because a mapping can only be undone whole and the pool gives back any granule. The handle is released as soon as it is
// mapped: the mapping keeps the memory, unmapping frees it. Access is set once for the whole range.
//
// Whole segments: cuMemAlloc (what cudaMalloc calls), for drivers and devices without virtual memory management.
#include "device/cuda_device.h"
#include "error.h"

namespace blualloc {
namespace {

CudaDevice& device_of(void* ctx) { return *static_cast<CudaDevice*>(ctx); }

CUdeviceptr to_device(void* address) { return reinterpret_cast<CUdeviceptr>(address); }

// ---- virtual segments -----------------------------------------------------------------------------------------------

int32_t virtual_reserve(void* ctx, uint64_t bytes, void** address) {
  CudaDevice& device = device_of(ctx);
  const CurrentContext current(device.context);
  CUdeviceptr base = 0;
  if (driver().cuMemAddressReserve(&base, bytes, device.granularity, 0, 0) != CUDA_SUCCESS) {
    return BLUALLOC_OUT_OF_MEMORY;
  }
  try {
    const std::lock_guard<std::mutex> lock(device.mutex);
    device.reservations[base] = {bytes, std::vector<bool>(bytes / device.granularity)};
  } catch (...) {  // no room for the bookkeeping
    (void)driver().cuMemAddressFree(base, bytes);
    return BLUALLOC_OUT_OF_MEMORY;
  }
  *address = reinterpret_cast<void*>(base);
  return BLUALLOC_OK;
}

// Notes which granules of the reservation around the range have memory.
void note_mapped(CudaDevice& device, CUdeviceptr start, uint64_t bytes, bool is_mapped) {
  const std::lock_guard<std::mutex> lock(device.mutex);
  const auto next = device.reservations.upper_bound(start);
  if (next == device.reservations.begin()) {
    return;
  }
  auto& [base, reservation] = *std::prev(next);
  const uint64_t first = (start - base) / device.granularity;
  for (uint64_t i = 0; i < bytes / device.granularity && first + i < reservation.is_mapped.size(); ++i) {
    reservation.is_mapped[first + i] = is_mapped;
  }
}

CUresult map_granule(const CudaDevice& device, CUdeviceptr address) {
  CUmemGenericAllocationHandle memory = 0;
  CUresult result = driver().cuMemCreate(&memory, device.granularity, &device.properties, 0);
  if (result == CUDA_SUCCESS) {
    result = driver().cuMemMap(address, device.granularity, 0, memory, 0);
    (void)driver().cuMemRelease(memory);
  }
  return result;
}

CUresult map_range(const CudaDevice& device, CUdeviceptr start, uint64_t bytes) {
  uint64_t done = 0;
  CUresult result = CUDA_SUCCESS;
  while (done < bytes && result == CUDA_SUCCESS) {
    result = map_granule(device, start + done);
    done += result == CUDA_SUCCESS ? device.granularity : 0;
  }
  if (result == CUDA_SUCCESS) {
    CUmemAccessDesc access{};
    access.location = device.properties.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    result = driver().cuMemSetAccess(start, bytes, &access, 1);
  }
  if (result != CUDA_SUCCESS && done > 0) {
    (void)driver().cuMemUnmap(start, done);
  }
  return result;
}

int32_t virtual_map(void* ctx, void* address, uint64_t bytes) {
  CudaDevice& device = device_of(ctx);
  const CurrentContext current(device.context);
  const CUresult result = map_range(device, to_device(address), bytes);
  if (result == CUDA_SUCCESS) {
    note_mapped(device, to_device(address), bytes, true);
  }
  return status_of("cuMemMap", result);
}

int32_t virtual_unmap(void* ctx, void* address, uint64_t bytes) {
  CudaDevice& device = device_of(ctx);
  const CurrentContext current(device.context);
  const CUresult result = driver().cuMemUnmap(to_device(address), bytes);
  if (result == CUDA_SUCCESS) {
    note_mapped(device, to_device(address), bytes, false);
  }
  return status_of("cuMemUnmap", result);
}

// What is still mapped goes with the reservation.
int32_t virtual_release(void* ctx, void* address, uint64_t bytes) {
  CudaDevice& device = device_of(ctx);
  const CurrentContext current(device.context);
  const CUdeviceptr base = to_device(address);
  std::vector<bool> is_mapped;
  {
    const std::lock_guard<std::mutex> lock(device.mutex);
    const auto found = device.reservations.find(base);
    if (found == device.reservations.end()) {
      return BLUALLOC_INVALID_VALUE;
    }
    is_mapped.swap(found->second.is_mapped);
    device.reservations.erase(found);
  }
  for (uint64_t first = 0; first < is_mapped.size(); ++first) {
    uint64_t end = first;
    while (end < is_mapped.size() && is_mapped[end]) {
      ++end;
    }
    if (end > first) {
      const CUresult result =
          driver().cuMemUnmap(base + first * device.granularity, (end - first) * device.granularity);
      if (result != CUDA_SUCCESS) {
        return status_of("cuMemUnmap", result);
      }
      first = end;
    }
  }
  return status_of("cuMemAddressFree", driver().cuMemAddressFree(base, bytes));
}

// ---- whole segments -------------------------------------------------------------------------------------------------

int32_t whole_reserve(void* ctx, uint64_t bytes, void** address) {
  const CurrentContext current(device_of(ctx).context);
  CUdeviceptr base = 0;
  const int32_t status = status_of("cuMemAlloc", driver().cuMemAlloc(&base, bytes));
  if (status == BLUALLOC_OK) {
    *address = reinterpret_cast<void*>(base);
  }
  return status;
}

int32_t whole_release(void* ctx, void* address, uint64_t) {
  const CurrentContext current(device_of(ctx).context);
  return status_of("cuMemFree", driver().cuMemFree(to_device(address)));
}

int32_t device_memory(void* ctx, uint64_t* free_bytes, uint64_t* total_bytes) {
  const CurrentContext current(device_of(ctx).context);
  size_t free_now = 0;
  size_t total = 0;
  const CUresult result = driver().cuMemGetInfo(&free_now, &total);
  *free_bytes = free_now;
  *total_bytes = total;
  return status_of("cuMemGetInfo", result);
}

}  // namespace

void add_virtual_callbacks(blualloc_device_ops& ops) {
  ops.flags = 0;
  ops.reserve = virtual_reserve;
  ops.release = virtual_release;
  ops.memory = device_memory;
  ops.map = virtual_map;
  ops.unmap = virtual_unmap;
}

void add_whole_callbacks(blualloc_device_ops& ops) {
  ops.flags = BLUALLOC_WHOLE_SEGMENTS;
  ops.reserve = whole_reserve;
  ops.release = whole_release;
  ops.memory = device_memory;
}

CUresult try_virtual_segments(CudaDevice& device) {
  device.properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  device.properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  device.properties.location.id = device.handle;
  int direct = 0;  // network adapters may read and write it
  (void)driver().cuDeviceGetAttribute(&direct, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
                                      device.handle);
  device.properties.allocFlags.gpuDirectRDMACapable = direct != 0 ? 1 : 0;

  int supported = 0;
  CUresult result =
      driver().cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device.handle);
  if (result != CUDA_SUCCESS || supported == 0) {
    return result != CUDA_SUCCESS ? result : CUDA_ERROR_NOT_SUPPORTED;
  }
  size_t unit = 0;
  result = driver().cuMemGetAllocationGranularity(&unit, &device.properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  device.granularity = unit;
  const CurrentContext current(device.context);
  CUdeviceptr base = 0;
  result = driver().cuMemAddressReserve(&base, unit, unit, 0, 0);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  result = map_range(device, base, unit);
  if (result == CUDA_SUCCESS) {
    result = driver().cuMemUnmap(base, unit);
  }
  (void)driver().cuMemAddressFree(base, unit);
  return result == CUDA_ERROR_OUT_OF_MEMORY ? CUDA_SUCCESS : result;  // full today is no lack of the feature
}

}  // namespace blualloc
