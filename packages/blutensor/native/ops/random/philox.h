// Philox4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011): ten rounds turn
// a 128-bit counter and a 64-bit key into 128 random bits. No state: any element of any sequence is computed by
// itself.
#pragma once

#include <array>
#include <cstdint>

namespace blutensor {

using PhiloxCounter = std::array<uint32_t, 4>;
using PhiloxKey = std::array<uint32_t, 2>;

constexpr uint32_t kPhiloxMultiplier0 = 0xD2511F53u, kPhiloxMultiplier1 = 0xCD9E8D57u;
constexpr uint32_t kPhiloxWeyl0 = 0x9E3779B9u, kPhiloxWeyl1 = 0xBB67AE85u;
constexpr int kPhiloxRounds = 10;

constexpr PhiloxCounter philox(PhiloxCounter counter, PhiloxKey key) {
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const uint64_t product0 = uint64_t{kPhiloxMultiplier0} * counter[0];
    const uint64_t product1 = uint64_t{kPhiloxMultiplier1} * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(product0)};
    key[0] += kPhiloxWeyl0;
    key[1] += kPhiloxWeyl1;
  }
  return counter;
}

// The sequence of one operator call: key = seed; counter = (group of four numbers, operator id, step).
struct RandomStream {
  PhiloxKey key{};
  uint32_t op_id = 0, step = 0;

  RandomStream() = default;
  RandomStream(int64_t seed, int64_t step_number, int64_t op)
      : key{static_cast<uint32_t>(seed), static_cast<uint32_t>(static_cast<uint64_t>(seed) >> 32)},
        op_id(static_cast<uint32_t>(op)),
        step(static_cast<uint32_t>(step_number)) {}
  PhiloxCounter counter(int64_t group) const {
    return {static_cast<uint32_t>(group), static_cast<uint32_t>(static_cast<uint64_t>(group) >> 32), op_id, step};
  }
  // Numbers 4 group ... 4 group + 3.
  PhiloxCounter draw(int64_t group) const { return philox(counter(group), key); }
};

}  // namespace blutensor
