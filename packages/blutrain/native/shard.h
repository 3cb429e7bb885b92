// One shard file, mapped read-only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace blutrain {

/// What a shard's header says.
struct ShardHeader {
  int64_t num_tokens = 0;
  int64_t token_bytes = 0;  // 2 or 4
};

/// Checks a shard's header against its size. Throws Error.
ShardHeader shard_header(const std::string& path);

/// Owns the mapping of one shard.
class Shard {
 public:
  /// Maps the file after checking its header. Throws Error.
  explicit Shard(const std::string& path);
  ~Shard();
  Shard(Shard&& other) noexcept;
  Shard(const Shard&) = delete;
  Shard& operator=(const Shard&) = delete;
  Shard& operator=(Shard&&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] int64_t num_tokens() const { return header_.num_tokens; }
  /// Throws Error where the file has become shorter than what is mapped, which could not be read.
  void check_size() const;
  /// Copies tokens [first, first + count) to values; returns the largest of them, of which `values` has the low 32 bits.
  uint32_t copy(int64_t first, int64_t count, int32_t* values) const;
  /// Tells the kernel that tokens [first, first + count) are wanted soon; returns at once.
  void prefetch(int64_t first, int64_t count) const;

 private:
  std::string path_;
  uint64_t device_ = 0, inode_ = 0;  // of the file that is mapped, whatever the path leads to later
  ShardHeader header_;
  void* mapping_ = nullptr;
  size_t mapped_bytes_ = 0;
};

}  // namespace blutrain
