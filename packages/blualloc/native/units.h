// Sizes: rounding to powers of two, and bytes for messages.
#pragma once

#include <bit>
#include <cstdint>
#include <string>

namespace blualloc {

// `unit` is a power of two; the caller has made sure that value + unit does not overflow.
constexpr uint64_t round_up(uint64_t value, uint64_t unit) { return (value + unit - 1) & ~(unit - 1); }
constexpr uint64_t round_down(uint64_t value, uint64_t unit) { return value & ~(unit - 1); }
constexpr bool is_power_of_two(uint64_t value) { return std::has_single_bit(value); }

// "1.50 GiB (1610612736 bytes)"; below 1 KiB "512 bytes".
std::string describe_bytes(uint64_t bytes);

// xorshift64*: the only source of randomness here, always seeded, the same everywhere.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15ull | 1u) {}
  uint64_t next() {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return state_ * 0x2545F4914F6CDD1Dull;
  }
  // In [0, bound); bound > 0.
  uint64_t below(uint64_t bound) { return next() % bound; }

 private:
  uint64_t state_;
};

}  // namespace blualloc
