#include "autograd/graph_arena.h"

#include <new>

namespace blutensor {

// Chunks are aligned to their size, so the chunk of an address is found by masking.
struct GraphArena::Chunk {
  size_t used = sizeof(Chunk);
  int64_t live = 0;
};

GraphArena& GraphArena::instance() {
  static auto& arena = *new GraphArena;  // graphs may outlive static destruction
  return arena;
}

uint64_t GraphArena::reserved_bytes() const {
  const std::lock_guard lock(mutex_);
  return num_chunks_ * kChunkBytes;
}

uint64_t GraphArena::recycled_chunks() const {
  const std::lock_guard lock(mutex_);
  return recycled_;
}

void* GraphArena::do_allocate(size_t bytes, size_t alignment) {
  if (!fits_chunk(bytes)) return ::operator new(bytes, std::align_val_t{alignment});
  const std::lock_guard lock(mutex_);
  const auto aligned = [&](size_t at) { return (at + alignment - 1) / alignment * alignment; };
  if (!current_ || aligned(current_->used) + bytes > kChunkBytes) {
    if (current_ && current_->live == 0) {
      current_->used = sizeof(Chunk);
      ++recycled_;
    } else if (!free_.empty()) {
      current_ = free_.back();
      free_.pop_back();
      ++recycled_;
    } else {
      current_ = new (::operator new(kChunkBytes, std::align_val_t{kChunkBytes})) Chunk;
      ++num_chunks_;
    }
  }
  const size_t at = aligned(current_->used);
  current_->used = at + bytes;
  ++current_->live;
  return reinterpret_cast<char*>(current_) + at;
}

void GraphArena::do_deallocate(void* p, size_t bytes, size_t alignment) {
  if (!fits_chunk(bytes)) return ::operator delete(p, std::align_val_t{alignment});
  const std::lock_guard lock(mutex_);
  auto* chunk = reinterpret_cast<Chunk*>(reinterpret_cast<uintptr_t>(p) & ~uintptr_t{kChunkBytes - 1});
  if (--chunk->live == 0 && chunk != current_) {
    chunk->used = sizeof(Chunk);
    free_.push_back(chunk);
  }
}

}  // namespace blutensor
