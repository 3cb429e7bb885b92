// Warpgroup products of sm_90a, each as one small function; on other architectures they trap, and nobody calls them.
//
// Between wgmma_commit and the wgmma_wait that covers it, accumulators and left registers belong to the tensor core.
// Descriptors are of tiles with rows of 128 bytes and the 128-byte swizzle (16-byte chunk i of row r at i ^ (r & 7)),
// at multiples of 1024 bytes: [rows][64] bfloat16. One step of 16 columns further is + 2, of 16 rows + 128.
#pragma once

#include <cstdint>

namespace blutensor::cuda::ptx {

// Without __CUDA_ARCH_FEAT_SM90_ALL the instructions do not exist.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define BLU_SM90A(...) asm volatile(__VA_ARGS__)
#else
#define BLU_SM90A(...) __trap()
#endif

// 8-row groups are 1024 bytes apart.
__device__ __forceinline__ uint64_t wgmma_descriptor(uint32_t shared) {
  return static_cast<uint64_t>((shared & 0x3FFFF) >> 4) | (uint64_t{1} << 16) | (uint64_t{64} << 32) |
         (uint64_t{1} << 62);
}

__device__ __forceinline__ void wgmma_fence() { BLU_SM90A("wgmma.fence.sync.aligned;" :: : "memory"); }
__device__ __forceinline__ void wgmma_commit() { BLU_SM90A("wgmma.commit_group.sync.aligned;" :: : "memory"); }
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  BLU_SM90A("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// What this thread has written to shared memory becomes visible to wgmma (after a barrier: to that of all threads).
__device__ __forceinline__ void fence_shared_for_wgmma() { BLU_SM90A("fence.proxy.async.shared::cta;" :: : "memory"); }

// Keeps the compiler from reading accumulators before the wait, or writing them after the issue.
template <int kBlocks>
__device__ __forceinline__ void wgmma_pin(float (&d)[kBlocks][4]) {
#pragma unroll
  for (int n = 0; n < kBlocks; ++n)
    asm volatile("" : "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])::"memory");
}

// d[64, 64] (+)= A[64, 16] B[64, 16]^T, both in shared memory with contiguous rows of 16. add 0 overwrites d.
__device__ __forceinline__ void wgmma_64x64x16(float (&d)[8][4], uint64_t a, uint64_t b, int add) {
  BLU_SM90A(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, "
      "%13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, p, 1, "
      "1, 0, 0;\n}\n" : "+f"(d[0][0]),
      "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]), "+f"(d[1][3]),
      "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]), "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]),
      "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]), "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]), "+f"(d[5][1]),
      "+f"(d[5][2]), "+f"(d[5][3]), "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]), "+f"(d[7][0]),
      "+f"(d[7][1]), "+f"(d[7][2]), "+f"(d[7][3]) : "l"(a), "l"(b), "r"(add));
}

// d[64, 64] += A[64, 16] B[16, 64]: A in registers (as mma.sync's left operand), B in shared memory with contiguous
// rows of 64.
__device__ __forceinline__ void wgmma_64x64x16(float (&d)[8][4], const uint32_t (&a)[4], uint64_t b) {
  BLU_SM90A(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, "
      "%13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, {%32, %33, %34, "
      "%35}, %36, 1, 1, 1, 1;\n" : "+f"(d[0][0]),
      "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]), "+f"(d[1][3]),
      "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]), "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]),
      "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]), "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]), "+f"(d[5][1]),
      "+f"(d[5][2]), "+f"(d[5][3]), "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]), "+f"(d[7][0]),
      "+f"(d[7][1]), "+f"(d[7][2]), "+f"(d[7][3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

#undef BLU_SM90A

}  // namespace blutensor::cuda::ptx
