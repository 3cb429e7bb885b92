// Shard files: header check and read-only mapping. The format is described in blutrain.h.
#include "shard.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

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
constexpr int64_t kTokenBytes = 2;

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

/// Reads and checks the header; returns the number of tokens.
int64_t check_header(const File& file, const std::string& path) {
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
  if (header[0] != BLUTRAIN_SHARD_MAGIC) {
    fail_format(path, "expected magic " + std::to_string(BLUTRAIN_SHARD_MAGIC) + ", got " + std::to_string(header[0]) +
                          "; it is no token shard: run 'blutrain prepare' on text");
  }
  if (header[1] != BLUTRAIN_SHARD_VERSION) {
    fail_format(path, "expected version " + std::to_string(BLUTRAIN_SHARD_VERSION) + " (uint16 tokens), got " +
                          std::to_string(header[1]) + "; prepare it again");
  }
  const int64_t num_tokens = header[2];
  if (num_tokens <= 0)
    fail_format(path, "expected at least 1 token, got " + std::to_string(num_tokens) + "; remove it");
  const int64_t expected = kHeaderBytes + num_tokens * kTokenBytes;
  if (bytes != expected) {
    fail_format(path, "expected " + std::to_string(expected) + " bytes for " + std::to_string(num_tokens) +
                          " tokens, got " + std::to_string(bytes) + "; it is " +
                          (bytes < expected ? "truncated" : "damaged") + ": prepare or copy it again");
  }
  return num_tokens;
}

}  // namespace

int64_t shard_num_tokens(const std::string& path) { return check_header(File(path), path); }

Shard::Shard(const std::string& path) : path_(path) {
  const File file(path);
  num_tokens_ = check_header(file, path);
  struct stat status{};
  if (::fstat(file.descriptor(), &status) != 0) fail_io(path, "inspect");
  device_ = status.st_dev;
  inode_ = status.st_ino;
  mapped_bytes_ = static_cast<size_t>(kHeaderBytes + num_tokens_ * kTokenBytes);
  void* mapping = ::mmap(nullptr, mapped_bytes_, PROT_READ, MAP_SHARED, file.descriptor(), 0);
  if (mapping == MAP_FAILED) fail_io(path, "map");
  mapping_ = mapping;
}

Shard::Shard(Shard&& other) noexcept
    : path_(std::move(other.path_)),
      device_(other.device_),
      inode_(other.inode_),
      num_tokens_(std::exchange(other.num_tokens_, 0)),
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

const uint16_t* Shard::tokens_view() const {
  return reinterpret_cast<const uint16_t*>(static_cast<const char*>(mapping_) + kHeaderBytes);
}

void Shard::prefetch(int64_t first, int64_t count) const {
  static const int64_t page = ::sysconf(_SC_PAGESIZE);
  const int64_t begin = (kHeaderBytes + first * kTokenBytes) / page * page;
  const int64_t end = kHeaderBytes + (first + count) * kTokenBytes;
  // Advice only: a failure costs speed, never correctness.
  (void)::madvise(static_cast<char*>(mapping_) + begin, static_cast<size_t>(end - begin), MADV_WILLNEED);
}

}  // namespace blutrain
