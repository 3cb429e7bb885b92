#include "common/cpu.h"

#include <sched.h>

#include <algorithm>
#include <cstdio>
#include <set>
#include <string>

#include "blublas/blublas.h"

namespace blublas {
namespace {

// First CPU of the list of hardware threads that share a core with `cpu`; `cpu` itself when the system does not tell.
int core_of(int cpu) {
  char path[96];
  std::snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
  int first = cpu;
  if (std::FILE* file = std::fopen(path, "r")) {
    if (std::fscanf(file, "%d", &first) != 1) first = cpu;
    std::fclose(file);
  }
  return first;
}

// CPUs' worth of time that the control group (v2) grants, or `otherwise`.
int quota(int otherwise) {
  int cpus = otherwise;
  if (std::FILE* file = std::fopen("/sys/fs/cgroup/cpu.max", "r")) {
    long long allowed = 0, period = 0;
    if (std::fscanf(file, "%lld %lld", &allowed, &period) == 2 && allowed > 0 && period > 0)
      cpus = static_cast<int>(std::min<long long>(otherwise, std::max<long long>(1, allowed / period)));
    std::fclose(file);
  }
  return cpus;
}

int32_t count_cores() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return 1;
  std::set<int> cores;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &allowed)) cores.insert(core_of(cpu));
  return std::max(1, quota(static_cast<int>(cores.size())));
}

}  // namespace

uint32_t cpu_features() noexcept {
  uint32_t features = 0;
#if defined(__x86_64__)
  // __builtin_cpu_supports also asks the operating system (XGETBV) whether the wide registers are saved.
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) features |= BLUBLAS_CPU_AVX2;
  if ((features & BLUBLAS_CPU_AVX2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    features |= BLUBLAS_CPU_AVX512;
    if (__builtin_cpu_supports("avx512bf16")) features |= BLUBLAS_CPU_AVX512_BF16;
  }
#endif
  return features;
}

int32_t physical_cores() noexcept {
  try {
    return count_cores();
  } catch (...) {
    return 1;
  }
}

}  // namespace blublas
