// The pool: best fit over free blocks ordered by (size, place), split and merged inside segments of address space.
//
// Streams. A free block belongs to the stream that freed it, whose later work runs after everything that used the
// block, so that stream reuses it at once. Events of other streams that used it (record_use) travel with the free
// block; whoever takes it waits for them. A block never moves to another stream on the strength of a query: that would
// make addresses depend on timing. It moves when the pool is at its limit (the taker's stream waits), and when the
// cache, or memory that lies scattered, is given back (the host waits).
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory_resource>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "hooks.h"
#include "pool/block.h"
#include "units.h"

struct blualloc_pool {
 public:
  // `options` is complete (read_sized); `device` was checked.
  blualloc_pool(const blualloc_pool_options& options, blualloc::Device device);
  ~blualloc_pool();
  blualloc_pool(const blualloc_pool&) = delete;
  blualloc_pool& operator=(const blualloc_pool&) = delete;

  void* allocate(uint64_t bytes, void* stream, const char* tag);
  void free(void* address, void* stream);
  void record_use(void* address, void* stream);
  void forget_stream(void* stream);
  void set_tag(void* address, const char* tag);
  void set_limit(uint64_t bytes);
  uint64_t trim();

  blualloc_stats stats();
  void reset_peak();
  std::vector<blualloc_size_count> histogram();
  std::vector<blualloc_block_info> snapshot();
  blualloc_block_info find_block(const void* address);
  blualloc_step_report end_of_step(uint64_t step);

  // Before destruction: throws when blocks are live. Waits for pending work.
  void close(bool force);
  std::mutex& mutex() { return mutex_; }

 private:
  using Block = blualloc::Block;
  using Segment = blualloc::Segment;
  using Owner = blualloc::Owner;
  using FreeBlocks = std::pmr::set<Block*, blualloc::SmallerBlock>;

  // pool.cpp: places and blocks.
  Owner owner_of(void* stream) const;
  Block* find_free(uint64_t bytes, const Owner& owner);
  Block* pick_shuffled(uint64_t bytes, const Owner& owner);
  Block* take(Block* block, uint64_t bytes, void* stream);
  Block* split(Block* block, uint64_t bytes);
  void insert_free(Block* block);
  void remove_free(Block* block);
  Block* merge_neighbours(Block* block);
  void absorb_next(Block* block);
  Block* live_block(void* address, const char* operation);
  Block* new_block();
  void recycle(Block* block);
  const char* tag_of(const char* tag);

  // memory.cpp: segments, mapping, streams.
  Block* grow(uint64_t bytes, const Owner& owner, blualloc::EventCollector& events);
  Block* best_hole(uint64_t bytes, const Owner& owner);
  Block* map_into(Block* hole, uint64_t bytes, const Owner& owner, blualloc::EventCollector& events);
  bool add_segment(uint64_t bytes);
  bool moves_scattered() const;
  uint64_t allowed_bytes(uint64_t bytes) const;
  void give_back_scattered(uint64_t bytes, const Block* hole, blualloc::EventCollector& events);
  uint64_t growth(uint64_t needed) const;
  uint64_t room() const;
  bool has_foreign_blocks(const Owner& owner) const;
  void take_from_other_streams(void* stream);
  void wait_for_all();
  void wait_for_stream(void* stream);
  void wait_for_pending(Block& block);
  void wait_for(Block& block);
  void give_all_to(const Owner& owner);
  uint64_t trim_locked(blualloc::EventCollector& events);
  void release_segment(Block* block, blualloc::EventCollector& events);
  void unmap_inside(Block* block, blualloc::EventCollector& events);

  // report.cpp: what is told.
  [[noreturn]] void out_of_memory(uint64_t bytes, uint64_t cached, void* stream, const char* tag,
                                  blualloc::EventCollector& events);
  uint64_t cached_bytes() const { return reserved_bytes_ - live_block_bytes_; }
  void count_size(uint64_t bytes);
  void emit(blualloc::EventCollector& events, int32_t kind, void* address, void* stream, const char* tag,
            uint64_t bytes, uint64_t block_bytes);
  blualloc_block_info describe(const Block& block) const;
  uint64_t judge_alignments(blualloc_step_report& report) const;  // fills in the candidates; returns the best

  std::mutex mutex_;
  blualloc::Device device_;
  std::string name_;
  uint64_t segment_bytes_;
  uint64_t growth_bytes_;
  uint64_t limit_bytes_;
  uint64_t alignment_;
  std::optional<blualloc::Random> shuffle_;

  std::pmr::unsynchronized_pool_resource nodes_;
  std::list<Segment> segments_;
  std::deque<Block> block_storage_;
  std::vector<Block*> spare_blocks_;
  std::map<Owner, FreeBlocks> free_;
  std::pmr::set<Block*, blualloc::LowerBlock> holes_{&nodes_};
  std::pmr::unordered_map<void*, Block*> live_{&nodes_};
  std::pmr::unordered_map<uint64_t, uint64_t> size_counts_{&nodes_};
  std::pmr::unordered_map<std::string_view, const char*> tags_{&nodes_};  // views of the kept copies
  Block probe_;                                                           // the size that is looked for

  uint64_t live_bytes_ = 0;
  uint64_t peak_live_bytes_ = 0;
  uint64_t step_peak_live_bytes_ = 0;
  uint64_t live_block_bytes_ = 0;
  uint64_t highest_live_block_bytes_ = 0;  // since the cache was last given back
  uint64_t num_moves_ = 0;                 // of scattered blocks, since then
  uint64_t reserved_bytes_ = 0;
  uint64_t peak_reserved_bytes_ = 0;
  uint64_t num_allocations_ = 0;
  uint64_t num_frees_ = 0;
  uint64_t num_splits_ = 0;
  uint64_t num_merges_ = 0;
  uint64_t num_maps_ = 0;
  uint32_t num_segments_made_ = 0;
  uint64_t num_unmaps_ = 0;
  uint64_t num_event_waits_ = 0;
  uint64_t num_out_of_memory_ = 0;
  uint64_t requested_total_ = 0;
  uint64_t wasted_total_ = 0;
  uint64_t num_events_ = 0;      // device events recorded
  uint64_t event_sequence_ = 0;  // hook events
};
