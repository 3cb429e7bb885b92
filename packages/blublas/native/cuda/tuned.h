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
    {0, false, false, 0, 0, 0, "", 1},  // for the table not to be empty
};

}  // namespace blublas
