// What only native code can show, and what the sanitizers should see: pools under threads, a device that fails, the
// planner on random programs, and objects that clean up after themselves. The behaviour of pools is tested in Python.
#include <blualloc/blualloc.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "units.h"

namespace {

std::atomic<int> num_failures{0};

void check(bool holds, const char* expression, int line) {
  if (!holds) {
    std::printf("line %d: expected %s; last error: %s\n", line, expression, blualloc_last_error());
    ++num_failures;
  }
}
#define CHECK(expression) check((expression), #expression, __LINE__)

constexpr uint64_t kMiB = 1 << 20;

template <class Struct>
Struct sized() {
  Struct out{};
  out.struct_size = sizeof out;
  return out;
}

blualloc_stats stats_of(blualloc_pool* pool) {
  auto stats = sized<blualloc_stats>();
  CHECK(blualloc_get_stats(pool, &stats) == BLUALLOC_OK);
  return stats;
}

void test_random_calls(uint64_t shuffle_seed) {
  auto options = sized<blualloc_pool_options>();
  options.shuffle_seed = shuffle_seed;
  options.segment_bytes = 8 * kMiB;
  options.limit_bytes = 32 * kMiB;
  blualloc_pool* pool = nullptr;
  CHECK(blualloc_pool_create(&options, &pool) == BLUALLOC_OK);
  blualloc::Random random(7);
  std::vector<std::pair<char*, uint64_t>> live;
  for (int i = 0; i < 20000; ++i) {
    if (!live.empty() && random.below(100) < 48) {
      const uint64_t turn = random.below(live.size());
      const auto [block, bytes] = live[turn];
      CHECK(block[0] == static_cast<char>(bytes) && block[bytes - 1] == static_cast<char>(bytes));
      CHECK(blualloc_free(pool, block, nullptr) == BLUALLOC_OK);
      live[turn] = live.back();
      live.pop_back();
    } else {
      const uint64_t bytes = 1 + random.below(random.below(50) == 0 ? 3 * kMiB : 20000);
      void* block = nullptr;
      const int32_t status = blualloc_allocate(pool, bytes, nullptr, "random", &block);
      CHECK(status == BLUALLOC_OK || status == BLUALLOC_OUT_OF_MEMORY);
      if (status == BLUALLOC_OK) {
        live.emplace_back(static_cast<char*>(block), bytes);
        live.back().first[0] = live.back().first[bytes - 1] = static_cast<char>(bytes);
      }
    }
    if (i % 4000 == 3999) {
      CHECK(blualloc_end_of_step(pool, static_cast<uint64_t>(i / 4000), nullptr) == BLUALLOC_OK);
    }
  }
  CHECK(stats_of(pool).num_live == live.size());
  CHECK(live.empty() || blualloc_pool_destroy(pool, 0) == BLUALLOC_INVALID_VALUE);
  CHECK(blualloc_pool_destroy(pool, 1) == BLUALLOC_OK);
}

void test_threads() {
  blualloc_pool* pool = nullptr;
  CHECK(blualloc_default_pool(BLUALLOC_DEVICE_CPU, 0, &pool) == BLUALLOC_OK);
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([pool, t] {
      blualloc::Random random(t + 1);
      const std::string tag = "thread " + std::to_string(t);
      for (int i = 0; i < 2000; ++i) {
        void* block = nullptr;
        const uint64_t bytes = 1 + random.below(30000);
        CHECK(blualloc_allocate(pool, bytes, nullptr, tag.c_str(), &block) == BLUALLOC_OK);
        std::memset(block, static_cast<int>(t), bytes);
        CHECK(blualloc_free(pool, block, nullptr) == BLUALLOC_OK);
        if (i % 500 == 0) {
          CHECK(blualloc_trim(pool, nullptr) == BLUALLOC_OK);
        }
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  CHECK(stats_of(pool).num_live == 0);
}

// ---- a device that fails ----------------------------------------------------------------------------------------

struct FailingDevice {
  bool fails = false;
  uint64_t num_events = 0;
  std::set<void*> events;
};

FailingDevice& device(void* ctx) { return *static_cast<FailingDevice*>(ctx); }

blualloc_device_ops failing_device(FailingDevice* state) {
  blualloc_device_ops ops = *blualloc_host_device();
  ops.name = "failing";
  ops.ctx = state;
  ops.record_event = [](void* ctx, void*, void** event) -> int32_t {
    if (device(ctx).fails) return BLUALLOC_RUNTIME_FAILURE;
    *event = std::malloc(1);
    device(ctx).events.insert(*event);
    ++device(ctx).num_events;
    return BLUALLOC_OK;
  };
  ops.wait_event = [](void* ctx, void*, void*) -> int32_t {
    return device(ctx).fails ? BLUALLOC_RUNTIME_FAILURE : BLUALLOC_OK;
  };
  ops.query_event = [](void*, void*, int32_t* done) -> int32_t {
    *done = 0;
    return BLUALLOC_OK;
  };
  ops.synchronize_event = [](void* ctx, void*) -> int32_t {
    return device(ctx).fails ? BLUALLOC_RUNTIME_FAILURE : BLUALLOC_OK;
  };
  ops.destroy_event = [](void* ctx, void* event) -> int32_t {
    device(ctx).events.erase(event);
    std::free(event);
    return BLUALLOC_OK;
  };
  return ops;
}

void test_failures_of_the_device_leave_the_pool_usable() {
  FailingDevice state;
  const blualloc_device_ops ops = failing_device(&state);
  auto options = sized<blualloc_pool_options>();
  options.device = &ops;
  options.limit_bytes = 4 * kMiB;
  blualloc_pool* pool = nullptr;
  CHECK(blualloc_pool_create(&options, &pool) == BLUALLOC_OK);
  char streams[2];
  void* block = nullptr;
  CHECK(blualloc_allocate(pool, 3 * kMiB, &streams[0], "first", &block) == BLUALLOC_OK);
  CHECK(blualloc_record_use(pool, block, &streams[1]) == BLUALLOC_OK);
  state.fails = true;
  CHECK(blualloc_free(pool, block, &streams[0]) == BLUALLOC_RUNTIME_FAILURE);
  CHECK(std::strstr(blualloc_last_error(), "record_event") != nullptr);
  CHECK(stats_of(pool).num_live == 1);
  state.fails = false;
  CHECK(blualloc_free(pool, block, &streams[0]) == BLUALLOC_OK);
  state.fails = true;
  void* next = nullptr;
  CHECK(blualloc_allocate(pool, 3 * kMiB, &streams[0], "second", &next) == BLUALLOC_RUNTIME_FAILURE);
  CHECK(blualloc_allocate(pool, 3 * kMiB, &streams[1], "second", &next) == BLUALLOC_RUNTIME_FAILURE);
  CHECK(blualloc_trim(pool, nullptr) == BLUALLOC_RUNTIME_FAILURE);
  CHECK(stats_of(pool).num_live == 0);
  state.fails = false;
  CHECK(blualloc_allocate(pool, 3 * kMiB, &streams[1], "third", &next) == BLUALLOC_OK);
  CHECK(next == block);
  CHECK(blualloc_free(pool, next, &streams[0]) == BLUALLOC_OK);
  CHECK(blualloc_pool_destroy(pool, 0) == BLUALLOC_OK);
  CHECK(state.num_events >= 3 && state.events.empty());
}

// ---- planner ----------------------------------------------------------------------------------------------------

void test_random_plans() {
  blualloc::Random random(11);
  for (int round = 0; round < 50; ++round) {
    const uint64_t n = random.below(120);
    std::vector<uint64_t> bytes(n);
    std::vector<uint64_t> offsets(n + 1, 0);
    std::vector<uint64_t> use_offsets{0};
    std::vector<blualloc_use> uses;
    for (uint64_t b = 0; b < n; ++b) {
      bytes[b] = random.below(5000);
      const auto start = static_cast<int64_t>(random.below(200));
      const auto lane = static_cast<int32_t>(random.below(2));
      uses.push_back({lane, 0, start});
      uses.push_back({lane, 0, start + static_cast<int64_t>(random.below(40))});
      use_offsets.push_back(uses.size());
    }
    std::vector<blualloc_plan_event> events;
    for (int64_t e = 0; e < 10; ++e) {
      events.push_back({static_cast<int32_t>(e % 2), static_cast<int32_t>(1 - e % 2), e * 20, e * 20 + 3});
    }
    auto request = sized<blualloc_plan_request>();
    request.num_lanes = 2;
    request.num_buffers = n;
    request.bytes = bytes.data();
    request.use_offsets = use_offsets.data();
    request.uses = uses.data();
    request.num_events = events.size();
    request.events = events.data();
    auto result = sized<blualloc_plan_result>();
    result.offsets = offsets.data();
    CHECK(blualloc_plan(&request, &result) == BLUALLOC_OK);
    CHECK(result.peak_live_bytes <= result.arena_bytes && result.arena_bytes <= result.total_bytes + 64 * n);
    for (uint64_t b = 0; b < n; ++b) {
      CHECK(offsets[b] + bytes[b] <= result.arena_bytes);
    }
  }
}

uint64_t num_hook_calls = 0;

void test_hooks() {
  uint64_t id = 0;
  CHECK(blualloc_add_hook([](void* ctx, const blualloc_event*) { ++*static_cast<uint64_t*>(ctx); }, &num_hook_calls,
                          &id) == BLUALLOC_OK);
  blualloc_pool* pool = nullptr;
  CHECK(blualloc_pool_create(nullptr, &pool) == BLUALLOC_OK);
  void* block = nullptr;
  CHECK(blualloc_allocate(pool, 100, nullptr, nullptr, &block) == BLUALLOC_OK);
  CHECK(blualloc_remove_hook(id) == BLUALLOC_OK);
  CHECK(blualloc_free(pool, block, nullptr) == BLUALLOC_OK);
  CHECK(num_hook_calls == 2);  // the mapping and the allocation
  CHECK(blualloc_pool_destroy(pool, 0) == BLUALLOC_OK);
}

}  // namespace

int main() {
  test_random_calls(0);
  test_random_calls(3);
  test_threads();
  test_failures_of_the_device_leave_the_pool_usable();
  test_random_plans();
  test_hooks();
  std::printf("%d checks failed\n", num_failures.load());
  return num_failures == 0 ? 0 : 1;
}
