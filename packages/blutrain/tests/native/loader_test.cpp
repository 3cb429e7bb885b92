// The loader below its C interface and at it: permutations, windows over shard and epoch ends, ranks, positions, errors.
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "blutrain/blutrain.h"
#include "permutation.h"

namespace {

int failures = 0;

#define CHECK(condition)                                                   \
  do {                                                                     \
    if (!(condition)) {                                                    \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
      ++failures;                                                          \
    }                                                                      \
  } while (false)

template <class Token = uint16_t>
std::string write_shard(const std::filesystem::path& path, int64_t first, int count, int claimed) {
  constexpr bool kWide = sizeof(Token) == 4;
  std::vector<int32_t> header(256, 0);
  header[0] = kWide ? BLUTRAIN_SHARD_MAGIC_32 : BLUTRAIN_SHARD_MAGIC;
  header[1] = kWide ? BLUTRAIN_SHARD_VERSION_32 : BLUTRAIN_SHARD_VERSION;
  header[2] = claimed;
  std::vector<Token> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(static_cast<Token>(first + i));
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(header.data()), static_cast<std::streamsize>(header.size() * 4));
  file.write(reinterpret_cast<const char*>(tokens.data()), static_cast<std::streamsize>(tokens.size() * sizeof(Token)));
  return path.string();
}

