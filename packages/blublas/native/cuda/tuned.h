// Measured choices, written by `python -m blublas.autotune`; the heuristics look here before they calculate.
#pragma once

#include <cstdint>

namespace blublas {

struct TunedChoice {
  int32_t arch;
  bool k_major_a, k_major_b;
  int64_t m, n, k;
  const char* config;
  int32_t splits;
};

inline constexpr TunedChoice kTunedChoices[] = {
    {90, false, false, 768, 768, 16384, "bf16_128x256x64_4", 7},
    {90, false, false, 768, 3072, 16384, "bf16_128x256x64_4", 5},
    {90, false, false, 2304, 768, 16384, "bf16_128x256x64_4", 2},
    {90, false, false, 3072, 768, 16384, "bf16_128x256x64_4", 5},
    {90, false, false, 50304, 768, 16384, "bf16_128x256x64_4", 1},
    {90, true, false, 16384, 768, 768, "bf16_128x256x64_4", 1},
    {90, true, false, 16384, 768, 2304, "bf16_128x256x64_4", 1},
    {90, true, false, 16384, 768, 3072, "bf16_128x256x64_4", 1},
    {90, true, false, 16384, 768, 50304, "bf16_128x128x64_3", 1},
    {90, true, false, 16384, 3072, 768, "bf16_128x128x64_3", 1},
    {90, true, true, 16384, 768, 768, "bf16_128x128x64_3", 1},
    {90, true, true, 16384, 768, 3072, "bf16_128x256x64_4", 1},
    {90, true, true, 16384, 2304, 768, "bf16_128x128x64_3", 1},
    {90, true, true, 16384, 3072, 768, "bf16_128x128x64_3", 1},
    {90, true, true, 16384, 50304, 768, "bf16_128x128x64_3", 1},
    {90, false, false, 768, 768, 16384, "tf32_128x256x32_4", 7},
    {90, false, false, 768, 3072, 16384, "tf32_128x256x32_4", 7},
    {90, false, false, 2304, 768, 16384, "tf32_128x256x32_4", 7},
    {90, false, false, 3072, 768, 16384, "tf32_128x128x32_3", 7},
    {90, false, false, 50304, 768, 16384, "tf32_128x256x32_4", 1},
    {90, true, false, 16384, 768, 768, "tf32_128x256x32_4", 1},
    {90, true, false, 16384, 768, 2304, "tf32_128x256x32_4", 1},
    {90, true, false, 16384, 768, 3072, "tf32_128x256x32_4", 1},
    {90, true, false, 16384, 768, 50304, "tf32_128x256x32_4", 1},
    {90, true, false, 16384, 3072, 768, "tf32_128x256x32_4", 1},
    {90, true, true, 16384, 768, 768, "tf32_128x128x32_3", 1},
    {90, true, true, 16384, 768, 3072, "tf32_128x256x32_4", 1},
    {90, true, true, 16384, 2304, 768, "tf32_128x128x32_3", 1},
    {90, true, true, 16384, 3072, 768, "tf32_128x128x32_3", 1},
    {90, true, true, 16384, 50304, 768, "tf32_128x128x32_3", 1},
};

}  // namespace blublas
