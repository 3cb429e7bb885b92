// From accumulators of wgmma to C: the epilogue of blublas.h on the tile of a warpgroup.
//
// A lane holds, of 8 columns by 8 rows, two neighbours in one row; four such blocks are a chunk of 32 columns, and a lane
// has two rows of it. For bfloat16 in memory the blocks of a row are transposed within groups of four lanes, so that a
// lane reads or writes 8 neighbours (16 bytes) and a group 64 bytes; float32 goes as it lies, 32 bytes per group: whole
// sectors both times. The side matrix is asked for some chunks ahead, the first ones before the products of the tile.
// All is unrolled, as registers cannot be indexed: what a tile does is known at compile time but for pointers, so that
// the code which runs is short and in one piece.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "cuda/gelu.cuh"
#include "cuda/sm90/kernel.h"

namespace blublas::sm90 {

// Element i of lane c becomes element c of lane i, within every four lanes.
__device__ __forceinline__ void transpose_quad(uint32_t (&r)[4], int lane) {
  const bool odd = lane & 1, high = lane & 2;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const uint32_t got = __shfl_xor_sync(~0U, odd ? r[i] : r[i + 1], 1);
    r[i] = odd ? got : r[i];
    r[i + 1] = odd ? r[i + 1] : got;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t got = __shfl_xor_sync(~0U, high ? r[i] : r[i + 2], 2);
    r[i] = high ? got : r[i];
    r[i + 2] = high ? r[i + 2] : got;
  }
}

