// Where a pool's memory comes from and goes to: segments of address space, mapping, streams waiting for each other.
#include <algorithm>
#include <iterator>

#include "error.h"
#include "pool/pool.h"

using blualloc::Block;
using blualloc::Event;
using blualloc::EventCollector;
using blualloc::EventRef;
using blualloc::Owner;
using blualloc::Segment;
using blualloc::State;

namespace {

constexpr uint64_t kMaxGrowthBytes = 32ull << 20;
constexpr uint64_t kGrowthShare =
    16;  // map at least this part of what is mapped already: the cost of mapping amortises
constexpr uint64_t kShuffleSlack = 256;  // units of the alignment
// Free memory in the wrong places may make up this part of what lived at most, or so many bytes, before the pool moves it
// instead of taking more. Each round of so many moves doubles that, so that no sequence of calls moves memory for ever.
constexpr uint64_t kScatteredShare = 64;
constexpr uint64_t kScatteredBytes = 8ull << 20;
constexpr uint64_t kMovesPerRound = 32;
constexpr uint64_t kMaxRounds = 6;

// A free neighbour that a block for `owner` may extend over.
uint64_t usable_bytes(const Block* neighbour, const Owner& owner) {
  const bool usable =
      neighbour != nullptr && neighbour->state == State::free && (neighbour->owner.none || neighbour->owner == owner);
  return usable ? neighbour->bytes : 0;
}

}  // namespace

// ---- growing ----------------------------------------------------------------------------------------------------

Block* blualloc_pool::grow(uint64_t bytes, const Owner& owner, EventCollector& events) {
  if (shuffle_) {
    const uint64_t slack = shuffle_->below(kShuffleSlack) * device_.min_alignment();
    Block* const hole = best_hole(bytes + slack, owner);
    Block* const block = hole != nullptr ? map_into(hole, bytes + slack, owner, events) : nullptr;
    if (block != nullptr) {
      return block;
    }
  }
  Block* hole = best_hole(bytes, owner);
  if (hole == nullptr) {
    if (bytes > room() || !add_segment(bytes)) {
      return nullptr;
    }
    hole = best_hole(bytes, owner);
  }
  return map_into(hole, bytes, owner, events);
}

// The hole in which the least has to be mapped to get `bytes` in one piece, free neighbours included.
Block* blualloc_pool::best_hole(uint64_t bytes, const Owner& owner) {
  Block* best = nullptr;
  uint64_t least = UINT64_MAX;
  for (Block* hole : holes_) {
    const uint64_t before = usable_bytes(hole->previous, owner);
    uint64_t cost = UINT64_MAX;
    if (before + hole->bytes >= bytes) {
      cost = bytes > before ? bytes - before : 0;
    } else if (before + hole->bytes + usable_bytes(hole->next, owner) >= bytes) {
      cost = hole->bytes;
    }
    if (cost < least) {
      least = cost;
      best = hole;
    }
  }
  return best;
}

Block* blualloc_pool::map_into(Block* hole, uint64_t bytes, const Owner& owner, EventCollector& events) {
  const uint64_t unit = device_.granularity();
  const uint64_t before = usable_bytes(hole->previous, owner);
  const uint64_t missing = bytes > before ? bytes - before : unit;
  const bool is_whole = device_.has_whole_segments();
  const uint64_t needed = is_whole ? hole->bytes : std::min(blualloc::round_up(missing, unit), hole->bytes);
  if (needed > room()) {
    return nullptr;
  }
  uint64_t mapped = std::min({growth(needed), hole->bytes, room()});
  if (moves_scattered()) {
    const uint64_t allowed = allowed_bytes(bytes);
    const uint64_t left = allowed > reserved_bytes_ ? blualloc::round_down(allowed - reserved_bytes_, unit) : 0;
    mapped = std::max(needed, std::min(mapped, left));
    if (mapped > left) {
      give_back_scattered(mapped - left, hole, events);
    }
  }
  if (!device_.map(hole->address, mapped)) {
    if (mapped == needed || !device_.map(hole->address, needed)) {
      return nullptr;
    }
    mapped = needed;
  }
  holes_.erase(hole);
  if (mapped < hole->bytes) {
    holes_.insert(split(hole, mapped));
  }
  ++num_maps_;
  reserved_bytes_ += mapped;
  peak_reserved_bytes_ = std::max(peak_reserved_bytes_, reserved_bytes_);
  if (events.active()) [[unlikely]] {
    emit(events, BLUALLOC_EVENT_MAP, hole->address, nullptr, "", mapped, mapped);
  }
  hole->state = State::free;
  hole->owner = owner;  // not `none`: it must not merge with a free neighbour of another stream
  Block* const block = merge_neighbours(hole);
  insert_free(block);
  return block;
}

