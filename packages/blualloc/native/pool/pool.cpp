// Choosing, splitting and merging blocks. Cost of an allocation or a free: O(log(free blocks)).
#include "pool/pool.h"

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>

#include "error.h"
#include "tags.h"

namespace blualloc {

void add_pending(std::vector<EventRef>& pending, const std::vector<EventRef>& more) {
  for (const EventRef& event : more) {
    const auto same_stream =
        std::find_if(pending.begin(), pending.end(), [&](const EventRef& e) { return e->stream == event->stream; });
    if (same_stream == pending.end()) {
      pending.push_back(event);
    } else if ((*same_stream)->order < event->order) {
      *same_stream = event;
    }
  }
}

}  // namespace blualloc

using blualloc::Block;
using blualloc::Error;
using blualloc::Event;
using blualloc::EventCollector;
using blualloc::EventRef;
using blualloc::Owner;
using blualloc::State;

namespace {

constexpr uint64_t kDefaultSegmentBytes = 64ull << 30;
constexpr uint64_t kDefaultGrowthBytes = 2ull << 20;
// More than any machine has; below it, rounding cannot overflow.
constexpr uint64_t kMaxAllocation = 1ull << 56;
// How many fitting blocks a shuffling pool chooses from.
constexpr int kShuffleChoices = 16;

bool may_merge(const Owner& a, const Owner& b) { return a.none || b.none || a == b; }

}  // namespace

blualloc_pool::blualloc_pool(const blualloc_pool_options& options, blualloc::Device device)
    : device_(std::move(device)),
      name_(options.name != nullptr ? options.name : device_.name()),
      segment_bytes_(options.segment_bytes != 0 ? options.segment_bytes : kDefaultSegmentBytes),
      growth_bytes_(options.growth_bytes != 0 ? options.growth_bytes : kDefaultGrowthBytes),
      limit_bytes_(options.limit_bytes),
      alignment_(options.alignment != 0 ? options.alignment : device_.min_alignment()) {
  if (!blualloc::is_power_of_two(alignment_) || alignment_ < device_.min_alignment() ||
      alignment_ > device_.granularity()) {
    blualloc::invalid("[pool_create] expected alignment to be a power of two from " +
                      std::to_string(device_.min_alignment()) + " to " + std::to_string(device_.granularity()) +
                      ", got " + std::to_string(alignment_));
  }
  if (segment_bytes_ > kMaxAllocation || growth_bytes_ > kMaxAllocation) {
    blualloc::invalid("[pool_create] expected segment_bytes and growth_bytes of at most 2^56, got " +
                      std::to_string(segment_bytes_) + " and " + std::to_string(growth_bytes_));
  }
  segment_bytes_ = blualloc::round_up(segment_bytes_, device_.granularity());
  growth_bytes_ = blualloc::round_up(growth_bytes_, device_.granularity());
  if (options.shuffle_seed != 0) {
    shuffle_.emplace(options.shuffle_seed);
  }
  free_.try_emplace(Owner{}, blualloc::SmallerBlock(), &nodes_);
}

Owner blualloc_pool::owner_of(void* stream) const { return device_.is_asynchronous() ? Owner{stream, false} : Owner{}; }

// ---- allocate ---------------------------------------------------------------------------------------------------