__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
__device__ __forceinline__ float low_bf16(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high_bf16(uint32_t pair) { return __uint_as_float(pair & 0xFFFF0000U); }

// The formulas of gelu.cuh in as few operations as they take: an epilogue has one warp per scheduler to hide its latency.
// Results below 2^-126 are 0.
__device__ __forceinline__ float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float fast_reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// Of 2 u = 2 sqrt(2/pi) (x + 0.044715 x^3); times -log2(e), so that exp2 of it is exp(-2 u).
constexpr float kTwiceRoot = 2 * 0.79788456080286535588F, kTwiceCubic = kTwiceRoot * 0.044715F;
constexpr float kMinusLog2e = -1.44269504088896340736F;

// x / (1 + exp(-2 u)); exp may be infinite, which gives 0.
__device__ __forceinline__ float lean_gelu_tanh(float x) {
  const float exponent = x * fmaf(kTwiceCubic * kMinusLog2e, x * x, kTwiceRoot * kMinusLog2e);
  return x * fast_reciprocal(1 + fast_exp2(exponent));
}
// s + x s (1 - s) (2 u)', s = 1 / (1 + e), e = exp(-2 u), s (1 - s) = e s^2. Beyond 9.6 it is 0 or 1.
__device__ __forceinline__ float lean_gelu_tanh_gradient(float x) {
  asm("max.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(-9.6F));
  asm("min.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(9.6F));
  const float square = x * x;
  const float e = fast_exp2(x * fmaf(kTwiceCubic * kMinusLog2e, square, kTwiceRoot * kMinusLog2e));
  const float s = fast_reciprocal(1 + e);
  return fmaf(x * fmaf(3 * kTwiceCubic, square, kTwiceRoot), e * s * s, s);
}

template <Kind kind>
__device__ __forceinline__ float activated(float x) {
  if constexpr (kind == Kind::gelu_tanh) return lean_gelu_tanh(x);
  if constexpr (kind == Kind::gelu_erf) return gelu_erf(x);
  if constexpr (kind == Kind::gelu_tanh_gradient) return lean_gelu_tanh_gradient(x);
  if constexpr (kind == Kind::gelu_erf_gradient) return gelu_erf_gradient(x);
  return x;
}

template <Kind kind>
inline constexpr bool is_gradient = kind == Kind::gelu_tanh_gradient || kind == Kind::gelu_erf_gradient;

// What a lane has of a tile: rows `row` and `row` + row_step of each slab of 64 rows.
struct Place {
  int64_t row;
  int32_t row_step, column;  // first column of the tile
  int32_t m, n;
  int lane;
};

// Where the lane's part of two rows of a matrix begins.
template <bool bf16>
struct Lines {
  char* at[2];

  __device__ __forceinline__ Lines(char* data, int64_t ld, const Place& p, int slab) {
    constexpr int item = bf16 ? 2 : 4;
#pragma unroll
    for (int half = 0; half < 2; ++half)
      at[half] =
          data + item * ((p.row + 64 * slab + p.row_step * half) * ld + p.column) + (bf16 ? 16 : 8) * (p.lane & 3);
  }
};

// Bits of a chunk in memory's order.
template <bool bf16>
struct Raw {
  uint32_t r[2][bf16 ? 4 : 8];
};

template <bool bf16>
__device__ __forceinline__ Raw<bf16> load_chunk(const Lines<bf16>& lines, const bool (&inside)[2], int chunk) {
  Raw<bf16> out{};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (!inside[half]) continue;
    if constexpr (bf16) {
      const uint4 raw = *reinterpret_cast<const uint4*>(lines.at[half] + 64 * chunk);
      out.r[half][0] = raw.x, out.r[half][1] = raw.y, out.r[half][2] = raw.z, out.r[half][3] = raw.w;
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint2 raw = *reinterpret_cast<const uint2*>(lines.at[half] + 128 * chunk + 32 * j);
        out.r[half][2 * j] = raw.x, out.r[half][2 * j + 1] = raw.y;
      }
    }
  }
  return out;
}

// Columns 8 j + 2 (lane % 4) + e of a chunk are value 2 j + e.
template <bool bf16>
__device__ __forceinline__ void values_of(const uint32_t (&raw)[bf16 ? 4 : 8], int lane, float (&v)[8]) {
  if constexpr (bf16) {
    uint32_t r[4] = {raw[0], raw[1], raw[2], raw[3]};
    transpose_quad(r, lane);
#pragma unroll
    for (int j = 0; j < 4; ++j) v[2 * j] = low_bf16(r[j]), v[2 * j + 1] = high_bf16(r[j]);
  } else {
#pragma unroll
    for (int j = 0; j < 8; ++j) v[j] = __uint_as_float(raw[j]);
  }
}

template <bool bf16>
__device__ __forceinline__ void store_chunk(const Lines<bf16>& lines, const bool (&inside)[2], int chunk, int half,
                                            const float (&v)[8], int lane) {
  if constexpr (bf16) {
    uint32_t r[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) r[j] = pack_bf16(v[2 * j], v[2 * j + 1]);
    transpose_quad(r, lane);
    if (inside[half]) *reinterpret_cast<uint4*>(lines.at[half] + 64 * chunk) = make_uint4(r[0], r[1], r[2], r[3]);
  } else {
#pragma unroll
    for (int j = 0; j < 4; ++j)
      if (inside[half])
        *reinterpret_cast<float2*>(lines.at[half] + 128 * chunk + 32 * j) = make_float2(v[2 * j], v[2 * j + 1]);
  }
}

// The formula on eight values. store_aux(v) keeps the pre-activation.
template <Kind kind, bool has_side, typename StoreAux>
__device__ __forceinline__ void finish_values(const Finish& f, float (&v)[8], const float (&bias)[8],
                                              const float (&side)[8], const StoreAux& store_aux) {
  constexpr bool gradient = is_gradient<kind>;
  const bool side_first = has_side && !gradient && f.flags & side_before_bias;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    v[i] *= f.alpha;
    if (side_first) v[i] = fmaf(f.side_scale, side[i], v[i]);
    v[i] += bias[i];
  }
  if (!gradient && f.aux != nullptr) store_aux(v);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if constexpr (gradient) {
      v[i] *= activated<kind>(side[i]);
    } else {
      v[i] = activated<kind>(v[i]);
      if (has_side && !side_first) v[i] = fmaf(f.side_scale, side[i], v[i]);
    }
  }
}

// C: configuration (kernel.cuh). bf16: dtype of C, aux and side.
template <typename C, bool bf16, bool has_side>
class TileFinish {
 public:
  // Asks for the first of the side matrix; `place` stays the same until finish().
  __device__ __forceinline__ void prepare(const Finish& f, const Place& place) {
    if constexpr (has_side) {
      if (place.column + C::tile_n <= place.n) {
#pragma unroll
        for (int i = 0; i < depth; ++i) next_[i] = ask(f, place, i);
      }
    }
  }

  // bias: of the tile's columns, in shared memory; zeros where there is none. Not for partial sums.
  __device__ __forceinline__ void finish(const Finish& f, const Place& place, float (&d)[C::slabs][C::tile_n / 2],
                                         const float* bias) {
    if (place.column + C::tile_n <= place.n)
      finish_whole(f, place, d, bias);
    else
      finish_ragged(f, place, d, bias);
  }

