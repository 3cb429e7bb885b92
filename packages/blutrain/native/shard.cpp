// Shard files: header check and read-only mapping. The format is described in blutrain.h.
#include "shard.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include "blutrain/blutrain.h"
#include "error.h"

namespace blutrain {
namespace {

static_assert(std::endian::native == std::endian::little, "shards are mapped as they are: little-endian only");

constexpr int64_t kHeaderBytes = BLUTRAIN_SHARD_HEADER_BYTES;

struct Format {
  int32_t magic, version;
  int64_t token_bytes;
};
constexpr Format kFormats[] = {{BLUTRAIN_SHARD_MAGIC, BLUTRAIN_SHARD_VERSION, 2},
                               {BLUTRAIN_SHARD_MAGIC_32, BLUTRAIN_SHARD_VERSION_32, 4}};

[[noreturn]] void fail_io(const std::string& path, const char* what) {
  throw Error(BLUTRAIN_IO_ERROR, "[shard] can not " + std::string(what) + " " + path + ": " + std::strerror(errno));
}

[[noreturn]] void fail_format(const std::string& path, const std::string& what) {
  throw Error(BLUTRAIN_INVALID_VALUE, "[shard] " + path + ": " + what);
}

class File {
 public:
  explicit File(const std::string& path) : descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (descriptor_ < 0) fail_io(path, "open");
  }
  ~File() { ::close(descriptor_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  [[nodiscard]] int descriptor() const { return descriptor_; }

 private:
  int descriptor_;
};

/// How wide the tokens of a file are that begins with these two integers.
int64_t token_bytes_of(const int32_t* header, const std::string& path) {
  for (const Format& format : kFormats) {
    if (header[0] != format.magic) continue;
    if (header[1] == format.version) return format.token_bytes;
    fail_format(path, "expected version " + std::to_string(format.version) + " (uint" +
                          std::to_string(8 * format.token_bytes) + " tokens), got " + std::to_string(header[1]) +
                          "; prepare it again");
  }
  fail_format(path, "expected magic " + std::to_string(BLUTRAIN_SHARD_MAGIC) + " (uint16 tokens) or " +
                        std::to_string(BLUTRAIN_SHARD_MAGIC_32) + " (uint32 tokens), got " + std::to_string(header[0]) +
                        "; it is no token shard: run 'blutrain prepare' on text");
}

template <class Token>
uint32_t copy_tokens(const Token* source, int64_t count, int32_t* values) {
  Token largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    values[i] = static_cast<int32_t>(source[i]);
    largest = std::max(largest, source[i]);
  }
  return largest;
}

/// Reads and checks the header.
ShardHeader check_header(const File& file, const std::string& path) {
  struct stat status{};
  if (::fstat(file.descriptor(), &status) != 0) fail_io(path, "inspect");
  if (!S_ISREG(status.st_mode)) fail_format(path, "expected a file");
  const int64_t bytes = status.st_size;
  if (bytes < kHeaderBytes) {
    fail_format(path, "expected a header of " + std::to_string(kHeaderBytes) + " bytes, got a file of " +
                          std::to_string(bytes) + "; it is truncated or no shard: prepare it again");
  }
  int32_t header[3] = {};
  const ssize_t got = ::pread(file.descriptor(), header, sizeof header, 0);
  if (got != static_cast<ssize_t>(sizeof header)) fail_io(path, "read the header of");
  const int64_t num_tokens = header[2], token_bytes = token_bytes_of(header, path);
  if (num_tokens <= 0)
    fail_format(path, "expected at least 1 token, got " + std::to_string(num_tokens) + "; remove it");
  const int64_t expected = kHeaderBytes + num_tokens * token_bytes;
  if (bytes != expected) {
    fail_format(path, "expected " + std::to_string(expected) + " bytes for " + std::to_string(num_tokens) +
                          " tokens of " + std::to_string(token_bytes) + " bytes, got " + std::to_string(bytes) +
                          "; it is " + (bytes < expected ? "truncated" : "damaged") + ": prepare or copy it again");
  }
  return {num_tokens, token_bytes};
}

}  // namespace

ShardHeader shard_header(const std::string& path) { return check_header(File(path), path); }

Shard::Shard(const std::string& path) : path_(path) {
  const File file(path);
  header_ = check_header(file, path);
  struct stat status{};
  if (::fstat(file.descriptor(), &status) != 0) fail_io(path, "inspect");
  device_ = status.st_dev;
  inode_ = status.st_ino;
  mapped_bytes_ = static_cast<size_t>(kHeaderBytes + header_.num_tokens * header_.token_bytes);
  void* mapping = ::mmap(nullptr, mapped_bytes_, PROT_READ, MAP_SHARED, file.descriptor(), 0);
  if (mapping == MAP_FAILED) fail_io(path, "map");
  mapping_ = mapping;
}

Shard::Shard(Shard&& other) noexcept
    : path_(std::move(other.path_)),
      device_(other.device_),
      inode_(other.inode_),
      header_(std::exchange(other.header_, {})),
      mapping_(std::exchange(other.mapping_, nullptr)),
      mapped_bytes_(std::exchange(other.mapped_bytes_, 0)) {}

Shard::~Shard() {
  if (mapping_ != nullptr) ::munmap(mapping_, mapped_bytes_);
}

void Shard::check_size() const {
  struct stat status{};
  // Deleted or replaced: the mapping keeps the file.
  if (::stat(path_.c_str(), &status) != 0 || status.st_dev != device_ || status.st_ino != inode_) return;
  if (static_cast<uint64_t>(status.st_size) < mapped_bytes_)
    fail_format(path_, "expected " + std::to_string(mapped_bytes_) + " bytes, got " + std::to_string(status.st_size) +
                           "; it was truncated while in use: prepare or copy it again, then use --resume");
}

uint32_t Shard::copy(int64_t first, int64_t count, int32_t* values) const {
  const void* source = static_cast<const char*>(mapping_) + kHeaderBytes + first * header_.token_bytes;
  return header_.token_bytes == 2 ? copy_tokens(static_cast<const uint16_t*>(source), count, values)
                                  : copy_tokens(static_cast<const uint32_t*>(source), count, values);
}

void Shard::prefetch(int64_t first, int64_t count) const {
  static const int64_t page = ::sysconf(_SC_PAGESIZE);
  const int64_t begin = (kHeaderBytes + first * header_.token_bytes) / page * page;
  const int64_t end = kHeaderBytes + (first + count) * header_.token_bytes;
  // Advice only: a failure costs speed, never correctness.
  (void)::madvise(static_cast<char*>(mapping_) + begin, static_cast<size_t>(end - begin), MADV_WILLNEED);
}

}  // namespace blutrain
