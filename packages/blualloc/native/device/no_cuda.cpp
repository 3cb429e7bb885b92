// What a build without CUDA has: no devices, and the reason.
#include "device/cuda.h"
#include "error.h"

namespace blualloc {

int32_t cuda_device_count() { return 0; }

const std::string& cuda_reason() {
  static const std::string* const text = new std::string(
      "this build of blualloc has no CUDA; install one that does, or build it with nvcc of CUDA 13 on PATH and "
      "-DBLU_CUDA=ON");
  return *text;
}

const blualloc_device_ops& cuda_device(int32_t index, int32_t, const char* operation) {
  throw Error(BLUALLOC_UNSUPPORTED, "[" + std::string(operation) + "] expected a device that is there, got cuda:" +
                                        std::to_string(index) + ": " + cuda_reason() + "; or use cpu:0");
}

const blualloc_device_ops& pinned_device(int32_t index, const char* operation) {
  throw Error(BLUALLOC_UNSUPPORTED, "[" + std::string(operation) + "] expected a device that is there, got pinned:" +
                                        std::to_string(index) + ": " + cuda_reason() + "; or use cpu:0");
}

bool is_captured(void*) { return false; }

}  // namespace blualloc
