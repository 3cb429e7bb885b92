// What a pool tells: statistics, histogram, snapshot, the tuned alignment, the out-of-memory report.
#include <algorithm>
#include <bit>
#include <cstdio>
#include <set>
#include <string>

#include "error.h"
#include "pool/oom.h"
#include "pool/pool.h"

using blualloc::Block;
using blualloc::EventCollector;
using blualloc::State;

namespace {

constexpr size_t kMaxSizes = 1 << 16;
// The alignment may cost this part of the bytes asked for: a thousandth of memory is worth fewer different sizes,
// which is what makes a freed block fit the next request exactly.
constexpr uint64_t kWasteShare = 1024;

}  // namespace

blualloc_stats blualloc_pool::stats() {
  const std::lock_guard<std::mutex> lock(mutex_);
  blualloc_stats out{};
  out.live_bytes = live_bytes_;
  out.peak_live_bytes = peak_live_bytes_;
  out.live_block_bytes = live_block_bytes_;
  out.reserved_bytes = reserved_bytes_;
  out.peak_reserved_bytes = peak_reserved_bytes_;
  out.cached_bytes = cached_bytes();
  for (const auto& entry : free_) {
    if (!entry.second.empty()) {
      out.largest_free_bytes = std::max(out.largest_free_bytes, (*entry.second.rbegin())->bytes);
    }
  }
  out.wasted_bytes = live_block_bytes_ - live_bytes_;
  out.num_live = live_.size();
  out.num_allocations = num_allocations_;
  out.num_frees = num_frees_;
  out.num_splits = num_splits_;
  out.num_merges = num_merges_;
  out.num_maps = num_maps_;
  out.num_unmaps = num_unmaps_;
  out.num_event_waits = num_event_waits_;
  out.num_out_of_memory = num_out_of_memory_;
  out.requested_total = requested_total_;
  out.wasted_total = wasted_total_;
  out.alignment = alignment_;
  out.limit_bytes = limit_bytes_;
  out.num_segments = segments_.size();
  return out;
}

void blualloc_pool::reset_peak() {
  const std::lock_guard<std::mutex> lock(mutex_);
  peak_live_bytes_ = live_bytes_;
  peak_reserved_bytes_ = reserved_bytes_;
}

void blualloc_pool::count_size(uint64_t bytes) {
  const auto found = size_counts_.find(bytes);
  if (found != size_counts_.end()) {
    ++found->second;
  } else {
    ++size_counts_[size_counts_.size() < kMaxSizes ? bytes : std::bit_ceil(bytes)];
  }
}

std::vector<blualloc_size_count> blualloc_pool::histogram() {
  std::vector<blualloc_size_count> out;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    out.reserve(size_counts_.size());
    for (const auto& [bytes, count] : size_counts_) {
      out.push_back({bytes, count});
    }
  }
  std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.bytes < b.bytes; });
  return out;
}

blualloc_block_info blualloc_pool::describe(const Block& block) const {
  blualloc_block_info out{};
  const bool live = block.state == State::live;
  out.address = block.address;
  out.stream = live ? block.stream : block.owner.stream;
  out.tag = live ? block.tag : "";
  out.bytes = block.bytes;
  out.requested = live ? block.requested : 0;
  out.sequence = live ? block.sequence : 0;
  out.segment = block.segment->number;
  out.segment_offset = block.offset();
  out.state = static_cast<int32_t>(block.state);
  return out;
}

std::vector<blualloc_block_info> blualloc_pool::snapshot() {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<blualloc_block_info> out;
  for (const blualloc::Segment& segment : segments_) {
    for (const Block* block = segment.first; block != nullptr; block = block->next) {
      out.push_back(describe(*block));
    }
  }
  return out;
}

blualloc_block_info blualloc_pool::find_block(const void* address) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const char* const wanted = static_cast<const char*>(address);
  for (const blualloc::Segment& segment : segments_) {
    if (wanted < segment.base || wanted >= segment.base + segment.bytes) {
      continue;
    }
    const Block* block = segment.first;
    while (wanted >= block->address + block->bytes) {
      block = block->next;
    }
    if (block->state == State::live) {
      return describe(*block);
    }
  }
  char text[32];
  std::snprintf(text, sizeof text, "%p", address);
  blualloc::invalid("[find_block] expected an address inside a live block of pool " + name_ + ", got " + text);
}

