// Portable conversions between all pairs of dtypes.
#include "ops/copy/convert.h"
#include "ops/copy/copy_kernels.h"

namespace blutensor {

namespace {

template <class To, class From>
void cast(int64_t n, void* destination, int64_t destination_stride, const void* source, int64_t source_stride) {
  if constexpr (std::is_same_v<To, From> && !std::is_same_v<To, bool>) {
    if (destination_stride == 1 && source_stride == 1) {
      if (destination != source) std::memcpy(destination, source, static_cast<size_t>(n) * sizeof(To));
      return;
    }
  }
  if (destination_stride == 1 && source_stride == 1) {
    for (int64_t i = 0; i < n; ++i) store_element(destination, i, convert<To>(load_element<From>(source, i)));
  } else if (source_stride == 0) {
    if (n == 0) return;
    const To value = convert<To>(load_element<From>(source, 0));
    for (int64_t i = 0; i < n; ++i) store_element(destination, i * destination_stride, value);
  } else {
    for (int64_t i = 0; i < n; ++i)
      store_element(destination, i * destination_stride, convert<To>(load_element<From>(source, i * source_stride)));
  }
}

}  // namespace

void use_reference(CopyKernels& kernels) {
  for (int from = 0; from < kNumDTypes; ++from)
    for (int to = 0; to < kNumDTypes; ++to)
      visit_dtype(static_cast<DType>(from), [&](auto source) {
        visit_dtype(static_cast<DType>(to), [&](auto destination) {
          kernels.cast[from][to] = cast<typename decltype(destination)::type, typename decltype(source)::type>;
        });
      });
}

}  // namespace blutensor
