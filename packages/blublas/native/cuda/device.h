// CUDA devices: their properties, and which one is current.
#pragma once

#include "cuda/problem.h"

namespace blublas {

// Throws BLUBLAS_UNSUPPORTED where there is no such device, no driver, or one that is too old.
const CudaDevice& cuda_device(int index);

// Makes a device the calling thread's current one until the end of the scope.
class CurrentDevice {
 public:
  explicit CurrentDevice(int index);
  ~CurrentDevice();
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  int before_ = -1;
};

}  // namespace blublas
