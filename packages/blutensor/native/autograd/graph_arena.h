// Memory of the autograd graph: chunks that are filled from the front and reused as a whole.
//
// A training step builds and drops the whole graph, so after the first step every chunk is warm and no allocation reaches the heap.
// Nodes that a user keeps alive only hold on to their own chunk.
#pragma once

#include <cstdint>
#include <memory_resource>
#include <mutex>
#include <vector>

#include "tensor/fork.h"

namespace blutensor {

class GraphArena final : public std::pmr::memory_resource {
 public:
  static GraphArena& instance();
  uint64_t reserved_bytes() const;
  uint64_t recycled_chunks() const;  // how often a chunk was emptied and used again

 private:
  static constexpr size_t kChunkBytes = size_t{1} << 16;
  struct Chunk;

  void* do_allocate(size_t bytes, size_t alignment) override;
  void do_deallocate(void* p, size_t bytes, size_t alignment) override;
  bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }
  static bool fits_chunk(size_t bytes) { return bytes <= kChunkBytes / 4; }

  mutable ForkMutex mutex_{ForkMutex::Place::graph_arena};
  Chunk* current_ = nullptr;
  std::vector<Chunk*> free_;
  uint64_t num_chunks_ = 0, recycled_ = 0;
};

}  // namespace blutensor