void* blualloc_pool::allocate(uint64_t bytes, void* stream, const char* tag) {
  if (bytes == 0) {
    return nullptr;
  }
  EventCollector events;
  const std::lock_guard<std::mutex> lock(mutex_);
  const char* const kept_tag = tag_of(tag);
  const uint64_t cached_before = cached_bytes();
  Block* block = nullptr;
  if (bytes <= kMaxAllocation) {
    const uint64_t rounded = blualloc::round_up(bytes, alignment_);
    const Owner owner = owner_of(stream);
    const auto find_or_grow = [&] {
      Block* const found = find_free(rounded, owner);
      return found != nullptr ? found : grow(rounded, owner, events);
    };
    block = find_or_grow();
    if (block == nullptr && has_foreign_blocks(owner)) {
      take_from_other_streams(stream);
      block = find_or_grow();
    }
    if (block == nullptr) {
      trim_locked(events);
      block = find_or_grow();
    }
    if (block != nullptr) {
      block = take(block, rounded, stream);
    }
  }
  if (block == nullptr) {
    out_of_memory(bytes, cached_before, stream, kept_tag, events);
  }
  block->requested = bytes;
  block->tag = kept_tag;
  block->sequence = ++num_allocations_;
  live_bytes_ += bytes;
  live_block_bytes_ += block->bytes;
  peak_live_bytes_ = std::max(peak_live_bytes_, live_bytes_);
  step_peak_live_bytes_ = std::max(step_peak_live_bytes_, live_bytes_);
  highest_live_block_bytes_ = std::max(highest_live_block_bytes_, live_block_bytes_);
  requested_total_ += bytes;
  wasted_total_ += block->bytes - bytes;
  count_size(bytes);
  if (events.active()) [[unlikely]] {
    emit(events, BLUALLOC_EVENT_ALLOCATE, block->address, stream, kept_tag, bytes, block->bytes);
  }
  return block->address;
}

Block* blualloc_pool::find_free(uint64_t bytes, const Owner& owner) {
  if (shuffle_) {
    return pick_shuffled(bytes, owner);
  }
  probe_.bytes = bytes;
  Block* best = nullptr;
  const auto consider = [&](const Owner& candidate) {
    const auto blocks = free_.find(candidate);
    if (blocks == free_.end()) {
      return;
    }
    const auto fit = blocks->second.lower_bound(&probe_);
    if (fit != blocks->second.end() && (best == nullptr || blualloc::SmallerBlock()(*fit, best))) {
      best = *fit;
    }
  };
  consider(Owner{});
  if (!owner.none) {
    consider(owner);
  }
  return best;
}

Block* blualloc_pool::pick_shuffled(uint64_t bytes, const Owner& owner) {
  probe_.bytes = bytes;
  std::vector<Block*> choices;
  for (const auto& [candidate, blocks] : free_) {
    if (!candidate.none && !(candidate == owner)) {
      continue;
    }
    auto fit = blocks.lower_bound(&probe_);
    for (int i = 0; i < kShuffleChoices && fit != blocks.end(); ++i, ++fit) {
      choices.push_back(*fit);
    }
  }
  return choices.empty() ? nullptr : choices[shuffle_->below(choices.size())];
}

// Makes `bytes` of a free block live; the rest stays free.
Block* blualloc_pool::take(Block* block, uint64_t bytes, void* stream) {
  for (const EventRef& event : block->pending) {
    if (event->stream != stream && !device_.is_done(event->handle)) {
      device_.wait_event(stream, event->handle);
      ++num_event_waits_;
    }
  }
  remove_free(block);
  if (shuffle_) {
    const uint64_t slack = (block->bytes - bytes) / device_.min_alignment();
    const uint64_t skipped = shuffle_->below(slack + 1) * device_.min_alignment();
    if (skipped != 0) {
      Block* const front = block;
      block = split(front, skipped);
      ++num_splits_;
      insert_free(front);
    }
  }
  if (block->bytes - bytes >= alignment_) {
    insert_free(split(block, bytes));
    ++num_splits_;
  }
  block->pending.clear();
  block->state = State::live;
  block->stream = stream;
  block->owner = owner_of(stream);
  live_.emplace(block->address, block);
  return block;
}

// The block keeps the first `bytes`; returned is the rest, in the same state and in no set.
Block* blualloc_pool::split(Block* block, uint64_t bytes) {
  Block* const rest = new_block();
  rest->address = block->address + bytes;
  rest->bytes = block->bytes - bytes;
  rest->segment = block->segment;
  rest->state = block->state;
  rest->owner = block->owner;
  rest->pending = block->pending;
  rest->previous = block;
  rest->next = block->next;
  if (block->next != nullptr) {
    block->next->previous = rest;
  }
  block->next = rest;
  block->bytes = bytes;
  return rest;
}

// ---- free -------------------------------------------------------------------------------------------------------

