// A pseudo-random permutation of [0, size) that needs no memory: any element of an epoch's order is computed on its own, so
// that a position is enough to resume.
//
// Method: a balanced Feistel network over the smallest even number of bits that holds `size`, with cycle walking (Black and
// Rogaway 2002): values that fall outside are put through again. The domain is at most 4 * size, so under 4 passes on average.
// The round function is the finaliser of splitmix64 (Steele et al. 2014).
#pragma once

#include <cstdint>

namespace blutrain {

/// Mixes 64 bits; splitmix64's finaliser.
inline uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

/// Element `index` of the permutation of [0, size) that `key` selects. Requires 0 <= index < size.
inline uint64_t permute(uint64_t index, uint64_t size, uint64_t key) {
  unsigned half_bits = 1;
  while (half_bits < 32 && (uint64_t{1} << (2 * half_bits)) < size) ++half_bits;
  const uint64_t mask = (uint64_t{1} << half_bits) - 1;
  do {
    uint64_t left = index >> half_bits;
    uint64_t right = index & mask;
    for (uint64_t round = 0; round < 6; ++round) {
      const uint64_t next = left ^ (mix(key + mix(right + (round << 32))) & mask);
      left = right;
      right = next;
    }
    index = (left << half_bits) | right;
  } while (index >= size);
  return index;
}

}  // namespace blutrain