bool blualloc_pool::moves_scattered() const {
  return device_.is_asynchronous() && !device_.has_whole_segments() && !shuffle_;
}

// What may be reserved with an allocation of `bytes` before memory moves.
uint64_t blualloc_pool::allowed_bytes(uint64_t bytes) const {
  const uint64_t lived = std::max(highest_live_block_bytes_, live_block_bytes_ + bytes);
  const uint64_t scattered = std::max(lived / kScatteredShare, kScatteredBytes);
  return lived + (scattered << std::min(num_moves_ / kMovesPerRound, kMaxRounds));
}

// Gives back `bytes` of free blocks, the largest first, but not those beside `hole`, which is to be mapped: free memory
// that lies in pieces then serves large allocations without the pool growing. The host waits for the streams that used
// the blocks.
void blualloc_pool::give_back_scattered(uint64_t bytes, const Block* hole, EventCollector& events) {
  const uint64_t target = reserved_bytes_ - std::min(reserved_bytes_, bytes);
  std::vector<Block*> blocks;
  for (const auto& entry : free_) {
    std::copy_if(entry.second.begin(), entry.second.end(), std::back_inserter(blocks), [&](const Block* block) {
      return block != hole->previous && block != hole->next && block->bytes >= device_.granularity();
    });
  }
  std::sort(blocks.begin(), blocks.end(),
            [](const Block* a, const Block* b) { return blualloc::SmallerBlock()(b, a); });
  for (Block* block : blocks) {
    if (reserved_bytes_ <= target) {
      return;
    }
    wait_for(*block);
    unmap_inside(block, events);
    ++num_moves_;
  }
}

// What may still be mapped.
uint64_t blualloc_pool::room() const {
  if (limit_bytes_ == 0) {
    return UINT64_MAX;
  }
  return limit_bytes_ > reserved_bytes_ ? blualloc::round_down(limit_bytes_ - reserved_bytes_, device_.granularity())
                                        : 0;
}

uint64_t blualloc_pool::growth(uint64_t needed) const {
  const uint64_t share = std::min(reserved_bytes_ / kGrowthShare, kMaxGrowthBytes);
  return std::max(needed, blualloc::round_up(std::max(growth_bytes_, share), device_.granularity()));
}

bool blualloc_pool::add_segment(uint64_t bytes) {
  const uint64_t least = blualloc::round_up(bytes, device_.granularity());
  uint64_t size =
      device_.has_whole_segments() ? std::max(std::min(growth(least), room()), least) : std::max(segment_bytes_, least);
  void* base = device_.reserve(size);
  // Address space can be limited (ulimit -v): take what there is, down to what is needed now.
  while (base == nullptr && size > least) {
    size = std::max(blualloc::round_up(size / 2, device_.granularity()), least);
    base = device_.reserve(size);
  }
  if (base == nullptr) {
    return false;
  }
  Block* const hole = new_block();
  segments_.push_back({num_segments_made_++, static_cast<char*>(base), size, hole});
  hole->address = static_cast<char*>(base);
  hole->bytes = size;
  hole->segment = &segments_.back();
  hole->state = State::unmapped;
  holes_.insert(hole);
  return true;
}