void blualloc_pool::free(void* address, void* stream) {
  if (address == nullptr) {
    return;
  }
  EventCollector events;
  const std::lock_guard<std::mutex> lock(mutex_);
  Block* const block = live_block(address, "free");
  std::vector<EventRef> pending;
  if (device_.is_asynchronous()) {
    if (!block->owner.none && block->owner.stream != stream) {
      pending.push_back(std::make_shared<Event>(device_, block->owner.stream, ++num_events_));
    }
    for (void* user : block->users) {
      if (user != stream && !(block->owner == Owner{user, false})) {
        pending.push_back(std::make_shared<Event>(device_, user, ++num_events_));
      }
    }
  }
  live_.erase(address);
  ++num_frees_;
  live_bytes_ -= block->requested;
  live_block_bytes_ -= block->bytes;
  if (events.active()) [[unlikely]] {
    emit(events, BLUALLOC_EVENT_FREE, address, stream, block->tag, block->requested, block->bytes);
  }
  block->state = State::free;
  block->owner = owner_of(stream);
  block->pending = std::move(pending);
  block->users.clear();
  insert_free(merge_neighbours(block));
}

// The block is in no set; nor is the result.
Block* blualloc_pool::merge_neighbours(Block* block) {
  Block* const previous = block->previous;
  if (previous != nullptr && previous->state == State::free && may_merge(previous->owner, block->owner)) {
    remove_free(previous);
    absorb_next(previous);
    ++num_merges_;
    block = previous;
  }
  Block* const next = block->next;
  if (next != nullptr && next->state == State::free && may_merge(block->owner, next->owner)) {
    remove_free(next);
    absorb_next(block);
    ++num_merges_;
  }
  return block;
}

void blualloc_pool::absorb_next(Block* block) {
  Block* const next = block->next;
  block->bytes += next->bytes;
  if (block->owner.none) {
    block->owner = next->owner;
  }
  add_pending(block->pending, next->pending);
  block->next = next->next;
  if (next->next != nullptr) {
    next->next->previous = block;
  }
  recycle(next);
}

void blualloc_pool::record_use(void* address, void* stream) {
  if (address == nullptr) {
    return;
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  Block* const block = live_block(address, "record_use");
  if (std::find(block->users.begin(), block->users.end(), stream) == block->users.end()) {
    block->users.push_back(stream);
  }
}

void blualloc_pool::set_tag(void* address, const char* tag) {
  if (address == nullptr) {
    return;
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  live_block(address, "set_tag")->tag = tag_of(tag);
}

// ---- bookkeeping ------------------------------------------------------------------------------------------------

void blualloc_pool::insert_free(Block* block) {
  free_.try_emplace(block->owner, blualloc::SmallerBlock(), &nodes_).first->second.insert(block);
}

void blualloc_pool::remove_free(Block* block) { free_.find(block->owner)->second.erase(block); }

Block* blualloc_pool::live_block(void* address, const char* operation) {
  const auto found = live_.find(address);
  if (found == live_.end()) {
    char text[32];
    std::snprintf(text, sizeof text, "%p", address);
    blualloc::invalid("[" + std::string(operation) + "] expected the start of a live block of pool " + name_ +
                      ", got " + text + "; it was freed already, or never came from this pool");
  }
  return found->second;
}

Block* blualloc_pool::new_block() {
  if (spare_blocks_.empty()) {
    Block* const block = &block_storage_.emplace_back();
    if (spare_blocks_.capacity() < block_storage_.size()) {
      spare_blocks_.reserve(2 * block_storage_.size());  // so that recycle never allocates
    }
    return block;
  }
  Block* const block = spare_blocks_.back();
  spare_blocks_.pop_back();
  return block;
}

void blualloc_pool::recycle(Block* block) {
  *block = Block();
  spare_blocks_.push_back(block);
}

const char* blualloc_pool::tag_of(const char* tag) {
  if (tag == nullptr) {
    return "untagged";
  }
  const auto found = tags_.find(tag);
  if (found != tags_.end()) {
    return found->second;
  }
  const char* const kept = blualloc::intern_tag(tag);
  if (std::string_view(kept) == tag) {
    tags_.emplace(kept, kept);
  }
  return kept;
}
