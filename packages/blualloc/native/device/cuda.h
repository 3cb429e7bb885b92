// CUDA devices and pinned host memory as devices of pools. A build without CUDA has no_cuda.cpp in place of these.
#pragma once

#include <blualloc/blualloc.h>

#include <cstdint>
#include <string>

namespace blualloc {

// 0 when there is none; cuda_reason() then says why.
int32_t cuda_device_count();
// Why there is no CUDA device and what to do about it; empty when there is one.
const std::string& cuda_reason();

// The table of cuda:<index>; made at the first call, the same at every later one. `segments` is one of
// BLUALLOC_SEGMENTS_. Throws BLUALLOC_UNSUPPORTED with the reason; `operation` begins the message.
const blualloc_device_ops& cuda_device(int32_t index, int32_t segments, const char* operation);
// The table of pinned:0, host memory that every CUDA device reads and writes directly.
const blualloc_device_ops& pinned_device(int32_t index, const char* operation);

// Whether what is put on this stream of a device now becomes part of a graph.
bool is_captured(void* stream);

}  // namespace blualloc
