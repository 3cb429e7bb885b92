// Asynchronous copies from global to shared memory (cp.async, compute capability 8.0 and newer).
#pragma once

#include <cstdint>

namespace blublas::ptx {

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Copies the first `bytes` (0 to 16) of 16 and fills the rest with zeros; with 0, `source` is not looked at.
__device__ __forceinline__ void copy_16_async(uint32_t target, const void* source, uint32_t bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;\n" ::"r"(target), "l"(source), "r"(bytes)
               : "memory");
}

// Copies 16 bytes. A number of bytes that is not a constant costs five instructions.
__device__ __forceinline__ void copy_16_async(uint32_t target, const void* source) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;\n" ::"r"(target), "l"(source) : "memory");
}

__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }

// Until at most `kPending` of this thread's committed groups are under way.
template <int kPending>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
}

}  // namespace blublas::ptx
