// Lists of tensors for one launch: the addresses go in the kernel's arguments (up to 32764 bytes), so that a captured
// launch needs no table in memory. A block works on one chunk of kChunk elements, which never spans two tensors.
#pragma once

#include <span>

#include "ops/cuda/vector.cuh"
#include "ops/matmul/operand.h"

namespace blutensor::cuda {

inline constexpr int64_t kChunk = 16384;
inline constexpr int kChunkThreads = 256;

// `Entry` holds the addresses of one tensor, and its `int64_t numel`.
template <class Entry>
struct ChunkTable {
  static constexpr int kCapacity = 32000 / static_cast<int>(sizeof(Entry) + sizeof(uint32_t));
  int count = 0;
  uint32_t first_chunk[kCapacity + 1];  // of each tensor; after the last one, their number
  Entry entries[kCapacity];
  static_assert((sizeof(Entry) + sizeof(uint32_t)) * kCapacity <= 32000, "kernel arguments end at 32764 bytes");

  bool full() const { return count == kCapacity; }
  unsigned num_chunks() const { return count ? first_chunk[count] : 0; }
  void add(const Entry& entry) {
    if (count == 0) first_chunk[0] = 0;
    entries[count] = entry;
    first_chunk[count + 1] = first_chunk[count] + static_cast<uint32_t>((entry.numel + kChunk - 1) / kChunk);
    ++count;
  }
};

struct Chunk {
  int tensor;
  int64_t first;
  int count;
};

#ifdef __CUDACC__
// The chunk of this block, found by bisection.
template <class Entry>
__device__ inline Chunk chunk_of_block(const ChunkTable<Entry>& table) {
  int low = 0, high = table.count;  // first_chunk[low] <= block < first_chunk[high]
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (table.first_chunk[middle] <= blockIdx.x ? low : high) = middle;
  }
  const int64_t first = static_cast<int64_t>(blockIdx.x - table.first_chunk[low]) * kChunk,
                rest = table.entries[low].numel - first;
  return {low, first, static_cast<int>(rest < kChunk ? rest : kChunk)};
}
#endif

// Passes tensors one by one to as many launches as they need.
template <class Entry, class Launch>
class TableFiller {
 public:
  explicit TableFiller(const Launch& launch) : launch_(launch) {}
  void add(const Entry& entry) {
    if (entry.numel == 0) return;
    if (table_.full()) flush();
    table_.add(entry);
  }
  void flush() {
    if (table_.count) launch_(table_);
    table_.count = 0;
  }

 private:
  const Launch& launch_;
  ChunkTable<Entry> table_;
};

// Tensors contiguous: copies in the workspace where they are not, which go back with write_back().
class ContiguousTensors {
 public:
  ContiguousTensors(Execution& run, std::span<const View> tensors) : run_(run), tensors_(tensors) {
    data_.reserve(tensors.size());
    for (const View& tensor : tensors) data_.push_back(run.contiguous(tensor, tensor.dtype));
  }
  void* operator[](size_t i) const { return data_[i]; }
  // Brings tensors [begin, end) home where they were copied; tensor i from `of(i)` (float32 or float64).
  template <class Of>
  void write_back(size_t begin, size_t end, const Of& of) {
    for (size_t i = begin; i < end; ++i) {
      if (!tensors_[i].defined() || data_[i] == tensors_[i].data) continue;
      const int64_t numel = tensors_[i].numel();
      const DType dtype = accumulation_dtype(tensors_[i].dtype);
      run_.store({of(i), dtype, 1, numel, numel, 1}, tensors_[i]);
    }
  }
  void write_back(size_t begin, size_t end) {
    write_back(begin, end, [&](size_t i) { return data_[i]; });
  }

 private:
  Execution& run_;
  std::span<const View> tensors_;
  std::vector<void*> data_;
};

}  // namespace blutensor::cuda
