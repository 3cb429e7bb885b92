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

// Of a right operand that is transposed, the next 64 columns lie next_panel bytes further.
__device__ __forceinline__ uint64_t wgmma_panel_descriptor(uint32_t shared, uint32_t next_panel) {
  return (wgmma_descriptor(shared) & ~(uint64_t{0x3FFF} << 16)) | (static_cast<uint64_t>(next_panel >> 4) << 16);
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

// Operands of an instruction: four columns of 8 accumulators, and how the instruction names the first 32, 48, 64.
#define BLU_BLOCK(n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define BLU_BLOCKS_8 \
  BLU_BLOCK(0), BLU_BLOCK(1), BLU_BLOCK(2), BLU_BLOCK(3), BLU_BLOCK(4), BLU_BLOCK(5), BLU_BLOCK(6), BLU_BLOCK(7)
#define BLU_BLOCKS_12 BLU_BLOCKS_8, BLU_BLOCK(8), BLU_BLOCK(9), BLU_BLOCK(10), BLU_BLOCK(11)
#define BLU_BLOCKS_16 BLU_BLOCKS_12, BLU_BLOCK(12), BLU_BLOCK(13), BLU_BLOCK(14), BLU_BLOCK(15)
#define BLU_NAMES_32                                                                                               \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, " \
  "%24, %25, %26, %27, %28, %29, %30, %31"
#define BLU_NAMES_48 BLU_NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define BLU_NAMES_64 BLU_NAMES_48 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define BLU_LEFT "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])

// d[64, 64] (+)= A[64, 16] B[64, 16]^T, both in shared memory with contiguous rows of 16. add 0 overwrites d.
__device__ __forceinline__ void wgmma_64x64x16(float (&d)[8][4], uint64_t a, uint64_t b, int add) {
  BLU_SM90A(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" BLU_NAMES_32
      "}, %32, %33, p, 1, 1, 0, 0;\n}\n" : BLU_BLOCKS_8 : "l"(a),
      "l"(b), "r"(add));
}

// d[64, N] (+)= A[64, 16] B, A in registers (as mma.sync's left operand), B in shared memory: [N, 16]^T with contiguous
// rows of 16, or, transposed, [16, N] in panels of 64 columns. add 0 overwrites d.
template <bool kTransposed, int kBlocks>
__device__ __forceinline__ void wgmma_64xNx16(float (&d)[kBlocks][4], const uint32_t (&a)[4], uint64_t b, int add) {
  static_assert(kBlocks == 8 || kBlocks == 12 || kBlocks == 16);
  if constexpr (kBlocks == 8)
    BLU_SM90A(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" BLU_NAMES_32
        "}, {%32, %33, %34, %35}, %36, p, 1, 1, %38;\n}\n" : BLU_BLOCKS_8 : BLU_LEFT,
        "l"(b), "r"(add), "n"(kTransposed));
  if constexpr (kBlocks == 12)
    BLU_SM90A(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %53, 0;\nwgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 {" BLU_NAMES_48
        "}, {%48, %49, %50, %51}, %52, p, 1, 1, %54;\n}\n" : BLU_BLOCKS_12 : BLU_LEFT,
        "l"(b), "r"(add), "n"(kTransposed));
  if constexpr (kBlocks == 16)
    BLU_SM90A(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\nwgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" BLU_NAMES_64
        "}, {%64, %65, %66, %67}, %68, p, 1, 1, %70;\n}\n" : BLU_BLOCKS_16 : BLU_LEFT,
        "l"(b), "r"(add), "n"(kTransposed));
}

#undef BLU_LEFT
#undef BLU_NAMES_64
#undef BLU_NAMES_48
#undef BLU_NAMES_32
#undef BLU_BLOCKS_16
#undef BLU_BLOCKS_12
#undef BLU_BLOCKS_8
#undef BLU_BLOCK
#undef BLU_SM90A

}  // namespace blutensor::cuda::ptx