 private:
  static constexpr bool partial = C::kind == Kind::partial;  // sums as they are
  static constexpr int chunks = C::tile_n / 32, total = C::slabs * chunks;
  // Chunks of the side matrix on their way, as many as registers hold.
  static constexpr int depth = !bf16 || C::kind == Kind::gelu_erf_gradient ? 2 : C::slabs == 2 ? 3 : 4;

  __device__ __forceinline__ static void rows_inside(const Place& p, int slab, bool (&inside)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) inside[half] = p.row + 64 * slab + p.row_step * half < p.m;
  }

  __device__ __forceinline__ static Raw<bf16> ask(const Finish& f, const Place& p, int index) {
    bool inside[2];
    rows_inside(p, index / chunks, inside);
    const Lines<bf16> lines(const_cast<char*>(f.side), f.ld_side, p, index / chunks);
    return load_chunk<bf16>(lines, inside, index % chunks);
  }

  __device__ __forceinline__ void finish_whole(const Finish& f, const Place& p, float (&d)[C::slabs][C::tile_n / 2],
                                               const float* bias) {
#pragma unroll
    for (int index = 0; index < total; ++index) {
      const int slab = index / chunks, chunk = index % chunks;
      bool inside[2];
      rows_inside(p, slab, inside);
      const Lines<bf16> c(f.c, f.ld_c, p, slab), aux(f.aux, f.ld_aux, p, slab);
      float added[8] = {};
#pragma unroll
      for (int j = 0; j < (partial ? 0 : 4); ++j) {
        const float2 pair = *reinterpret_cast<const float2*>(bias + 32 * chunk + 8 * j + 2 * (p.lane & 3));
        added[2 * j] = pair.x, added[2 * j + 1] = pair.y;
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float v[8], side[8] = {};
#pragma unroll
        for (int j = 0; j < 8; ++j) v[j] = d[slab][16 * chunk + 4 * (j / 2) + 2 * half + j % 2];
        if constexpr (has_side) values_of<bf16>(next_[index % depth].r[half], p.lane, side);
        if constexpr (!partial)
          finish_values<C::kind, has_side>(f, v, added, side, [&](const float (&before)[8]) {
            store_chunk<bf16>(aux, inside, chunk, half, before, p.lane);
          });
        store_chunk<bf16>(c, inside, chunk, half, v, p.lane);
      }
      if constexpr (has_side) {
        if (index + depth < total) next_[index % depth] = ask(f, p, index + depth);
      }
    }
  }

  // A tile that ends beyond the last column: element by element.
  __device__ __forceinline__ static void finish_ragged(const Finish& f, const Place& p,
                                                       float (&d)[C::slabs][C::tile_n / 2], const float* bias) {
#pragma unroll
    for (int slab = 0; slab < C::slabs; ++slab) {
      bool inside[2];
      rows_inside(p, slab, inside);
#pragma unroll
      for (int chunk = 0; chunk < chunks; ++chunk) {
        if (p.column + 32 * chunk >= p.n) break;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int64_t row = p.row + 64 * slab + p.row_step * half;
          const int first = 32 * chunk + 2 * (p.lane & 3);
          const auto each = [&](const auto& function) {
#pragma unroll
            for (int j = 0; j < 8; ++j) {
              const int column = p.column + first + 8 * (j / 2) + j % 2;
              if (inside[half] && column < p.n) function(j, column);
            }
          };
          const auto store = [&](char* data, int64_t ld, const float (&values)[8]) {
            each([&](int j, int column) {
              if constexpr (bf16)
                reinterpret_cast<__nv_bfloat16*>(data)[row * ld + column] = __float2bfloat16(values[j]);
              else
                reinterpret_cast<float*>(data)[row * ld + column] = values[j];
            });
          };
          float v[8], added[8], side[8] = {};
#pragma unroll
          for (int j = 0; j < 8; ++j) {
            v[j] = d[slab][16 * chunk + 4 * (j / 2) + 2 * half + j % 2];
            added[j] = partial ? 0 : bias[first + 8 * (j / 2) + j % 2];
          }
          if constexpr (has_side)
            each([&](int j, int column) {
              if constexpr (bf16)
                side[j] = __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(f.side)[row * f.ld_side + column]);
              else
                side[j] = reinterpret_cast<const float*>(f.side)[row * f.ld_side + column];
            });
          if constexpr (!partial)
            finish_values<C::kind, has_side>(f, v, added, side,
                                             [&](const float (&before)[8]) { store(f.aux, f.ld_aux, before); });
          store(f.c, f.ld_c, v);
        }
      }
    }
  }

  Raw<bf16> next_[has_side ? depth : 1];
};

}  // namespace blublas::sm90
