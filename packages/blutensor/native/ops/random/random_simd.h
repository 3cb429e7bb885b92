// Philox4x32-10 on vectors: one group of four numbers per lane. Included by cpu_avx2.cpp and cpu_avx512.cpp.
//
// A round is two 32 x 32 -> 64 bit products per lane; each comes from two multiplications of the even and the odd
// lanes. Lanes are given the groups in such an order that two levels of unpacking write the numbers in order.
#include "ops/random/distributions_simd.h"

namespace blutensor {

namespace {

#if defined(__AVX512F__)

using Words = __m512i;
constexpr int64_t kGroups = 16;

Words all(uint32_t v) { return _mm512_set1_epi32(static_cast<int>(v)); }
Words exclusive_or(Words a, Words b) { return _mm512_xor_si512(a, b); }
void multiply(Words a, uint32_t factor, Words& high, Words& low) {
  const Words even = _mm512_mul_epu32(a, all(factor)), odd = _mm512_mul_epu32(_mm512_srli_epi64(a, 32), all(factor));
  low = _mm512_mask_blend_epi32(0xAAAA, even, _mm512_slli_epi64(odd, 32));
  high = _mm512_mask_blend_epi32(0xAAAA, _mm512_srli_epi64(even, 32), odd);
}
// Lane 4 L + j holds group 4 j + L.
Words group_offsets() { return _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15); }
Words add(Words a, Words b) { return _mm512_add_epi32(a, b); }
void store_groups(uint32_t* out, Words c0, Words c1, Words c2, Words c3) {
  const Words low01 = _mm512_unpacklo_epi32(c0, c1), high01 = _mm512_unpackhi_epi32(c0, c1);
  const Words low23 = _mm512_unpacklo_epi32(c2, c3), high23 = _mm512_unpackhi_epi32(c2, c3);
  _mm512_storeu_si512(out, _mm512_unpacklo_epi64(low01, low23));
  _mm512_storeu_si512(out + 16, _mm512_unpackhi_epi64(low01, low23));
  _mm512_storeu_si512(out + 32, _mm512_unpacklo_epi64(high01, high23));
  _mm512_storeu_si512(out + 48, _mm512_unpackhi_epi64(high01, high23));
}

#else

using Words = __m256i;
constexpr int64_t kGroups = 8;

Words all(uint32_t v) { return _mm256_set1_epi32(static_cast<int>(v)); }
Words exclusive_or(Words a, Words b) { return _mm256_xor_si256(a, b); }
void multiply(Words a, uint32_t factor, Words& high, Words& low) {
  const Words even = _mm256_mul_epu32(a, all(factor)), odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), all(factor));
  low = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA);
  high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA);
}
// Lane 4 L + j holds group 2 j + L.
Words group_offsets() { return _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7); }
Words add(Words a, Words b) { return _mm256_add_epi32(a, b); }
void store_groups(uint32_t* out, Words c0, Words c1, Words c2, Words c3) {
  const Words low01 = _mm256_unpacklo_epi32(c0, c1), high01 = _mm256_unpackhi_epi32(c0, c1);
  const Words low23 = _mm256_unpacklo_epi32(c2, c3), high23 = _mm256_unpackhi_epi32(c2, c3);
  const auto store = [out](int at, Words v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + at), v); };
  store(0, _mm256_unpacklo_epi64(low01, low23));
  store(8, _mm256_unpackhi_epi64(low01, low23));
  store(16, _mm256_unpacklo_epi64(high01, high23));
  store(24, _mm256_unpackhi_epi64(high01, high23));
}

#endif

void (*portable_bits)(int64_t num_groups, uint32_t* out, const RandomStream& stream, int64_t first_group) = nullptr;

void bits(int64_t num_groups, uint32_t* out, const RandomStream& stream, int64_t first_group) {
  int64_t i = 0;
  for (; i + kGroups <= num_groups; i += kGroups, out += 4 * kGroups) {
    const auto group = static_cast<uint64_t>(first_group + i);
    if ((group & 0xffffffffu) + kGroups > 0x100000000u) {  // the low word of the counter wraps within the vector
      portable_bits(kGroups, out, stream, first_group + i);
      continue;
    }
    Words c0 = add(all(static_cast<uint32_t>(group)), group_offsets()), c1 = all(static_cast<uint32_t>(group >> 32));
    Words c2 = all(stream.op_id), c3 = all(stream.step);
    uint32_t key0 = stream.key[0], key1 = stream.key[1];
    for (int round = 0; round < kPhiloxRounds; ++round) {
      Words high0, low0, high1, low1;
      multiply(c0, kPhiloxMultiplier0, high0, low0);
      multiply(c2, kPhiloxMultiplier1, high1, low1);
      c0 = exclusive_or(exclusive_or(high1, c1), all(key0));
      c1 = low1;
      c2 = exclusive_or(exclusive_or(high0, c3), all(key1));
      c3 = low0;
      key0 += kPhiloxWeyl0;
      key1 += kPhiloxWeyl1;
    }
    store_groups(out, c0, c1, c2, c3);
  }
  if (i < num_groups) portable_bits(num_groups - i, out, stream, first_group + i);
}

void use_simd(RandomKernels& kernels) {
  if (!portable_bits) portable_bits = kernels.bits;
  kernels.bits = bits;
  use_distributions(kernels);
}

}  // namespace

}  // namespace blutensor
