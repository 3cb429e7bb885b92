// What the kernels' choice depends on, asked once per device.
#include "cuda/device.h"

#include <array>
#include <mutex>
#include <string>

#include "common/status.h"

namespace blublas {
namespace {

constexpr int kMaxDevices = 64;

struct Known {
  std::once_flag once;
  CudaDevice device;
};

int attribute(cudaDeviceAttr which, int index) {
  int value = 0;
  check_cuda(cudaDeviceGetAttribute(&value, which, index), "cudaDeviceGetAttribute");
  return value;
}

}  // namespace

void check_cuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  const int32_t status = error == cudaErrorMemoryAllocation ? BLUBLAS_OUT_OF_MEMORY : BLUBLAS_RUNTIME_ERROR;
  throw Error(status,
              std::string("[gemm] ") + what + ": " + cudaGetErrorName(error) + ": " + cudaGetErrorString(error));
}

const CudaDevice& cuda_device(int index) {
  static std::array<Known, kMaxDevices> known;
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0) {
    cudaGetLastError();  // or it would come up again at the next launch
    throw Error(BLUBLAS_UNSUPPORTED, std::string("[gemm] expected a CUDA device, found none: ") +
                                         (error != cudaSuccess ? cudaGetErrorString(error) : "no devices"));
  }
  if (index < 0 || index >= count || index >= kMaxDevices)
    throw Error(BLUBLAS_UNSUPPORTED, "[gemm] expected a CUDA device of 0 to " + std::to_string(count - 1) + ", got " +
                                         std::to_string(index));
  Known& slot = known[static_cast<size_t>(index)];
  std::call_once(slot.once, [&] {
    slot.device.index = index;
    slot.device.arch =
        10 * attribute(cudaDevAttrComputeCapabilityMajor, index) + attribute(cudaDevAttrComputeCapabilityMinor, index);
    slot.device.num_multiprocessors = attribute(cudaDevAttrMultiProcessorCount, index);
    slot.device.shared_bytes = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, index);
  });
  return slot.device;
}

CurrentDevice::CurrentDevice(int index) {
  check_cuda(cudaGetDevice(&before_), "cudaGetDevice");
  if (before_ == index) {
    before_ = -1;
    return;
  }
  check_cuda(cudaSetDevice(index), "cudaSetDevice");
}

CurrentDevice::~CurrentDevice() {
  if (before_ >= 0) cudaSetDevice(before_);
}

}  // namespace blublas
