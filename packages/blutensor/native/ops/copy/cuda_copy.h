// Copies and fills on the device, for operators of every family whose work is to put elements elsewhere.
#pragma once

#include <cuda_runtime_api.h>

#include "tensor/tensor.h"

namespace blutensor::cuda {

// destination = source, broadcast to the destination's shape and converted to its dtype; any strides. The two must not
// overlap unless they are the same view.
void copy_view(const View& destination, const View& source, cudaStream_t stream);

// The same for two views of one dtype.
void copy_same_dtype(const View& destination, const View& source, cudaStream_t stream);

// `value`: one element of the destination's dtype, in host memory.
void fill_view(const View& destination, const void* value, cudaStream_t stream);

// The part of `destination` that starts at row *position of an axis (int32 or int64, read on the device and clamped to
// [0, last]) = source, which has the part's shape and the destination's dtype.
struct DevicePosition {
  const void* data = nullptr;
  DType dtype = DType::int64;
  int64_t last = 0;
  int axis = 0;
};
void copy_view_at(const View& destination, const DevicePosition& position, const View& source, cudaStream_t stream);

}  // namespace blutensor::cuda
