// Copies tiles of a matrix into shared memory, sixteen bytes at a time, zeros outside.
//
// A tile has `kOuter` lines of `kInner` contiguous elements. K-major operands have their rows (of A, columns of B) as
// lines and k inside; the others have k as lines. Where a chunk of sixteen bytes lies in shared memory is the Layout's
// business: Layout::offset(line, chunk), in bytes.
#pragma once

#include <cstdint>

#include "cuda/ptx/copy.cuh"

namespace blublas {

template <typename T, int kOuter, int kInner, int kThreads, typename Layout>
class TileCopy {
 public:
  static constexpr int kPerChunk = 16 / sizeof(T), kChunks = kInner / kPerChunk;
  static constexpr int kStep = kThreads / kChunks, kCopies = kOuter / kStep;
  static_assert(kThreads % kChunks == 0 && kOuter % kStep == 0 && kCopies >= 1);

  // data: first element of the matrix (of this batch); lines and elements outside [0, num_lines) x [0, num_inner) are
  // zeros. (line, inner): the tile's first element.
  __device__ TileCopy(const T* data, int64_t stride, int num_lines, int num_inner, int line, int inner)
      : step_(kStep * stride * static_cast<int64_t>(sizeof(T))),
        lines_left_(num_lines - line - static_cast<int>(threadIdx.x) / kChunks),
        bytes_left_((num_inner - inner) * static_cast<int>(sizeof(T)) - static_cast<int>(threadIdx.x) % kChunks * 16) {
    const int own_line = static_cast<int>(threadIdx.x) / kChunks, chunk = static_cast<int>(threadIdx.x) % kChunks;
    source_ = reinterpret_cast<const char*>(data + (line + own_line) * stride + inner) + chunk * 16;
  }

  // Copies the tile to `target` (shared memory).
  __device__ __forceinline__ void copy(uint32_t target) const {
    const int own_line = static_cast<int>(threadIdx.x) / kChunks, chunk = static_cast<int>(threadIdx.x) % kChunks;
    const int inner_bytes = min(max(bytes_left_, 0), 16);
    const char* from = source_;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      ptx::copy_16_async(target + Layout::offset(own_line + i * kStep, chunk), from,
                         i * kStep < lines_left_ ? inner_bytes : 0);
      from += step_;
    }
  }

  // The same for a tile of which all lines and elements exist.
  __device__ __forceinline__ void copy_whole(uint32_t target) const {
    const int own_line = static_cast<int>(threadIdx.x) / kChunks, chunk = static_cast<int>(threadIdx.x) % kChunks;
    const char* from = source_;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      ptx::copy_16_async(target + Layout::offset(own_line + i * kStep, chunk), from);
      from += step_;
    }
  }

  // To the next tile, along the lines or across them.
  __device__ __forceinline__ void advance_inside() {
    source_ += kInner * sizeof(T);
    bytes_left_ -= kInner * static_cast<int>(sizeof(T));
  }
  __device__ __forceinline__ void advance_lines() {
    source_ += kCopies * step_;
    lines_left_ -= kOuter;
  }

 private:
  const char* source_;
  int64_t step_;                 // bytes between the lines of two chunks of a thread
  int lines_left_, bytes_left_;  // of this thread's chunks
};

}  // namespace blublas
