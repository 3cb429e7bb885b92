// Blocks: consecutive pieces of a segment's address space, live, free or without memory behind them.
#pragma once

#include <cstdint>
#include <vector>

#include "device/device.h"

namespace blualloc {

struct Segment {
  uint32_t number;
  char* base;
  uint64_t bytes;
  struct Block* first;
};

// Whose work may still be using a free block. On a device that completes work at once every stream is `none`.
struct Owner {
  void* stream = nullptr;
  bool none = true;  // nobody's: any stream may take the block at once

  bool operator==(const Owner& other) const { return none == other.none && (none || stream == other.stream); }
  bool operator<(const Owner& other) const {
    return none != other.none
               ? none
               : !none && reinterpret_cast<uintptr_t>(stream) < reinterpret_cast<uintptr_t>(other.stream);
  }
};

enum class State : int32_t {
  live = BLUALLOC_BLOCK_LIVE,
  free = BLUALLOC_BLOCK_FREE,
  unmapped = BLUALLOC_BLOCK_UNMAPPED,
};

struct Block {
  char* address = nullptr;
  uint64_t bytes = 0;
  Segment* segment = nullptr;
  Block* previous = nullptr;  // neighbours by address within the segment
  Block* next = nullptr;
  State state = State::unmapped;

  // Live.
  void* stream = nullptr;
  uint64_t requested = 0;
  uint64_t sequence = 0;
  const char* tag = "";
  std::vector<void*> users;  // other streams that use it (record_use)

  // Free.
  Owner owner;
  std::vector<EventRef> pending;  // events on other streams that the next user has to wait for

  uint64_t offset() const { return static_cast<uint64_t>(address - segment->base); }
  uint32_t segment_number() const { return segment != nullptr ? segment->number : 0; }
};

// Places are compared by segment number and address within it, so that the order is the same in every process.
struct LowerBlock {
  bool operator()(const Block* a, const Block* b) const {
    return a->segment_number() != b->segment_number() ? a->segment_number() < b->segment_number()
                                                      : a->address < b->address;
  }
};

// By size, then place: the first that is not less than a wanted size is the best fit.
struct SmallerBlock {
  bool operator()(const Block* a, const Block* b) const {
    return a->bytes != b->bytes ? a->bytes < b->bytes : LowerBlock()(a, b);
  }
};

// Adds events, keeping per stream the latest only: it covers those before it.
void add_pending(std::vector<EventRef>& pending, const std::vector<EventRef>& more);

}  // namespace blualloc