struct Handle {
  blutrain_loader* loader = nullptr;
  int32_t status = 0;
  Handle(const std::vector<std::string>& paths, blutrain_loader_options options) {
    std::vector<const char*> names;
    for (const auto& path : paths) names.push_back(path.c_str());
    status = blutrain_loader_create(names.data(), static_cast<int64_t>(names.size()), &options, &loader);
  }
  ~Handle() { blutrain_loader_destroy(loader); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
};

blutrain_loader_options options_of(int64_t batch, int64_t context) {
  blutrain_loader_options options{};
  options.struct_size = sizeof options;
  options.batch = batch;
  options.context = context;
  options.world = 1;
  options.vocabulary = 65536;
  options.seed = 7;
  return options;
}

/// The next batch's tokens, after checking that the targets follow them.
std::vector<int32_t> next(const Handle& handle, int64_t batch, int64_t context) {
  std::vector<int32_t> tokens(static_cast<size_t>(batch * context)), targets(tokens.size());
  void* slots[] = {tokens.data(), targets.data()};
  CHECK(blutrain_loader_next(handle.loader, slots, 2) == BLUTRAIN_OK);
  for (size_t i = 0; i < tokens.size(); ++i) CHECK(targets[i] == tokens[i] + 1);
  return tokens;
}

void test_permutation() {
  for (const uint64_t size : {1, 2, 3, 4, 5, 16, 17, 255, 256, 257, 1000}) {
    for (const uint64_t key : {0, 1, 99}) {
      std::set<uint64_t> seen;
      for (uint64_t i = 0; i < size; ++i) seen.insert(blutrain::permute(i, size, key));
      CHECK(seen.size() == size && *seen.rbegin() == size - 1);
    }
  }
}

void test_order(const std::vector<std::string>& shards) {
  // 25 tokens, 24 targets: 8 windows of 3 an epoch, in order and over both shard ends.
  const Handle handle(shards, options_of(5, 3));
  CHECK(handle.status == BLUTRAIN_OK);
  std::vector<int32_t> all;
  for (int i = 0; i < 2; ++i) {
    const auto batch = next(handle, 5, 3);
    all.insert(all.end(), batch.begin(), batch.end());
  }
  for (int i = 0; i < 30; ++i) CHECK(all[static_cast<size_t>(i)] == 100 + i % 24);
  blutrain_loader_info info{};
  info.struct_size = sizeof info;
  CHECK(blutrain_loader_get_info(handle.loader, &info) == BLUTRAIN_OK);
  CHECK(info.epoch == 1 && info.position == 2 && info.num_windows == 8 && info.num_tokens == 25);
  CHECK(info.shard == 0 && info.offset == 6);
}

void test_resume_and_ranks(const std::vector<std::string>& shards) {
  auto options = options_of(4, 3);
  options.shuffle = 1;
  const Handle whole(shards, options);
  options.batch = 2;
  options.world = 2;
  const Handle first(shards, options);
  options.rank = 1;
  const Handle second(shards, options);
  CHECK(whole.status == 0 && first.status == 0 && second.status == 0);
  for (int step = 0; step < 9; ++step) {
    int64_t state[BLUTRAIN_LOADER_STATE_SIZE];
    CHECK(blutrain_loader_get_state(whole.loader, state, BLUTRAIN_LOADER_STATE_SIZE) == BLUTRAIN_OK);
    const auto expected = next(whole, 4, 3);
    auto halves = next(first, 2, 3);
    const auto rest = next(second, 2, 3);
    halves.insert(halves.end(), rest.begin(), rest.end());
    CHECK(halves == expected);
    CHECK(blutrain_loader_set_state(whole.loader, state, BLUTRAIN_LOADER_STATE_SIZE) == BLUTRAIN_OK);
    CHECK(next(whole, 4, 3) == expected);
    state[4] = 5;
    CHECK(blutrain_loader_set_state(whole.loader, state, BLUTRAIN_LOADER_STATE_SIZE) == BLUTRAIN_INVALID_VALUE);
  }
}

void test_errors(const std::filesystem::path& folder, const std::vector<std::string>& shards) {
  int64_t tokens = 0;
  CHECK(blutrain_shard_num_tokens((folder / "absent").c_str(), &tokens) == BLUTRAIN_IO_ERROR);
  CHECK(blutrain_shard_num_tokens(folder.c_str(), &tokens) == BLUTRAIN_INVALID_VALUE);
  const auto truncated = write_shard(folder / "truncated.bin", 0, 5, 6);
  CHECK(blutrain_shard_num_tokens(truncated.c_str(), &tokens) == BLUTRAIN_INVALID_VALUE);
  CHECK(std::string(blutrain_last_error()).find("truncated") != std::string::npos);
  CHECK(Handle(shards, options_of(1, 25)).status == BLUTRAIN_INVALID_VALUE);
  CHECK(Handle(shards, options_of(0, 3)).status == BLUTRAIN_INVALID_VALUE);
  CHECK(Handle({}, options_of(1, 3)).status == BLUTRAIN_INVALID_VALUE);
  auto options = options_of(1, 3);
  options.vocabulary = 105;
  const Handle small(shards, options);
  std::vector<int32_t> values(3);
  void* slots[] = {values.data(), values.data()};
  CHECK(blutrain_loader_next(small.loader, slots, 2) == BLUTRAIN_OK);
  CHECK(blutrain_loader_next(small.loader, slots, 2) == BLUTRAIN_INDEX_OUT_OF_RANGE);
  CHECK(std::string(blutrain_loader_error(small.loader)).find("another tokenizer") != std::string::npos);
  CHECK(blutrain_loader_next(small.loader, slots, 1) == BLUTRAIN_INVALID_VALUE);
}

void test_wide_tokens(const std::filesystem::path& folder) {
  // A stream of both widths: 65530 ... 65539, of which the second shard has uint32.
  const std::vector<std::string> both = {write_shard(folder / "narrow.bin", 65530, 4, 4),
                                         write_shard<uint32_t>(folder / "wide.bin", 65534, 6, 6)};
  int64_t num_tokens = 0, num_bytes = 0;
  CHECK(blutrain_shard_num_tokens(both[1].c_str(), &num_tokens) == BLUTRAIN_OK && num_tokens == 6);
  CHECK(blutrain_shard_token_bytes(both[0].c_str(), &num_bytes) == BLUTRAIN_OK && num_bytes == 2);
  CHECK(blutrain_shard_token_bytes(both[1].c_str(), &num_bytes) == BLUTRAIN_OK && num_bytes == 4);
  auto options = options_of(3, 3);
  options.vocabulary = 65540;
  const Handle handle(both, options);
  const auto tokens = next(handle, 3, 3);
  for (int i = 0; i < 9; ++i) CHECK(tokens[static_cast<size_t>(i)] == 65530 + i);

  options.vocabulary = 65539;
  const Handle small(both, options);
  std::vector<int32_t> values(9), targets(9);
  void* slots[] = {values.data(), targets.data()};
  CHECK(blutrain_loader_next(small.loader, slots, 2) == BLUTRAIN_INDEX_OUT_OF_RANGE);
  CHECK(std::string(blutrain_loader_error(small.loader)).find("got 65539 at position 5") != std::string::npos);

  // Tokens that no int32 holds are beyond any vocabulary.
  options.vocabulary = INT64_MAX;
  const auto huge = write_shard<uint32_t>(folder / "huge.bin", int64_t{1} << 31, 4, 4);
  const Handle beyond({huge}, options);
  CHECK(blutrain_loader_next(beyond.loader, slots, 2) == BLUTRAIN_INDEX_OUT_OF_RANGE);

  const auto truncated = write_shard<uint32_t>(folder / "truncated_wide.bin", 0, 5, 6);
  CHECK(blutrain_shard_num_tokens(truncated.c_str(), &num_tokens) == BLUTRAIN_INVALID_VALUE);
  CHECK(std::string(blutrain_last_error()).find("tokens of 4 bytes, got 1044; it is truncated") != std::string::npos);
}

}  // namespace

int main() {
  const auto folder = std::filesystem::temp_directory_path() / ("blutrain_loader_test_" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  const std::vector<std::string> shards = {write_shard(folder / "a.bin", 100, 7, 7),
                                           write_shard(folder / "b.bin", 107, 1, 1),
                                           write_shard(folder / "c.bin", 108, 17, 17)};
  test_permutation();
  test_order(shards);
  test_resume_and_ranks(shards);
  test_errors(folder, shards);
  test_wide_tokens(folder);
  std::filesystem::remove_all(folder);
  return failures == 0 ? 0 : 1;
}
