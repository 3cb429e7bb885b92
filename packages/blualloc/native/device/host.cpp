// The host device: address space from mmap without access, memory put behind it by allowing access, and given back by
// mapping fresh inaccessible pages over it. Untouched pages cost nothing, so a large reservation is only addresses.
#include <blualloc/blualloc.h>
#include <sys/mman.h>

#include <cstdint>

#include "units.h"

namespace blualloc {
namespace {

constexpr uint64_t kGranularity = 64 * 1024;
constexpr uint64_t kMinAlignment = 64;           // a cache line, and one AVX-512 register
constexpr uint64_t kBaseAlignment = 2ull << 20;  // so that the kernel can use 2 MiB pages
constexpr int kReserveFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

int32_t host_reserve(void*, uint64_t bytes, void** address) {
  if (bytes > UINT64_MAX - kBaseAlignment) {
    return BLUALLOC_OUT_OF_MEMORY;
  }
  const uint64_t taken = bytes + kBaseAlignment;
  void* raw = mmap(nullptr, taken, PROT_NONE, kReserveFlags, -1, 0);
  if (raw == MAP_FAILED) {
    return BLUALLOC_OUT_OF_MEMORY;
  }
  char* const start = static_cast<char*>(raw);
  char* const base =
      start + (round_up(reinterpret_cast<uintptr_t>(raw), kBaseAlignment) - reinterpret_cast<uintptr_t>(raw));
  if (base != start) {
    munmap(start, static_cast<uint64_t>(base - start));
  }
  char* const end = base + bytes;
  const uint64_t rest = static_cast<uint64_t>(start + taken - end);
  if (rest != 0) {
    munmap(end, rest);
  }
  *address = base;
  return BLUALLOC_OK;
}

int32_t host_release(void*, void* address, uint64_t bytes) {
  return munmap(address, bytes) == 0 ? BLUALLOC_OK : BLUALLOC_RUNTIME_FAILURE;
}

int32_t host_map(void*, void* address, uint64_t bytes) {
  if (mprotect(address, bytes, PROT_READ | PROT_WRITE) != 0) {
    return BLUALLOC_OUT_OF_MEMORY;
  }
#ifdef MADV_HUGEPAGE
  // Fewer page faults and misses of the TLB; where the kernel has none, nothing is lost.
  (void)madvise(address, bytes, MADV_HUGEPAGE);
#endif
  return BLUALLOC_OK;
}

int32_t host_unmap(void*, void* address, uint64_t bytes) {
  void* const fresh = mmap(address, bytes, PROT_NONE, kReserveFlags | MAP_FIXED, -1, 0);
  return fresh == address ? BLUALLOC_OK : BLUALLOC_RUNTIME_FAILURE;
}

constexpr blualloc_device_ops kHostDevice = {
    sizeof(blualloc_device_ops),
    0,
    "host",
    nullptr,
    kGranularity,
    kMinAlignment,
    host_reserve,
    host_release,
    host_map,
    host_unmap,
    nullptr,
    nullptr,
    nullptr,
    nullptr,
    nullptr,
};

}  // namespace
}  // namespace blualloc

const blualloc_device_ops* blualloc_host_device(void) { return &blualloc::kHostDevice; }
