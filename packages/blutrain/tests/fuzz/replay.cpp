// Runs a fuzz target without libFuzzer: on every file of a corpus, then on mutations of them.
//
//     replay CORPUS_FOLDER [RUNS [SEED]]
//
// The mutations are those that find most in binary formats: flipped bits, changed bytes and integers, pieces cut out, doubled
// or taken from another seed. The input that was running is written to replay-crash.bin when the process aborts.
#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

using Input = std::vector<uint8_t>;

Input current;

void keep_current(int signal) {
  if (std::FILE* file = std::fopen("replay-crash.bin", "wb")) {
    std::fwrite(current.data(), 1, current.size(), file);
    std::fclose(file);
  }
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

/// On a copy of the exact size, so that a read past the end is one past the allocation.
void run(Input input) {
  input.shrink_to_fit();
  current = std::move(input);
  LLVMFuzzerTestOneInput(current.data(), current.size());
}

std::vector<Input> read_corpus(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  std::vector<Input> corpus;
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return corpus;
}

class Mutator {
 public:
  Mutator(std::vector<Input> corpus, uint64_t seed) : corpus_(std::move(corpus)), random_(seed) {}

  Input next() {
    Input input = corpus_[below(corpus_.size())];
    for (size_t edits = 1 + below(4); edits > 0; --edits) edit(input);
    return input;
  }

 private:
  size_t below(size_t bound) { return bound == 0 ? 0 : random_() % bound; }

  void edit(Input& input) {
    const size_t at = below(input.size());
    const size_t length = std::min(input.size() - at, 1 + below(16));
    const auto place = input.begin() + static_cast<std::ptrdiff_t>(at);
    switch (below(6)) {
      case 0:
        if (!input.empty()) input[at] ^= static_cast<uint8_t>(1U << below(8));
        return;
      case 1:
        if (!input.empty()) input[at] = static_cast<uint8_t>(random_());
        return;
      case 2: {
        static constexpr int64_t kEdges[] = {0,     1,     -1,        2,         255,       256,
                                             65535, 65536, INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN};
        const int64_t value = kEdges[below(std::size(kEdges))];
        const size_t bytes = std::min(input.size() - at, size_t{1} << below(4));
        if (bytes > 0) std::memcpy(&input[at], &value, bytes);
        return;
      }
      case 3:
        input.erase(place, place + static_cast<std::ptrdiff_t>(length));
        return;
      case 4: {
        const Input piece(place, place + static_cast<std::ptrdiff_t>(length));
        input.insert(place, piece.begin(), piece.end());
        return;
      }
      default: {
        const Input& other = corpus_[below(corpus_.size())];
        if (other.size() > at)
          input.resize(at), input.insert(input.end(), other.begin() + static_cast<std::ptrdiff_t>(at), other.end());
      }
    }
  }

  std::vector<Input> corpus_;
  std::mt19937_64 random_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "expected replay CORPUS_FOLDER [RUNS [SEED]]\n");
    return 2;
  }
  for (const int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE}) std::signal(signal, keep_current);
  const std::vector<Input> corpus = read_corpus(argv[1]);
  if (corpus.empty()) {
    std::fprintf(stderr, "expected inputs in %s, got none\n", argv[1]);
    return 1;
  }
  for (const Input& input : corpus) run(input);
  const long runs = argc > 2 ? std::strtol(argv[2], nullptr, 10) : 0;
  Mutator mutator(corpus, argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 1);
  for (long i = 0; i < runs; ++i) run(mutator.next());
  std::printf("%zu inputs of the corpus and %ld mutations\n", corpus.size(), runs);
  return 0;
}
