// The cursor over the token stream. Legend in blutrain.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "blutrain/blutrain.h"
#include "shard.h"

namespace blutrain {

class Loader {
 public:
  /// Maps every shard. Throws Error.
  Loader(const std::vector<std::string>& paths, const blutrain_loader_options& options);

  /// tokens, targets: [B, T]. Throws Error and then has not moved.
  void next(int32_t* tokens, int32_t* targets);

  [[nodiscard]] blutrain_loader_info info() const;
  void get_state(int64_t* state) const;
  void set_state(const int64_t* state);

  std::string last_error;

 private:
  struct Cursor {
    int64_t epoch = 0;
    int64_t position = 0;
  };

  /// The cursor `windows` further on.
  [[nodiscard]] Cursor advanced(Cursor from, int64_t windows) const;
  /// First token of a window in the stream, or -1 past the end of a single pass.
  [[nodiscard]] int64_t window_begin(Cursor at) const;
  [[nodiscard]] size_t shard_of(int64_t token) const;
  void fill_row(int64_t begin, int32_t* tokens, int32_t* targets) const;
  /// values[0, count) = tokens of the stream from `begin`, which may cross shards.
  void copy_tokens(int64_t begin, int64_t count, int32_t* values) const;
  void prefetch_next() const;

  blutrain_loader_options options_;
  std::vector<Shard> shards_;
  std::vector<int64_t> shard_begin_;  // [shards + 1]: first token of each shard in the stream, then N
  int64_t num_tokens_ = 0;
  int64_t num_windows_ = 0;
  Cursor cursor_;
};

}  // namespace blutrain
