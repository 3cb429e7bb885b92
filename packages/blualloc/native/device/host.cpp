// The host device: address space from mmap without access, memory put behind it by allowing access, and given back by
// mapping fresh inaccessible pages over it. Untouched pages cost nothing, so a large reservation is only addresses. The
// kernel would promise more memory than there is and end the process when it is touched: what is mapped is counted, over
// all reservations of the process, and never exceeds the memory that the host has.
#include <blualloc/blualloc.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>

#include "device/host_memory.h"
#include "units.h"

namespace blualloc {
namespace {

constexpr uint64_t kGranularity = 64 * 1024;
constexpr uint64_t kMinAlignment = 64;           // a cache line, and one AVX-512 register
constexpr uint64_t kBaseAlignment = 2ull << 20;  // so that the kernel can use 2 MiB pages
constexpr int kReserveFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

// What is reserved, and how much of it is mapped.
class Reservations {
 public:
  static Reservations& instance() {
    static Reservations* const only = new Reservations();  // pools may be closed after static objects are gone
    return *only;
  }

  void add(void* base, uint64_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    spans_[reinterpret_cast<uintptr_t>(base)] = {bytes, 0};
  }

  void remove(void* base) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto span = spans_.find(reinterpret_cast<uintptr_t>(base));
    if (span != spans_.end()) {
      mapped_bytes_ -= span->second.mapped_bytes;
      spans_.erase(span);
    }
  }

  int32_t take(void* address, uint64_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    Span* const span = find(address, bytes);
    if (span == nullptr) {
      return BLUALLOC_INVALID_VALUE;
    }
    const uint64_t limit = host_memory_bytes();
    if (mapped_bytes_ > limit || bytes > limit - mapped_bytes_) {
      return BLUALLOC_OUT_OF_MEMORY;
    }
    span->mapped_bytes += bytes;
    mapped_bytes_ += bytes;
    return BLUALLOC_OK;
  }

  uint64_t mapped_bytes() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return mapped_bytes_;
  }

  void give_back(void* address, uint64_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (Span* const span = find(address, bytes)) {
      span->mapped_bytes -= bytes;
      mapped_bytes_ -= bytes;
    }
  }

 private:
  struct Span {
    uint64_t bytes = 0;
    uint64_t mapped_bytes = 0;
  };

  // The reservation that holds the range, or NULL.
  Span* find(void* address, uint64_t bytes) {
    const auto start = reinterpret_cast<uintptr_t>(address);
    auto span = spans_.upper_bound(start);
    if (span == spans_.begin()) {
      return nullptr;
    }
    --span;
    const uint64_t offset = start - span->first;
    return offset <= span->second.bytes && bytes <= span->second.bytes - offset ? &span->second : nullptr;
  }

  std::mutex mutex_;
  std::map<uintptr_t, Span> spans_;  // by address
  uint64_t mapped_bytes_ = 0;
};

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
  try {
    Reservations::instance().add(base, bytes);
  } catch (...) {  // no room for the bookkeeping
    munmap(base, bytes);
    return BLUALLOC_OUT_OF_MEMORY;
  }
  *address = base;
  return BLUALLOC_OK;
}

int32_t host_release(void*, void* address, uint64_t bytes) {
  Reservations::instance().remove(address);  // first: the addresses may be another thread's as soon as they are free
  return munmap(address, bytes) == 0 ? BLUALLOC_OK : BLUALLOC_RUNTIME_FAILURE;
}

int32_t host_map(void*, void* address, uint64_t bytes) {
  const int32_t status = Reservations::instance().take(address, bytes);
  if (status != BLUALLOC_OK) {
    return status;
  }
  if (mprotect(address, bytes, PROT_READ | PROT_WRITE) != 0) {
    Reservations::instance().give_back(address, bytes);
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
  if (fresh != address) {
    return BLUALLOC_RUNTIME_FAILURE;
  }
  Reservations::instance().give_back(address, bytes);
  return BLUALLOC_OK;
}

// Free is what pools may still map, whatever other processes hold.
int32_t host_memory(void*, uint64_t* free_bytes, uint64_t* total_bytes) {
  *total_bytes = host_memory_bytes();
  *free_bytes = *total_bytes - std::min(*total_bytes, Reservations::instance().mapped_bytes());
  return BLUALLOC_OK;
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
    host_memory,
    nullptr,
};

}  // namespace
}  // namespace blualloc

const blualloc_device_ops* blualloc_host_device(void) { return &blualloc::kHostDevice; }