// ---- steps ------------------------------------------------------------------------------------------------------

blualloc_step_report blualloc_pool::end_of_step(uint64_t step) {
  EventCollector events;
  const std::lock_guard<std::mutex> lock(mutex_);
  blualloc_step_report report{};
  report.step = step;
  report.alignment_before = alignment_;
  report.requested_total = requested_total_;
  report.peak_live_bytes = step_peak_live_bytes_;
  const uint64_t best = judge_alignments(report);
  if (step == 0) {
    alignment_ = best;
    report.tuned = 1;
    report.returned_bytes = trim_locked(events);
  }
  report.alignment_after = alignment_;
  report.reserved_bytes = reserved_bytes_;
  step_peak_live_bytes_ = live_bytes_;
  return report;
}

uint64_t blualloc_pool::judge_alignments(blualloc_step_report& report) const {
  size_t best = 0;
  for (size_t i = 0; i < BLUALLOC_NUM_ALIGNMENTS; ++i) {
    const uint64_t candidate = device_.min_alignment() << i;
    std::set<uint64_t> sizes;
    uint64_t wasted = 0;
    for (const auto& [bytes, count] : size_counts_) {
      const uint64_t rounded = blualloc::round_up(bytes, candidate);
      sizes.insert(rounded);
      wasted += (rounded - bytes) * count;
    }
    report.candidates[i] = candidate;
    report.wasted[i] = wasted;
    report.distinct_sizes[i] = sizes.size();
    const bool affordable = wasted - report.wasted[0] <= requested_total_ / kWasteShare;
    if (affordable && candidate <= device_.granularity() && report.distinct_sizes[i] < report.distinct_sizes[best]) {
      best = i;
    }
  }
  return report.candidates[best];
}

// ---- out of memory ----------------------------------------------------------------------------------------------

void blualloc_pool::out_of_memory(uint64_t bytes, uint64_t cached, void* stream, const char* tag,
                                  EventCollector& events) {
  ++num_out_of_memory_;
  if (events.active()) [[unlikely]] {
    emit(events, BLUALLOC_EVENT_OUT_OF_MEMORY, nullptr, stream, tag, bytes, 0);
  }
  blualloc_oom_info info{};
  info.requested_bytes = bytes;
  info.live_bytes = live_bytes_;
  info.cached_bytes = cached;
  info.reserved_bytes = reserved_bytes_;
  info.limit_bytes = limit_bytes_;
  if (!device_.memory(info.device_free_bytes, info.device_total_bytes)) {
    info.device_free_bytes = info.device_total_bytes = 0;
  }
  std::snprintf(info.pool_name, sizeof info.pool_name, "%s", name_.c_str());

  struct Share {
    uint64_t bytes = 0;
    uint64_t count = 0;
  };
  std::map<std::string_view, Share> shares;
  for (const auto& entry : live_) {
    Share& share = shares[entry.second->tag];
    share.bytes += entry.second->requested;
    ++share.count;
  }
  std::vector<std::pair<std::string_view, Share>> holders(shares.begin(), shares.end());
  std::stable_sort(holders.begin(), holders.end(),
                   [](const auto& a, const auto& b) { return a.second.bytes > b.second.bytes; });
  holders.resize(std::min<size_t>(holders.size(), BLUALLOC_MAX_HOLDERS));
  for (const auto& [name, share] : holders) {
    blualloc_holder& holder = info.holders[info.num_holders++];
    std::snprintf(holder.tag, sizeof holder.tag, "%.*s", static_cast<int>(name.size()), name.data());
    holder.bytes = share.bytes;
    holder.count = share.count;
  }
  blualloc::throw_out_of_memory(info, tag);
}

void blualloc_pool::emit(EventCollector& events, int32_t kind, void* address, void* stream, const char* tag,
                         uint64_t bytes, uint64_t block_bytes) {
  blualloc_event event{};
  event.struct_size = sizeof event;
  event.kind = kind;
  event.pool = this;
  event.address = address;
  event.stream = stream;
  event.tag = tag;
  event.bytes = bytes;
  event.block_bytes = block_bytes;
  event.sequence = ++event_sequence_;
  event.live_bytes = live_bytes_;
  event.reserved_bytes = reserved_bytes_;
  events.add(event);
}
