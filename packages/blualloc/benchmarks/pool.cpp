// Time of one allocation and its free, beside malloc: `pool [rounds]` prints one line per pattern, nanoseconds per pair.
// Patterns: `same` frees what it just took; `step` takes and frees the activations of a small training step, last in
// first out, with temporaries in between; `random` keeps 512 blocks of random sizes and replaces random ones.
#include <blualloc/blualloc.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

blualloc_pool* pool = nullptr;
void* volatile sink = nullptr;  // so that the compiler cannot drop a malloc with its free

struct Blu {
  static void* take(uint64_t bytes) {
    void* out = nullptr;
    blualloc_allocate(pool, bytes, nullptr, "benchmark", &out);
    return out;
  }
  static void give(void* block) { blualloc_free(pool, block, nullptr); }
};

struct Malloc {
  static void* take(uint64_t bytes) {
    sink = std::malloc(bytes);
    return sink;
  }
  static void give(void* block) { std::free(block); }
};

// Each pattern returns how many pairs it made.
template <class A>
uint64_t same() {
  for (int i = 0; i < 1000; ++i) {
    A::give(A::take(100'000));
  }
  return 1000;
}

template <class A>
uint64_t step() {
  std::vector<void*> kept;
  for (uint64_t i = 0; i < 100; ++i) {
    kept.push_back(A::take(400'000 + 64 * i));
    A::give(A::take(100'000));
  }
  while (!kept.empty()) {
    void* const gradient = A::take(400'000);
    A::give(kept.back());
    kept.pop_back();
    A::give(gradient);
  }
  return 300;
}

template <class A>
uint64_t random_sizes() {
  static std::vector<void*> kept(512);
  static uint64_t state = 1;
  for (int i = 0; i < 1000; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    void*& block = kept[state >> 33 & 511];
    if (block != nullptr) A::give(block);
    block = A::take(1 + (state >> 40));
  }
  return 1000;
}

double nanoseconds(uint64_t (*pattern)(), int rounds) {
  double best = 1e30;
  for (int i = 0; i < rounds; ++i) {
    const auto start = std::chrono::steady_clock::now();
    const uint64_t pairs = pattern();
    const std::chrono::duration<double, std::nano> taken = std::chrono::steady_clock::now() - start;
    best = std::min(best, taken.count() / static_cast<double>(pairs));
  }
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 1000;
  if (blualloc_pool_create(nullptr, &pool) != BLUALLOC_OK) return 1;
  std::printf("same %.1f %.1f\n", nanoseconds(same<Blu>, rounds), nanoseconds(same<Malloc>, rounds));
  std::printf("step %.1f %.1f\n", nanoseconds(step<Blu>, rounds), nanoseconds(step<Malloc>, rounds));
  std::printf("random %.1f %.1f\n", nanoseconds(random_sizes<Blu>, rounds), nanoseconds(random_sizes<Malloc>, rounds));
  return 0;
}
