// The loader: which windows of the stream make up a batch, and copying them.
//
// The stream is cut into windows of T inputs; the targets are the same tokens one further on, so neighbouring windows share one
// token and every target occurs once an epoch. With shuffling, the (N - 1) mod T tokens that make no window are left out at a
// place drawn from (seed, epoch), at most T - 1 of them, and the windows are visited in an order drawn from (seed, epoch).
// Bytes: 2 or 4 read and 8 written per token.
#include "loader.h"

#include <algorithm>

#include "error.h"
#include "permutation.h"

namespace blutrain {
namespace {

constexpr int64_t kStateLayout = 1;
constexpr int64_t kMaxExtent = int64_t{1} << 31;

void require(bool condition, const std::string& message) {
  if (!condition) throw Error(BLUTRAIN_INVALID_VALUE, "[loader] " + message);
}

uint64_t epoch_key(uint64_t seed, int64_t epoch, uint64_t purpose) {
  return mix(seed ^ mix(static_cast<uint64_t>(epoch) * 4 + purpose));
}

}  // namespace

Loader::Loader(const std::vector<std::string>& paths, const blutrain_loader_options& options) : options_(options) {
  require(!paths.empty(), "expected at least 1 shard, got none");
  require(options.batch >= 1 && options.batch < kMaxExtent,
          "expected batch >= 1, got " + std::to_string(options.batch));
  require(options.context >= 1 && options.context < kMaxExtent,
          "expected context >= 1, got " + std::to_string(options.context));
  require(options.world >= 1 && options.world < kMaxExtent,
          "expected world >= 1, got " + std::to_string(options.world));
  require(options.rank >= 0 && options.rank < options.world,
          "expected 0 <= rank < " + std::to_string(options.world) + ", got " + std::to_string(options.rank));
  require(options.vocabulary >= 1, "expected vocabulary >= 1, got " + std::to_string(options.vocabulary));
  require(options.shuffle == 0 || options.one_pass == 0, "expected shuffle or one_pass, got both");
  shards_.reserve(paths.size());
  for (const std::string& path : paths) {
    shard_begin_.push_back(num_tokens_);
    num_tokens_ += shards_.emplace_back(path).num_tokens();
  }
  shard_begin_.push_back(num_tokens_);
  const int64_t targets = num_tokens_ - 1;
  num_windows_ = options.one_pass != 0 ? (targets + options.context - 1) / options.context : targets / options.context;
  require(num_windows_ >= 1, "expected more than " + std::to_string(options.one_pass != 0 ? 1 : options.context) +
                                 " tokens for a context of " + std::to_string(options.context) + ", got " +
                                 std::to_string(num_tokens_) + " in " + std::to_string(paths.size()) +
                                 " shard(s) from " + paths.front() + "; prepare more text or lower the context");
}

Loader::Cursor Loader::advanced(Cursor from, int64_t windows) const {
  from.position += windows;
  if (options_.one_pass == 0) {
    from.epoch += from.position / num_windows_;
    from.position %= num_windows_;
  } else {
    from.position = std::min(from.position, num_windows_);
  }
  return from;
}

int64_t Loader::window_begin(Cursor at) const {
  if (at.position >= num_windows_) return -1;
  if (options_.shuffle == 0) return at.position * options_.context;
  const auto spare = static_cast<uint64_t>(num_tokens_ - 1 - num_windows_ * options_.context);
  const auto shift = static_cast<int64_t>(epoch_key(options_.seed, at.epoch, 0) % (spare + 1));
  const uint64_t window = permute(static_cast<uint64_t>(at.position), static_cast<uint64_t>(num_windows_),
                                  epoch_key(options_.seed, at.epoch, 1));
  return shift + static_cast<int64_t>(window) * options_.context;
}

size_t Loader::shard_of(int64_t token) const {
  const auto after = std::upper_bound(shard_begin_.begin(), shard_begin_.end() - 1, token);
  return static_cast<size_t>(after - shard_begin_.begin()) - 1;
}

void Loader::copy_tokens(int64_t begin, int64_t count, int32_t* values) const {
  for (size_t shard = shard_of(begin); count > 0; ++shard) {
    const int64_t first = begin - shard_begin_[shard];
    const int64_t length = std::min(count, shard_begin_[shard + 1] - begin);
    shards_[shard].check_size();
    const uint32_t largest = shards_[shard].copy(first, length, values);
    if (largest >= std::min(options_.vocabulary, kMaxExtent)) {
      const int64_t at = std::find(values, values + length, static_cast<int32_t>(largest)) - values + first;
      throw Error(BLUTRAIN_INDEX_OUT_OF_RANGE,
                  "[loader] " + shards_[shard].path() + ": expected tokens below the vocabulary of " +
                      std::to_string(options_.vocabulary) + ", got " + std::to_string(largest) + " at position " +
                      std::to_string(at) +
                      "; it was prepared with another tokenizer: prepare it again or set model.vocab_size");
    }
    values += length;
    begin += length;
    count -= length;
  }
}

void Loader::fill_row(int64_t begin, int32_t* tokens, int32_t* targets) const {
  const int64_t context = options_.context;
  const int64_t valid = begin < 0 ? 0 : std::min(context, num_tokens_ - 1 - begin);
  if (valid > 0) {
    copy_tokens(begin, valid, tokens);
    copy_tokens(begin + valid, 1, targets + valid - 1);
    std::copy(tokens + 1, tokens + valid, targets);
  }
  std::fill(tokens + valid, tokens + context, 0);
  std::fill(targets + valid, targets + context, BLUTRAIN_IGNORED_TARGET);
}

void Loader::next(int32_t* tokens, int32_t* targets) {
  const int64_t context = options_.context;
  for (int64_t row = 0; row < options_.batch; ++row) {
    const Cursor at = advanced(cursor_, options_.rank * options_.batch + row);
    fill_row(window_begin(at), tokens + row * context, targets + row * context);
  }
  cursor_ = advanced(cursor_, options_.world * options_.batch);
  prefetch_next();
}

void Loader::prefetch_next() const {
  for (int64_t row = 0; row < options_.batch; ++row) {
    const int64_t begin = window_begin(advanced(cursor_, options_.rank * options_.batch + row));
    if (begin < 0) return;
    const size_t shard = shard_of(begin);
    const int64_t first = begin - shard_begin_[shard];
    shards_[shard].prefetch(first, std::min(options_.context + 1, shards_[shard].num_tokens() - first));
  }
}

blutrain_loader_info Loader::info() const {
  blutrain_loader_info info{};
  info.struct_size = sizeof info;
  info.num_tokens = num_tokens_;
  info.num_windows = num_windows_;
  info.epoch = cursor_.epoch;
  info.position = cursor_.position;
  const int64_t begin = window_begin(cursor_);
  const size_t shard = begin < 0 ? shards_.size() : shard_of(begin);
  info.shard = static_cast<int64_t>(shard);
  info.offset = begin < 0 ? 0 : begin - shard_begin_[shard];
  return info;
}

void Loader::get_state(int64_t* state) const {
  const int64_t values[BLUTRAIN_LOADER_STATE_SIZE] = {kStateLayout,     cursor_.epoch,
                                                      cursor_.position, num_tokens_,
                                                      options_.context, static_cast<int64_t>(options_.seed),
                                                      options_.shuffle, options_.one_pass};
  std::copy(std::begin(values), std::end(values), state);
}

void Loader::set_state(const int64_t* state) {
  static constexpr const char* names[] = {"layout",  "epoch", "position", "number of tokens",
                                          "context", "seed",  "shuffle",  "one_pass"};
  int64_t own[BLUTRAIN_LOADER_STATE_SIZE];
  get_state(own);
  for (int i = 0; i < BLUTRAIN_LOADER_STATE_SIZE; ++i) {
    if (i == 1 || i == 2) continue;
    require(state[i] == own[i], "the saved position is for another " + std::string(names[i]) + ": it has " +
                                    std::to_string(state[i]) + ", this loader " + std::to_string(own[i]) +
                                    "; resume with the data and settings that the run began with");
  }
  const int64_t end = options_.one_pass != 0 ? num_windows_ + 1 : num_windows_;
  require(state[1] >= 0 && state[2] >= 0 && state[2] < end,
          "expected a position of epoch >= 0 and 0 <= window < " + std::to_string(end) + ", got epoch " +
              std::to_string(state[1]) + ", window " + std::to_string(state[2]));
  cursor_ = {state[1], state[2]};
}

}  // namespace blutrain
