// The CUDA driver: its functions, asked for at run time so that the library loads without one, and its errors.
#pragma once

#include <cuda.h>
#include <cudaTypedefs.h>

#include <cstdint>
#include <string>

namespace blualloc {

// Name and the version of CUDA in which the wanted signature appeared.
#define BLUALLOC_DRIVER_FUNCTIONS(X)          \
  X(cuGetErrorName, 6000)                     \
  X(cuGetErrorString, 6000)                   \
  X(cuDeviceGet, 2000)                        \
  X(cuDeviceGetAttribute, 2000)               \
  X(cuDevicePrimaryCtxRetain, 7000)           \
  X(cuCtxPushCurrent, 4000)                   \
  X(cuCtxPopCurrent, 4000)                    \
  X(cuCtxGetCurrent, 4000)                    \
  X(cuThreadExchangeStreamCaptureMode, 10010) \
  X(cuStreamGetCtx, 9020)                     \
  X(cuStreamIsCapturing, 10000)               \
  X(cuStreamWaitEvent, 3020)                  \
  X(cuEventCreate, 2000)                      \
  X(cuEventRecord, 2000)                      \
  X(cuEventQuery, 2000)                       \
  X(cuEventSynchronize, 2000)                 \
  X(cuEventDestroy, 4000)                     \
  X(cuMemGetAllocationGranularity, 10020)     \
  X(cuMemAddressReserve, 10020)               \
  X(cuMemAddressFree, 10020)                  \
  X(cuMemCreate, 10020)                       \
  X(cuMemRelease, 10020)                      \
  X(cuMemMap, 10020)                          \
  X(cuMemUnmap, 10020)                        \
  X(cuMemSetAccess, 10020)                    \
  X(cuMemGetInfo, 3020)                       \
  X(cuMemAlloc, 3020)                         \
  X(cuMemFree, 3020)                          \
  X(cuMemHostAlloc, 2020)                     \
  X(cuMemFreeHost, 2000)

struct Driver {
#define BLUALLOC_MEMBER(name, version) PFN_##name##_v##version name = nullptr;
  BLUALLOC_DRIVER_FUNCTIONS(BLUALLOC_MEMBER)
#undef BLUALLOC_MEMBER
};

// What the machine has, found out once per process.
struct CudaMachine {
  int32_t num_devices = 0;
  std::string reason;  // empty when num_devices > 0
  Driver driver;       // complete when num_devices > 0
};
const CudaMachine& cuda_machine();
inline const Driver& driver() { return cuda_machine().driver; }

// "cuMemMap: CUDA_ERROR_INVALID_VALUE: invalid argument".
std::string describe_result(const char* call, CUresult result);
// The status that a callback returns for a result; the text of a failure goes into the pool's message.
int32_t status_of(const char* call, CUresult result) noexcept;

// A context is current, and calls that capture would forbid are allowed (they concern no captured stream), until the
// end of the scope. Pushed and popped, never set: another device's context of this thread comes back as it was.
class CurrentContext {
 public:
  explicit CurrentContext(CUcontext context);
  ~CurrentContext();
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;

  CUresult result() const { return result_; }

 private:
  CUresult result_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

}  // namespace blualloc
