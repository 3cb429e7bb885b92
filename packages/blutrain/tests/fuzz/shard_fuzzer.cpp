// Shards and loaders made of arbitrary bytes: only the documented statuses come out, nothing is read or written out of bounds,
// and what a batch holds are the tokens of the files.
//
// An input is a recipe, so that a mutation seldom touches the zeros that fill a header:
//
//     Recipe (packed, missing bytes are 0), then the tokens' bytes of the shards, cut at `cuts`
//
// Files live in memory (memfd), so a run touches no disk. Built with BLU_FUZZ it is a libFuzzer target; otherwise replay.cpp
// drives it.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <list>
#include <string>
#include <vector>

#include "blutrain/blutrain.h"

namespace {

constexpr int kMaxShards = 3;
constexpr size_t kMaxSlot = 4096;  // elements; larger batches are created and never filled
constexpr int kBatches = 4;

#define CHECK(condition)                                                   \
  do {                                                                     \
    if (!(condition)) {                                                    \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                        \
    }                                                                      \
  } while (false)

enum Flags : uint8_t { kShuffle = 1, kOnePass = 2, kHonestCount = 4, kForeignState = 8, kAddedTail = 16 };

#pragma pack(push, 1)
struct Recipe {
  uint8_t flags;
  uint8_t num_shards;
  uint16_t cuts[kMaxShards - 1];  // bytes of the first shards
  uint16_t header_bytes;          // where the header ends early; 0: it does not
  int32_t header[4];              // xored into that of an honest shard
  int64_t batch, context, rank, world, vocabulary;
  uint64_t seed;
  int64_t state[BLUTRAIN_LOADER_STATE_SIZE];  // xored into the loader's own
};
#pragma pack(pop)

/// A file of the given bytes, without a name.
class MemoryFile {
 public:
  explicit MemoryFile(const std::vector<uint8_t>& bytes) : descriptor_(::memfd_create("shard", MFD_CLOEXEC)) {
    CHECK(descriptor_ >= 0);
    CHECK(::write(descriptor_, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
    path_ = "/proc/self/fd/" + std::to_string(descriptor_);
  }
  ~MemoryFile() { ::close(descriptor_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  int descriptor_;
  std::string path_;
};

std::vector<uint8_t> shard_bytes(const Recipe& recipe, const uint8_t* tokens, size_t size) {
  const bool honest = (recipe.flags & kHonestCount) != 0;
  std::array<int32_t, 256> header{BLUTRAIN_SHARD_MAGIC, BLUTRAIN_SHARD_VERSION, static_cast<int32_t>(size / 2)};
  for (int i = 0; i < 4 && !honest; ++i) header[static_cast<size_t>(i)] ^= recipe.header[i];
  std::vector<uint8_t> bytes(sizeof header);
  std::memcpy(bytes.data(), header.data(), sizeof header);
  if (recipe.header_bytes != 0) bytes.resize(std::min<size_t>(recipe.header_bytes, bytes.size()));
  bytes.insert(bytes.end(), tokens, tokens + (honest ? size / 2 * 2 : size));
  return bytes;
}

bool is_documented(int32_t status) {
  return status == BLUTRAIN_OK || status == BLUTRAIN_INVALID_VALUE || status == BLUTRAIN_IO_ERROR ||
         status == BLUTRAIN_INDEX_OUT_OF_RANGE;
}

/// Every row is a window of the stream, its targets one token further on, and what is past the end is marked so.
void check_row(const std::vector<uint32_t>& stream, const int32_t* tokens, const int32_t* targets, int64_t context) {
  int64_t valid = 0;
  while (valid < context && targets[valid] != BLUTRAIN_IGNORED_TARGET) ++valid;
  for (int64_t i = valid; i < context; ++i) CHECK(tokens[i] == 0 && targets[i] == BLUTRAIN_IGNORED_TARGET);
  if (valid == 0) return;
  const auto begins_at = [&](size_t at) {
    for (int64_t i = 0; i < valid; ++i) {
      const size_t place = at + static_cast<size_t>(i);
      if (static_cast<int64_t>(stream[place]) != tokens[i] || static_cast<int64_t>(stream[place + 1]) != targets[i])
        return false;
    }
    return true;
  };
  bool found = false;
  for (size_t at = 0; !found && at + static_cast<size_t>(valid) < stream.size(); ++at) found = begins_at(at);
  CHECK(found);
}

void read_batches(blutrain_loader* loader, const blutrain_loader_options& options,
                  const std::vector<uint32_t>& stream) {
  if (options.batch > static_cast<int64_t>(kMaxSlot) / options.context) return;
  const auto elements = static_cast<size_t>(options.batch * options.context);
  // Apart and of the exact size, so that AddressSanitizer sees a write past the end.
  std::vector<int32_t> tokens(elements), targets(elements);
  void* slots[] = {tokens.data(), targets.data()};
  for (int i = 0; i < kBatches; ++i) {
    const int32_t status = blutrain_loader_next(loader, slots, 2);
    CHECK(is_documented(status));
    if (status != BLUTRAIN_OK) {
      CHECK(blutrain_loader_error(loader)[0] == '[');
      return;
    }
    for (int64_t row = 0; row < options.batch; ++row)
      check_row(stream, tokens.data() + row * options.context, targets.data() + row * options.context, options.context);
    blutrain_loader_info info{};
    info.struct_size = sizeof info;
    CHECK(blutrain_loader_get_info(loader, &info) == BLUTRAIN_OK);
    CHECK(info.num_tokens == static_cast<int64_t>(stream.size()) && info.position >= 0 && info.epoch >= 0);
  }
}

void use_loader(blutrain_loader* loader, const Recipe& recipe, const blutrain_loader_options& options,
                const std::vector<uint32_t>& stream) {
  read_batches(loader, options, stream);
  int64_t state[BLUTRAIN_LOADER_STATE_SIZE];
  CHECK(blutrain_loader_get_state(loader, state, BLUTRAIN_LOADER_STATE_SIZE) == BLUTRAIN_OK);
  if ((recipe.flags & kForeignState) != 0)
    for (int i = 0; i < BLUTRAIN_LOADER_STATE_SIZE; ++i) state[i] ^= recipe.state[i];
  const int32_t status = blutrain_loader_set_state(loader, state, BLUTRAIN_LOADER_STATE_SIZE);
  CHECK(is_documented(status));
  read_batches(loader, options, stream);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Recipe recipe{};
  if (size != 0) std::memcpy(&recipe, data, std::min(size, sizeof recipe));  // without input, data may be null
  const uint8_t* rest = data + std::min(size, sizeof recipe);
  size_t left = size - std::min(size, sizeof recipe);

  const int num_shards = 1 + recipe.num_shards % kMaxShards;
  std::vector<std::vector<uint8_t>> contents;
  for (int i = 0; i < num_shards; ++i) {
    const size_t part = i + 1 < num_shards ? std::min<size_t>(recipe.cuts[i], left) : left;
    contents.push_back(shard_bytes(recipe, rest, part));
    rest += part;
    left -= part;
  }
  if ((recipe.flags & kAddedTail) != 0) contents.back().push_back(7);

  std::list<MemoryFile> files;
  std::vector<uint32_t> stream;
  std::vector<const char*> paths;
  for (const std::vector<uint8_t>& bytes : contents) {
    const MemoryFile& file = files.emplace_back(bytes);
    paths.push_back(file.path().c_str());
    int64_t num_tokens = -1;
    const int32_t status = blutrain_shard_num_tokens(paths.back(), &num_tokens);
    CHECK(is_documented(status));
    if (status != BLUTRAIN_OK) {
      CHECK(blutrain_last_error()[0] == '[');
      continue;
    }
    int64_t token_bytes = 0;
    CHECK(blutrain_shard_token_bytes(paths.back(), &token_bytes) == BLUTRAIN_OK);
    CHECK(token_bytes == 2 || token_bytes == 4);
    const auto count = static_cast<size_t>(num_tokens), width = static_cast<size_t>(token_bytes);
    CHECK(num_tokens > 0 && bytes.size() == BLUTRAIN_SHARD_HEADER_BYTES + width * count);
    const uint8_t* source = bytes.data() + BLUTRAIN_SHARD_HEADER_BYTES;
    for (size_t i = 0; i < count; ++i, source += width) {
      uint32_t token = 0;  // little-endian, as the file
      std::memcpy(&token, source, width);
      stream.push_back(token);
    }
  }

  blutrain_loader_options options{};
  options.struct_size = sizeof options;
  options.shuffle = (recipe.flags & kShuffle) != 0;
  options.one_pass = (recipe.flags & kOnePass) != 0;
  options.batch = recipe.batch;
  options.context = recipe.context;
  options.rank = recipe.rank;
  options.world = recipe.world;
  options.vocabulary = recipe.vocabulary;
  options.seed = recipe.seed;
  blutrain_loader* loader = nullptr;
  const int32_t status = blutrain_loader_create(paths.data(), num_shards, &options, &loader);
  CHECK(is_documented(status) && (status == BLUTRAIN_OK) == (loader != nullptr));
  if (status == BLUTRAIN_OK) use_loader(loader, recipe, options, stream);
  blutrain_loader_destroy(loader);
  return 0;
}
