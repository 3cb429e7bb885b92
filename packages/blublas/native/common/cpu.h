// What the machine offers: instruction sets and cores.
#pragma once

#include <cstdint>

namespace blublas {

// BLUBLAS_CPU_* flags.
uint32_t cpu_features() noexcept;

// Physical cores among the CPUs that the process may run on, at most what its control group may use. At least 1.
int32_t physical_cores() noexcept;

}  // namespace blublas
