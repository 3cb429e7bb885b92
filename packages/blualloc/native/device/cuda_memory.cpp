// Memory of a CUDA device, taken in one of two ways.
//
// Virtual segments: address space from cuMemAddressReserve, and behind it physical allocations (pieces), because a mapping
// can only be undone whole and the pool gives parts back. A piece costs 75 microseconds to map, whatever its size (H200), so
// a large map gets larger ones: at most a 32nd of it, from one granule (2 MiB) to 64 MiB. A handle is released as soon as it
// is mapped: the mapping keeps the memory, unmapping frees it. Access is set once for the whole range.
//
// Whole segments: cuMemAlloc (what cudaMalloc calls), for drivers and devices without virtual memory management.
#include <algorithm>
#include <bit>

#include "device/cuda_device.h"
#include "error.h"
#include "units.h"

namespace blualloc {
namespace {

constexpr uint64_t kPieceShare = 32;
constexpr uint64_t kMaxPieceBytes = 64ull << 20;

CudaDevice& device_of(void* ctx) { return *static_cast<CudaDevice*>(ctx); }

CUdeviceptr to_device(void* address) { return reinterpret_cast<CUdeviceptr>(address); }

// ---- virtual segments -----------------------------------------------------------------------------------------------

int32_t virtual_reserve(void* ctx, uint64_t bytes, void** address) {
  const CudaDevice& device = device_of(ctx);
  const CurrentContext current(device.context);
  CUdeviceptr base = 0;
  if (driver().cuMemAddressReserve(&base, bytes, device.granularity, 0, 0) != CUDA_SUCCESS) {
    return BLUALLOC_OUT_OF_MEMORY;
  }
  *address = reinterpret_cast<void*>(base);
  return BLUALLOC_OK;
}

CUresult map_piece(const CudaDevice& device, CUdeviceptr address, uint64_t bytes) {
  CUmemGenericAllocationHandle memory = 0;
  CUresult result = driver().cuMemCreate(&memory, bytes, &device.properties, 0);
  if (result == CUDA_SUCCESS) {
    result = driver().cuMemMap(address, bytes, 0, memory, 0);
    (void)driver().cuMemRelease(memory);
  }
  return result;
}

// Adds what was mapped to `pieces`; maps nothing when it fails.
CUresult map_range(const CudaDevice& device, CUdeviceptr start, uint64_t bytes, CudaDevice::Pieces& pieces) {
  const uint64_t share = std::bit_floor(std::clamp(bytes / kPieceShare, device.granularity, kMaxPieceBytes));
  uint64_t done = 0;
  CUresult result = CUDA_SUCCESS;
  while (done < bytes && result == CUDA_SUCCESS) {
    // Large pieces begin at multiples of their size, so that the driver can use its largest pages.
    const uint64_t to_boundary = round_up(start + done + 1, share) - (start + done);
    const uint64_t size = std::min(to_boundary, bytes - done);
    result = map_piece(device, start + done, size);
    if (result == CUDA_SUCCESS) {
      pieces[start + done] = size;
      done += size;
    }
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
  CudaDevice::Pieces pieces;
  const CUresult result = map_range(device, to_device(address), bytes, pieces);
  if (result == CUDA_SUCCESS) {
    const std::lock_guard<std::mutex> lock(device.mutex);
    device.pieces.merge(pieces);
  }
  return status_of("cuMemMap", result);
}

int32_t virtual_unmap(void* ctx, void* address, uint64_t bytes) {
  CudaDevice& device = device_of(ctx);
  const CurrentContext current(device.context);
  const CUdeviceptr start = to_device(address);
  const std::lock_guard<std::mutex> lock(device.mutex);
  const CUresult result = driver().cuMemUnmap(start, bytes);
  if (result == CUDA_SUCCESS) {
    device.pieces.erase(device.pieces.lower_bound(start), device.pieces.lower_bound(start + bytes));
  }
  return status_of("cuMemUnmap", result);
}

int32_t virtual_piece(void* ctx, void* address, void** start, uint64_t* bytes) {
  CudaDevice& device = device_of(ctx);
  const std::lock_guard<std::mutex> lock(device.mutex);
  const auto next = device.pieces.upper_bound(to_device(address));
  if (next == device.pieces.begin()) {
    return BLUALLOC_INVALID_VALUE;
  }
  const auto& [begin, size] = *std::prev(next);
  *start = reinterpret_cast<void*>(begin);
  *bytes = size;
  return BLUALLOC_OK;
}

// What is still mapped goes with the reservation.
int32_t virtual_release(void* ctx, void* address, uint64_t bytes) {
  CudaDevice& device = device_of(ctx);
  const CurrentContext current(device.context);
  const CUdeviceptr base = to_device(address);
  const std::lock_guard<std::mutex> lock(device.mutex);
  auto piece = device.pieces.lower_bound(base);
  while (piece != device.pieces.end() && piece->first < base + bytes) {
    const CUresult result = driver().cuMemUnmap(piece->first, piece->second);
    if (result != CUDA_SUCCESS) {
      return status_of("cuMemUnmap", result);
    }
    piece = device.pieces.erase(piece);
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
  ops.piece = virtual_piece;
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
  CudaDevice::Pieces pieces;
  result = map_range(device, base, unit, pieces);
  if (result == CUDA_SUCCESS) {
    result = driver().cuMemUnmap(base, unit);
  }
  (void)driver().cuMemAddressFree(base, unit);
  return result == CUDA_ERROR_OUT_OF_MEMORY ? CUDA_SUCCESS : result;  // full today is no lack of the feature
}

}  // namespace blualloc
