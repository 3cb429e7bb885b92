// Mistakes that only a kernel can see: an id, an index or a target out of range.
//
// A launcher cannot look at device data, and a kernel cannot throw. The kernel writes what it found into a slot of
// mapped host memory and goes on with something harmless; the runtime looks at the slot wherever it waits for the
// device, and throws there. Any one of several mistakes is reported.
#pragma once

#include <cstdint>

namespace blutensor::cuda {

// Whose mistake it was, and so what the message says.
enum class ReportCode : uint32_t {
  none = 0,
  embedding_id,
  cross_entropy_target,
  linear_cross_entropy_target,
  index_write_position,
  attention_decode_position,
  index,
};

struct alignas(16) Report {
  int64_t value = 0;   // what was found
  uint32_t limit = 0;  // values from 0 to limit - 1 are right
  ReportCode code = ReportCode::none;
};

// The slot of the current device, as kernels see it. Allocated at the first call; allowed during stream capture.
Report* report_slot();

// Whether a kernel of any device reported something. Costs a read of host memory: call it after synchronizing.
bool reported();

// Throws Status::index for what was reported, and forgets it. Without a report it returns.
void throw_reported();

#ifdef __CUDACC__
// One store of 16 bytes, so that parts of two reports do not mix. `limit` is cut to 32 bits: nothing has more rows.
__device__ inline void report(Report* slot, ReportCode code, int64_t value, int64_t limit) {
  const auto low = static_cast<uint32_t>(value), high = static_cast<uint32_t>(value >> 32);
  asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(slot), "r"(low), "r"(high),
               "r"(static_cast<uint32_t>(limit)), "r"(static_cast<uint32_t>(code))
               : "memory");
}
#endif

}  // namespace blutensor::cuda
