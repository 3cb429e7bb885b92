#include "device/cuda_driver.h"

#include <cuda_runtime_api.h>

#include <cstdlib>
#include <type_traits>

#include "error.h"

namespace blualloc {
namespace {

constexpr const char* kNeeds = "CUDA 13 needs NVIDIA driver 580 or newer";

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

// Why there is nothing to work with; empty when there is.
std::string find_devices(int32_t& num_devices) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count > 0) {
    num_devices = count;
    return "";
  }
  int version = 0;  // stays 0 without a driver
  if (cudaDriverGetVersion(&version) != cudaSuccess || version == 0) {
    return std::string("no NVIDIA driver was found (libcuda.so.1); ") + kNeeds + ": install it";
  }
  if (error == cudaErrorInsufficientDriver) {
    return "the NVIDIA driver is too old: it supports CUDA " + version_text(version) + ", " + kNeeds + ": update it";
  }
  if (error == cudaSuccess || error == cudaErrorNoDevice) {
    const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
    return std::string("the NVIDIA driver shows no device; see what nvidia-smi lists, and CUDA_VISIBLE_DEVICES (now ") +
           (visible != nullptr ? "'" + std::string(visible) + "'" : std::string("not set")) + ")";
  }
  return std::string("the NVIDIA driver refuses to start: ") + cudaGetErrorName(error) + ": " +
         cudaGetErrorString(error) +
         "; see whether nvidia-smi works, and make CUDA's first call after a fork, not before";
}

// The name of the first function that the driver lacks, or NULL.
const char* load(Driver& driver) {
  const auto find = [](const char* name, unsigned version, auto& function) {
    void* address = nullptr;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    const cudaError_t error = cudaGetDriverEntryPointByVersion(name, &address, version, cudaEnableDefault, &found);
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(address);
    return error == cudaSuccess && found == cudaDriverEntryPointSuccess && address != nullptr;
  };
#define BLUALLOC_LOAD(name, version)        \
  if (!find(#name, version, driver.name)) { \
    return #name;                           \
  }
  BLUALLOC_DRIVER_FUNCTIONS(BLUALLOC_LOAD)
#undef BLUALLOC_LOAD
  return nullptr;
}

// Failures of a kernel or of the device itself, after which every call in the context fails.
bool loses_device(CUresult result) {
  switch (result) {
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_CONTAINED:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
      return true;
    default:
      return false;
  }
}

}  // namespace

const CudaMachine& cuda_machine() {
  static const CudaMachine* const only = [] {
    auto* const made = new CudaMachine();
    made->reason = find_devices(made->num_devices);
    if (made->num_devices > 0) {
      if (const char* const missing = load(made->driver)) {
        made->num_devices = 0;
        made->reason = std::string("the NVIDIA driver has no ") + missing + "; " + kNeeds + ": update it";
      }
    }
    return made;
  }();
  return *only;
}

std::string describe_result(const char* call, CUresult result) {
  const char* name = nullptr;
  const char* text = nullptr;
  if (driver().cuGetErrorName(result, &name) != CUDA_SUCCESS || name == nullptr) {
    return std::string(call) + ": CUDA error " + std::to_string(static_cast<int>(result));
  }
  (void)driver().cuGetErrorString(result, &text);
  return std::string(call) + ": " + name + (text != nullptr ? ": " + std::string(text) : std::string()) +
         (loses_device(result) ? "; earlier work failed, and the device is lost to this process: start a new one" : "");
}

int32_t status_of(const char* call, CUresult result) noexcept {
  if (result == CUDA_SUCCESS) {
    return BLUALLOC_OK;
  }
  if (result == CUDA_ERROR_OUT_OF_MEMORY) {
    return BLUALLOC_OUT_OF_MEMORY;
  }
  try {
    set_device_failure(describe_result(call, result));
  } catch (...) {  // no room for the text: the status is told anyway
  }
  return BLUALLOC_RUNTIME_FAILURE;
}

CurrentContext::CurrentContext(CUcontext context) : result_(driver().cuCtxPushCurrent(context)) {
  if (result_ == CUDA_SUCCESS) {
    (void)driver().cuThreadExchangeStreamCaptureMode(&mode_);
  }
}

CurrentContext::~CurrentContext() {
  if (result_ == CUDA_SUCCESS) {
    CUcontext popped = nullptr;
    (void)driver().cuThreadExchangeStreamCaptureMode(&mode_);
    (void)driver().cuCtxPopCurrent(&popped);
  }
}

}  // namespace blualloc
