#include "ops/kernels.h"

#include <atomic>

#include <blublas/blublas.h>

#include "tensor/error.h"

namespace blutensor {

namespace {

// Who serves what: one line per family and instruction set.
KernelTable make_table(Isa isa) {
  KernelTable table;
  table.isa = isa;
  use_reference(table.copy);
  use_reference(table.elementwise);
  use_reference(table.reduce);
  use_reference(table.random);
  use_reference(table.layer_norm);
  use_reference(table.rotary);
  use_reference(table.linear_cross_entropy);
  use_reference(table.optimizer);
  use_reference(table.softmax);
  use_reference(table.cross_entropy);
  use_reference(table.attention);
#ifdef BLUTENSOR_HAVE_AVX2
  if (isa >= Isa::avx2) {
    use_avx2(table.copy);
    use_avx2(table.elementwise);
    use_avx2(table.reduce);
    use_avx2(table.random);
    use_avx2(table.layer_norm);
    use_avx2(table.rotary);
    use_avx2(table.linear_cross_entropy);
    use_avx2(table.optimizer);
    use_avx2(table.softmax);
    use_avx2(table.cross_entropy);
    use_avx2(table.attention);
  }
#endif
#ifdef BLUTENSOR_HAVE_AVX512
  if (isa >= Isa::avx512) {
    use_avx512(table.copy);
    use_avx512(table.elementwise);
    use_avx512(table.reduce);
    use_avx512(table.random);
    use_avx512(table.layer_norm);
    use_avx512(table.rotary);
    use_avx512(table.linear_cross_entropy);
    use_avx512(table.optimizer);
    use_avx512(table.softmax);
    use_avx512(table.cross_entropy);
    use_avx512(table.attention);
  }
#endif
  return table;
}

const KernelTable& table_of(Isa isa) {
  static const KernelTable reference = make_table(Isa::reference);
  if (isa == Isa::reference) return reference;
  static const KernelTable avx2 = supports_isa(Isa::avx2) ? make_table(Isa::avx2) : reference;
  if (isa == Isa::avx2) return avx2;
  static const KernelTable avx512 = supports_isa(Isa::avx512) ? make_table(Isa::avx512) : avx2;
  return avx512;
}

const KernelTable& best_table() {
  return table_of(supports_isa(Isa::avx512) ? Isa::avx512 : supports_isa(Isa::avx2) ? Isa::avx2 : Isa::reference);
}

std::atomic<const KernelTable*>& active() {
  static std::atomic<const KernelTable*> table{&best_table()};
  return table;
}

const char* isa_name(Isa isa) { return isa == Isa::avx512 ? "avx512" : isa == Isa::avx2 ? "avx2" : "reference"; }

}  // namespace

const KernelTable& kernels() { return *active().load(std::memory_order_acquire); }

bool supports_isa(Isa isa) {
  [[maybe_unused]] const uint32_t features = blublas_cpu_features();
  switch (isa) {
    case Isa::reference:
      return true;
#ifdef BLUTENSOR_HAVE_AVX2
    case Isa::avx2:
      return (features & BLUBLAS_CPU_AVX2) != 0;
#endif
#ifdef BLUTENSOR_HAVE_AVX512
    case Isa::avx512:
      return (features & BLUBLAS_CPU_AVX2) != 0 && (features & BLUBLAS_CPU_AVX512) != 0;
#endif
    default:
      return false;
  }
}

void set_isa(Isa isa) {
  if (!supports_isa(isa)) fail(Status::unsupported, "[set_isa] this CPU or build has no ", isa_name(isa), " kernels");
  active().store(&table_of(isa), std::memory_order_release);
}

Isa active_isa() { return kernels().isa; }

}  // namespace blutensor
