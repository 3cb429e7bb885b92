// What the callbacks of CUDA devices share: the device behind `ctx`, and events.
#pragma once

#include <blualloc/blualloc.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "device/cuda_driver.h"

namespace blualloc {

// The `ctx` of the callbacks. Never destroyed: pools may be closed after static objects are gone.
struct CudaDevice {
  // The physical allocations behind a virtual segment: start and size of each.
  using Pieces = std::map<CUdeviceptr, uint64_t>;

  std::string name;
  int32_t index = 0;
  CUdevice handle = 0;
  CUcontext context = nullptr;  // the primary one, which the runtime and every library use
  uint64_t granularity = 0;
  CUmemAllocationProp properties{};  // of virtual segments
  std::mutex mutex;                  // of pieces
  Pieces pieces;                     // of all virtual segments
};

// The five event callbacks; `ctx` is a CudaDevice.
void add_event_callbacks(blualloc_device_ops& ops);
// The memory callbacks of virtual and of whole segments.
void add_virtual_callbacks(blualloc_device_ops& ops);
void add_whole_callbacks(blualloc_device_ops& ops);
// Fills in granularity and properties, and maps and unmaps one granule: whether virtual segments work here.
CUresult try_virtual_segments(CudaDevice& device);

}  // namespace blualloc
