// One shard file, mapped read-only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace blutrain {

/// Checks a shard's header against its size; returns its number of tokens. Throws Error.
int64_t shard_num_tokens(const std::string& path);

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
  [[nodiscard]] int64_t num_tokens() const { return num_tokens_; }
  /// Throws Error where the file has become shorter than what is mapped, which could not be read.
  void check_size() const;
  /// tokens: [num_tokens]
  [[nodiscard]] const uint16_t* tokens_view() const;
  /// Tells the kernel that tokens [first, first + count) are wanted soon; returns at once.
  void prefetch(int64_t first, int64_t count) const;

 private:
  std::string path_;
  uint64_t device_ = 0, inode_ = 0;  // of the file that is mapped, whatever the path leads to later
  int64_t num_tokens_ = 0;
  void* mapping_ = nullptr;
  size_t mapped_bytes_ = 0;
};

}  // namespace blutrain
