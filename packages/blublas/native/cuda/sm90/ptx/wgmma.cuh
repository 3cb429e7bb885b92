// wgmma of sm_90a: D[64, N] (+)= A[64, K] B[K, N] by one warpgroup, both operands in shared memory, K of 32 bytes.
//
// D: register r of lane l in warp w holds row 16 w + l / 4 + 8 ((r >> 1) & 1), column 8 (r >> 2) + 2 (l % 4) + (r & 1).
// Operands are described by 64-bit descriptors, all with the 128-byte swizzle:
//   K contiguous      rows of 128 bytes (one panel of K); 8 rows are 1024 bytes apart. Next K of 32 bytes: + 32 bytes.
//   M or N contiguous (bfloat16 only) panels [k][64] of 128-byte rows; 8 k are 1024 bytes apart, panels
//                     panel_bytes. Next 16 k: + 2048 bytes.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "cuda/sm90/kernel.h"

namespace blublas::sm90 {

__device__ __forceinline__ uint64_t describe(uint32_t shared, Major major, uint32_t panel_bytes) {
  const uint64_t leading = major == Major::k ? 1 : panel_bytes >> 4;
  return static_cast<uint64_t>((shared & 0x3FFFF) >> 4) | leading << 16 | uint64_t{1024 >> 4} << 32 | uint64_t{1} << 62;
}

// What to add to a descriptor for the next step of K within a panel, in its units of 16 bytes.
template <Major major>
inline constexpr uint64_t step_of = major == Major::k ? 2 : 128;

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most `pending` of the newest groups are unfinished.
template <int pending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

#define BLU_ACCUMULATORS_4(i) "+f"(d[(i)]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3])
#define BLU_ACCUMULATORS_16(i) \
  BLU_ACCUMULATORS_4(i), BLU_ACCUMULATORS_4((i) + 4), BLU_ACCUMULATORS_4((i) + 8), BLU_ACCUMULATORS_4((i) + 12)

// add = 0: D is overwritten.
template <int n, Major a_major, Major b_major>
__device__ __forceinline__ void wgmma(float (&d)[n / 2], uint64_t a, uint64_t b, int add, __nv_bfloat16) {
  if constexpr (n == 128) {
    asm volatile(
        "{\n.reg .pred add;\nsetp.ne.b32 add, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "%64, %65, add, 1, 1, %67, %68;\n}\n"
        : BLU_ACCUMULATORS_16(0), BLU_ACCUMULATORS_16(16), BLU_ACCUMULATORS_16(32), BLU_ACCUMULATORS_16(48)
        : "l"(a), "l"(b), "r"(add), "n"(a_major == Major::mn), "n"(b_major == Major::mn));
  } else if constexpr (n == 192) {
    asm volatile(
        "{\n.reg .pred add;\nsetp.ne.b32 add, %98, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95}, "
        "%96, %97, add, 1, 1, %99, %100;\n}\n"
        : BLU_ACCUMULATORS_16(0), BLU_ACCUMULATORS_16(16), BLU_ACCUMULATORS_16(32), BLU_ACCUMULATORS_16(48),
          BLU_ACCUMULATORS_16(64), BLU_ACCUMULATORS_16(80)
        : "l"(a), "l"(b), "r"(add), "n"(a_major == Major::mn), "n"(b_major == Major::mn));
  } else if constexpr (n == 256) {
    asm volatile(
        "{\n.reg .pred add;\nsetp.ne.b32 add, %130, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
        "%128, %129, add, 1, 1, %131, %132;\n}\n"
        : BLU_ACCUMULATORS_16(0), BLU_ACCUMULATORS_16(16), BLU_ACCUMULATORS_16(32), BLU_ACCUMULATORS_16(48),
          BLU_ACCUMULATORS_16(64), BLU_ACCUMULATORS_16(80), BLU_ACCUMULATORS_16(96), BLU_ACCUMULATORS_16(112)
        : "l"(a), "l"(b), "r"(add), "n"(a_major == Major::mn), "n"(b_major == Major::mn));
  } else {
    static_assert(n == 128, "no such wgmma here");
  }
}

// float32 whose low 13 bits are ignored (tf32); K contiguous in both.
template <int n, Major a_major, Major b_major>
__device__ __forceinline__ void wgmma(float (&d)[n / 2], uint64_t a, uint64_t b, int add, float) {
  static_assert(a_major == Major::k && b_major == Major::k, "tf32 has no transposed operands");
  if constexpr (n == 128) {
    asm volatile(
        "{\n.reg .pred add;\nsetp.ne.b32 add, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k8.f32.tf32.tf32 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "%64, %65, add, 1, 1;\n}\n"
        : BLU_ACCUMULATORS_16(0), BLU_ACCUMULATORS_16(16), BLU_ACCUMULATORS_16(32), BLU_ACCUMULATORS_16(48)
        : "l"(a), "l"(b), "r"(add));
  } else if constexpr (n == 192) {
    asm volatile(
        "{\n.reg .pred add;\nsetp.ne.b32 add, %98, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n192k8.f32.tf32.tf32 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95}, "
        "%96, %97, add, 1, 1;\n}\n"
        : BLU_ACCUMULATORS_16(0), BLU_ACCUMULATORS_16(16), BLU_ACCUMULATORS_16(32), BLU_ACCUMULATORS_16(48),
          BLU_ACCUMULATORS_16(64), BLU_ACCUMULATORS_16(80)
        : "l"(a), "l"(b), "r"(add));
  } else if constexpr (n == 256) {
    asm volatile(
        "{\n.reg .pred add;\nsetp.ne.b32 add, %130, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n256k8.f32.tf32.tf32 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
        "%128, %129, add, 1, 1;\n}\n"
        : BLU_ACCUMULATORS_16(0), BLU_ACCUMULATORS_16(16), BLU_ACCUMULATORS_16(32), BLU_ACCUMULATORS_16(48),
          BLU_ACCUMULATORS_16(64), BLU_ACCUMULATORS_16(80), BLU_ACCUMULATORS_16(96), BLU_ACCUMULATORS_16(112)
        : "l"(a), "l"(b), "r"(add));
  } else {
    static_assert(n == 128, "no such wgmma here");
  }
}

// A from registers, [64, 8] float32: a[0] row l / 4, column l % 4; a[1] 8 rows below; a[2], a[3] 4 columns on.
template <int n>
__device__ __forceinline__ void wgmma_from_registers(float (&d)[n / 2], const uint32_t* a, uint64_t b, int add) {
  static_assert(n == 256, "no such wgmma here");
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %133, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k8.f32.tf32.tf32 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
      "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
      "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
      "{%128, %129, %130, %131}, %132, add, 1, 1;\n}\n"
      : BLU_ACCUMULATORS_16(0), BLU_ACCUMULATORS_16(16), BLU_ACCUMULATORS_16(32), BLU_ACCUMULATORS_16(48),
        BLU_ACCUMULATORS_16(64), BLU_ACCUMULATORS_16(80), BLU_ACCUMULATORS_16(96), BLU_ACCUMULATORS_16(112)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

#undef BLU_ACCUMULATORS_16
#undef BLU_ACCUMULATORS_4

}  // namespace blublas::sm90