// ---- streams ----------------------------------------------------------------------------------------------------

bool blualloc_pool::has_foreign_blocks(const Owner& owner) const {
  return std::any_of(free_.begin(), free_.end(), [&](const auto& entry) {
    return !entry.first.none && !(entry.first == owner) && !entry.second.empty();
  });
}

// `stream` waits for everything that the free blocks of the others may still be used by; then they are its own.
void blualloc_pool::take_from_other_streams(void* stream) {
  const Owner owner = owner_of(stream);
  for (auto& [other, blocks] : free_) {
    if (other == owner || blocks.empty()) {
      continue;
    }
    std::vector<EventRef> events;
    if (!other.none) {
      events.push_back(std::make_shared<Event>(device_, other.stream, ++num_events_));
    }
    for (Block* block : blocks) {
      blualloc::add_pending(events, block->pending);
    }
    for (const EventRef& event : events) {
      if (event->stream != stream) {
        device_.wait_event(stream, event->handle);
        ++num_event_waits_;
      }
    }
    for (Block* block : blocks) {
      block->pending.clear();
    }
  }
  give_all_to(owner);
}

// The host waits until nothing uses a free block any more; then they are nobody's.
void blualloc_pool::wait_for_all() {
  for (auto& [owner, blocks] : free_) {
    if (!owner.none && !blocks.empty()) {
      wait_for_stream(owner.stream);
    }
    for (Block* block : blocks) {
      wait_for_pending(*block);
    }
  }
  give_all_to(Owner{});
}

void blualloc_pool::wait_for_stream(void* stream) {
  const Event event(device_, stream, ++num_events_);
  device_.synchronize_event(event.handle);
}

void blualloc_pool::wait_for_pending(Block& block) {
  for (const EventRef& event : block.pending) {
    device_.synchronize_event(event->handle);
  }
  block.pending.clear();
}

// The host waits until nothing uses this free block any more.
void blualloc_pool::wait_for(Block& block) {
  if (!block.owner.none) {
    wait_for_stream(block.owner.stream);
  }
  wait_for_pending(block);
}

void blualloc_pool::give_all_to(const Owner& owner) {
  for (auto& entry : free_) {
    entry.second.clear();
  }
  for (Segment& segment : segments_) {
    for (Block* block = segment.first; block != nullptr; block = block->next) {
      if (block->state != State::free) {
        continue;
      }
      block->owner = owner;
      while (block->next != nullptr && block->next->state == State::free) {
        block->next->owner = owner;
        absorb_next(block);
        ++num_merges_;
      }
      insert_free(block);
    }
  }
}

void blualloc_pool::forget_stream(void* stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (auto& entry : live_) {
    Block& block = *entry.second;
    std::erase(block.users, stream);
    if (block.owner == Owner{stream, false}) {
      block.owner = Owner{};
    }
  }
  const auto found = free_.find(Owner{stream, false});
  if (found == free_.end()) {
    return;
  }
  // A block that merges with a neighbour of the same stream comes round again.
  while (!found->second.empty()) {
    Block* const block = *found->second.begin();
    remove_free(block);
    block->owner = Owner{};
    insert_free(merge_neighbours(block));
  }
  free_.erase(Owner{stream, false});
}

// ---- giving back ------------------------------------------------------------------------------------------------

uint64_t blualloc_pool::trim() {
  EventCollector events;
  const std::lock_guard<std::mutex> lock(mutex_);
  return trim_locked(events);
}

uint64_t blualloc_pool::trim_locked(EventCollector& events) {
  const uint64_t before = reserved_bytes_;
  if (device_.is_asynchronous()) {
    wait_for_all();
  }
  std::vector<Block*> blocks;
  for (const auto& entry : free_) {
    blocks.insert(blocks.end(), entry.second.begin(), entry.second.end());
  }
  std::sort(blocks.begin(), blocks.end(), blualloc::LowerBlock());
  for (Block* block : blocks) {
    unmap_inside(block, events);
  }
  highest_live_block_bytes_ = live_block_bytes_;
  num_moves_ = 0;
  return before - reserved_bytes_;
}

