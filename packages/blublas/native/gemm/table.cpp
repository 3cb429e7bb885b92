// The dispatch table: which kernels run where. The last set that the machine supports is the default; blocking sizes
// stand beside each set's kernels, at the end of its file.
//
//   set        float32 tile   float64 tile   file
//   reference  4 x 8          4 x 8          reference.cpp    every machine
//   avx2       6 x 16         6 x 8          cpu_avx2.cpp     AVX2 and FMA
//   avx512     14 x 32        14 x 16        cpu_avx512.cpp   AVX-512 F, BW, DQ, VL
#include <atomic>
#include <string>

#include "common/cpu.h"
#include "common/status.h"
#include "gemm/kernels.h"

namespace blublas {
namespace {

constexpr const KernelSet* kSets[] = {
    &reference_kernels,
#if defined(BLUBLAS_HAVE_AVX2)
    &avx2_kernels,
#endif
#if defined(BLUBLAS_HAVE_AVX512)
    &avx512_kernels,
#endif
};

bool supported(const KernelSet& set) { return (set.needs & ~cpu_features()) == 0; }

const KernelSet* best() {
  const KernelSet* chosen = &reference_kernels;
  for (const KernelSet* set : kSets)
    if (supported(*set)) chosen = set;
  return chosen;
}

std::atomic<const KernelSet*>& chosen() {
  static std::atomic<const KernelSet*> set{best()};
  return set;
}

}  // namespace

const KernelSet& kernel_set() { return *chosen().load(std::memory_order_acquire); }

void choose_kernel_set(const char* name) {
  const std::string wanted = name != nullptr ? name : "";
  if (wanted == "auto") {
    chosen().store(best(), std::memory_order_release);
    return;
  }
  for (const KernelSet* set : kSets) {
    if (wanted != set->name) continue;
    if (!supported(*set))
      throw Error(BLUBLAS_UNSUPPORTED,
                  "[set_kernel] this processor cannot run kernel set \"" + wanted + "\"; use \"auto\"");
    chosen().store(set, std::memory_order_release);
    return;
  }
  if (wanted == "avx2" || wanted == "avx512")
    throw Error(BLUBLAS_UNSUPPORTED, "[set_kernel] this build has no kernel set \"" + wanted + "\"; use \"auto\"");
  fail_value("[set_kernel] expected \"reference\", \"avx2\", \"avx512\" or \"auto\", got \"" + wanted + "\"");
}

}  // namespace blublas