// Gives a segment back that one free block fills.
void blualloc_pool::release_segment(Block* block, EventCollector& events) {
  Segment* const segment = block->segment;
  device_.release(segment->base, segment->bytes);
  remove_free(block);
  ++num_unmaps_;
  reserved_bytes_ -= segment->bytes;
  if (events.active()) [[unlikely]] {
    emit(events, BLUALLOC_EVENT_UNMAP, block->address, nullptr, "", block->bytes, block->bytes);
  }
  recycle(block);
  segments_.remove_if([&](const Segment& other) { return &other == segment; });
}

// Unmaps what can be unmapped inside a free block; what is left at its ends stays free.
void blualloc_pool::unmap_inside(Block* block, EventCollector& events) {
  if (device_.has_whole_segments()) {
    if (block->bytes == block->segment->bytes) {
      release_segment(block, events);
    }
    return;
  }
  const uint64_t unit = device_.granularity();
  const uint64_t offset = block->offset();
  uint64_t start = blualloc::round_up(offset, unit);
  uint64_t end = blualloc::round_down(offset + block->bytes, unit);
  if (end <= start) {
    return;
  }
  char* address = block->segment->base + start;
  uint64_t bytes = end - start;
  device_.shrink_to_pieces(address, bytes);
  if (bytes == 0) {
    return;
  }
  start = static_cast<uint64_t>(address - block->segment->base);
  end = start + bytes;
  device_.unmap(address, bytes);
  remove_free(block);
  Block* hole = block;
  if (start > offset) {
    hole = split(block, start - offset);
    insert_free(block);
  }
  if (hole->bytes > end - start) {
    insert_free(split(hole, end - start));
  }
  ++num_unmaps_;
  reserved_bytes_ -= end - start;
  if (events.active()) [[unlikely]] {
    emit(events, BLUALLOC_EVENT_UNMAP, hole->address, nullptr, "", end - start, end - start);
  }
  hole->state = State::unmapped;
  hole->owner = Owner{};
  if (hole->previous != nullptr && hole->previous->state == State::unmapped) {
    hole = hole->previous;
    holes_.erase(hole);
    absorb_next(hole);
  }
  if (hole->next != nullptr && hole->next->state == State::unmapped) {
    holes_.erase(hole->next);
    absorb_next(hole);
  }
  holes_.insert(hole);
}

void blualloc_pool::set_limit(uint64_t bytes) {
  EventCollector events;
  const std::lock_guard<std::mutex> lock(mutex_);
  limit_bytes_ = bytes;
  if (bytes != 0 && reserved_bytes_ > bytes) {
    trim_locked(events);
  }
}

void blualloc_pool::close(bool force) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!live_.empty() && !force) {
    const Block* const oldest = std::min_element(live_.begin(), live_.end(), [](const auto& a, const auto& b) {
                                  return a.second->sequence < b.second->sequence;
                                })->second;
    blualloc::invalid("[pool_destroy] expected no live blocks in pool " + name_ + ", got " +
                      std::to_string(live_.size()) + ", the oldest of " + std::to_string(oldest->requested) +
                      " bytes tagged '" + oldest->tag + "'; free them, or destroy with force");
  }
  if (!device_.is_asynchronous()) {
    return;
  }
  for (const auto& entry : live_) {
    if (!entry.second->owner.none) {
      wait_for_stream(entry.second->owner.stream);
    }
    for (void* user : entry.second->users) {
      wait_for_stream(user);
    }
  }
  wait_for_all();
}

blualloc_pool::~blualloc_pool() {
  for (const Segment& segment : segments_) {
    try {
      device_.release(segment.base, segment.bytes);
    } catch (...) {
      // The device refused to take its memory back: nobody is left to tell.
    }
  }
}
