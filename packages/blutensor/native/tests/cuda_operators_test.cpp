// The CUDA launchers of the families that make, move, map, reduce and draw elements, each against its CPU launcher:
// dtypes, layouts, sizes around packs, warps, tiles and blocks. Needs a device; without one it says so and passes.
//
//   cuda_operators_test [every=N] [family...]    of creation elementwise copy reduce random large
//
// Under compute-sanitizer (memcheck, racecheck): every=17 and no large.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>

#include "ops/cuda/report.h"
#include "tests/cuda_harness.h"

namespace {

using namespace blutensor;
using namespace blutensor::test;

// Around packs (4, 8, 16), warps, blocks and tiles of 1024 and 2048 packs; primes.
constexpr int64_t kSizes[] = {0, 1, 3, 7, 8, 9, 31, 32, 33, 127, 255, 256, 257, 1023, 1024, 1025, 4099, 65536, 100003};
constexpr DType kFloats[] = {DType::float32, DType::bfloat16, DType::float16, DType::float64};

Attr of(double v) { return Attr::of_float(v); }
Attr axes(Dims d) { return Attr::of_ints(d); }

// float64 functions and powers come from another library than the CPU's; the 16-bit GELUs are fast forms.
Rule rule_of(const std::string& op, DType dtype) {
  static const std::set<std::string> exact = {"negative", "abs",   "sign",     "square",      "reciprocal",
                                              "sqrt",     "isnan", "isfinite", "logical_not", "rsqrt"};
  if (exact.contains(op)) return Rule::bits;
  if (dtype == DType::float64) return Rule::close;
  return op == "gelu_backward" || (op == "gelu" && dtype != DType::float32) ? Rule::close : Rule::bits;
}

// ---------------------------------------------------------------- elementwise

void test_unary(Harness& h) {
  for (const char* op : {"negative", "abs", "sign", "square", "reciprocal", "exp", "log", "sqrt", "rsqrt", "tanh",
                         "erf", "isnan", "isfinite", "logical_not"}) {
    for (DType dtype : kAllDTypes) {
      const Rule rule = rule_of(op, dtype);
      for (int64_t n : kSizes)
        for (Layout layout : {Layout::contiguous, Layout::offset, Layout::stepped})
          h.check(op, {h.random({n}, dtype, layout, true)}, {}, rule);
      for (Layout layout : kLayouts) h.check(op, {h.random({5, 37, 24}, dtype, layout, true)}, {}, rule);
      h.check(op, {h.random({}, dtype)}, {}, rule);
    }
  }
  for (const char* form : {"none", "tanh"})
    for (DType dtype : kFloats) {
      const Attrs attrs{Attr::of_string(form)};
      for (int64_t n : kSizes)
        for (bool special : {false, true}) {
          h.check("gelu", {h.random({n}, dtype, Layout::contiguous, special)}, attrs, rule_of("gelu", dtype));
          h.check("gelu_backward", {h.random({n}, dtype), h.random({n}, dtype, Layout::contiguous, special)}, attrs,
                  rule_of("gelu_backward", dtype));
        }
      for (Layout a : kLayouts)
        for (Layout b : kLayouts)
          h.check("gelu_backward", {h.random({4, 33, 16}, dtype, a), h.random({4, 33, 16}, dtype, b)}, attrs,
                  rule_of("gelu_backward", dtype));
    }
}

constexpr const char* kBinary[] = {"add",   "subtract",    "multiply",   "divide",     "maximum", "minimum",
                                   "equal", "not_equal",   "less",       "less_equal", "greater", "greater_equal",
                                   "pow",   "logical_and", "logical_or", "logical_xor"};

Rule binary_rule(const std::string& op) { return op == "pow" ? Rule::close : Rule::bits; }

void test_binary(Harness& h) {
  const std::pair<Shape, Shape> shapes[] = {
      {{3, 40}, {40}},     {{3, 40}, {3, 1}},     {{40}, {3, 40}},           {{3, 40}, {}},
      {{}, {7}},           {{2, 1, 24}, {5, 1}},  {{4, 1, 6}, {1, 5, 1}},    {{33, 17}, {17}},
      {{8, 1024}, {1024}}, {{16, 8, 32}, {8, 1}}, {{2, 3, 4, 5}, {3, 1, 5}}, {{0, 4}, {4}}};
  for (const char* op : kBinary) {
    for (DType dtype : kAllDTypes) {
      const bool special = std::string(op) != "pow";
      const double scale = special ? 2 : 1;
      for (int64_t n : kSizes)
        h.check(op,
                {h.random({n}, dtype, Layout::contiguous, special, scale),
                 h.random({n}, dtype, Layout::contiguous, special, scale)},
                {}, binary_rule(op));
      for (Layout a : kLayouts)
        for (Layout b : kLayouts)
          h.check(op,
                  {h.random({3, 21, 16}, dtype, a, special, scale), h.random({3, 21, 16}, dtype, b, special, scale)},
                  {}, binary_rule(op));
      for (const auto& [a, b] : shapes)
        h.check(op,
                {h.random(a, dtype, Layout::contiguous, false, scale),
                 h.random(b, dtype, Layout::contiguous, false, scale)},
                {}, binary_rule(op));
    }
    for (DType a : kAllDTypes)
      for (DType b : kAllDTypes)
        h.check(op,
                {h.random({5, 19}, a, Layout::contiguous, false, 1), h.random({19}, b, Layout::contiguous, false, 1)},
                {}, binary_rule(op));
  }
}

void test_where(Harness& h) {
  for (DType dtype : kAllDTypes) {
    for (int64_t n : kSizes)
      h.check("where", {h.random({n}, DType::boolean), h.random({n}, dtype), h.random({n}, dtype)}, {}, Rule::bits);
    for (Layout layout : kLayouts)
      for (DType other : kAllDTypes) {
        h.check("where",
                {h.random({3, 16, 32}, DType::boolean, layout), h.random({3, 16, 32}, dtype), h.random({}, other)}, {},
                Rule::bits);
        h.check("where", {h.random({3, 1, 32}, other), h.random({16, 32}, dtype, layout), h.random({3, 16, 1}, dtype)},
                {}, Rule::bits);
      }
  }
}

// ---------------------------------------------------------------- copies

void test_copy(Harness& h) {
  for (DType from : kAllDTypes)
    for (DType to : kAllDTypes) {
      const Attrs attrs{Attr::of_dtype(to)};
      for (int64_t n : kSizes)
        h.check("astype", {h.random({n}, from, Layout::contiguous, true, 300)}, attrs, Rule::bits);
      for (Layout layout : kLayouts)
        for (const Shape& shape : {Shape{3, 40, 16}, Shape{33, 65}, Shape{7}})
          h.check("astype", {h.random(shape, from, layout, true, 300)}, attrs, Rule::bits);
    }
  for (DType dtype : kAllDTypes)
    for (const char* op : {"contiguous", "copy"})
      for (int64_t n : kSizes)
        for (Layout layout : kLayouts) h.check(op, {h.random({n}, dtype, layout)}, {}, Rule::bits);
  // Permutations: tiles, and runs that move as they are.
  const OpRef permute{"permute_dims"};
  const std::pair<Shape, Dims> permutations[] = {{{33, 65}, {1, 0}},
                                                 {{130, 66}, {1, 0}},
                                                 {{3, 34, 126}, {0, 2, 1}},
                                                 {{2, 18, 4, 64}, {0, 2, 3, 1}},
                                                 {{64, 64}, {1, 0}},
                                                 {{31, 127}, {1, 0}},
                                                 {{1000, 8}, {1, 0}},
                                                 {{3, 33, 65}, {0, 2, 1}},
                                                 {{3, 33, 65}, {2, 1, 0}},
                                                 {{3, 33, 65}, {1, 2, 0}},
                                                 {{2, 17, 4, 64}, {0, 2, 1, 3}},
                                                 {{2, 17, 4, 64}, {0, 2, 3, 1}},
                                                 {{2, 3, 4, 5, 6}, {4, 2, 0, 1, 3}},
                                                 {{5, 7, 9}, {2, 0, 1}},
                                                 {{256, 513}, {1, 0}}};
  for (DType dtype : kAllDTypes)
    for (const auto& [shape, order] : permutations)
      for (Layout layout : {Layout::contiguous, Layout::offset, Layout::stepped, Layout::reversed, Layout::broadcast})
        h.check("contiguous", {permute({h.random(shape, dtype, layout)}, {axes(order)})}, {}, Rule::bits);
}

void test_writes(Harness& h) {
  for (DType dtype : kAllDTypes) {
    for (Layout layout : {Layout::contiguous, Layout::offset, Layout::transposed, Layout::stepped, Layout::reversed}) {
      for (const Shape& shape : {Shape{33, 24}, Shape{4, 5, 64}, Shape{1025}}) {
        for (DType source : kAllDTypes) {
          h.check("copy_", {h.random(shape, dtype, layout), h.random(shape, source)}, {}, Rule::bits);
          h.check("add_", {h.random(shape, dtype, layout), h.random(shape, source)}, {}, Rule::bits);
        }
        h.check("copy_", {h.random(shape, dtype, layout), h.random({shape.back()}, dtype)}, {}, Rule::bits);
        h.check("add_", {h.random(shape, dtype, layout), h.random({shape.back()}, dtype, Layout::offset)}, {},
                Rule::bits);
        for (double value : {0.0, 1.5, -3.0, 1e30})
          h.check("fill_", {h.random(shape, dtype, layout)}, {of(value)}, Rule::bits);
      }
    }
    for (int64_t axis : {0, 1, -1})
      for (DType other : {dtype, DType::float32}) {
        const auto part = [&](int64_t n, DType d, Layout layout) {
          return h.random(axis == 0 ? Shape{n, 6, 8} : axis == 1 ? Shape{4, n, 8} : Shape{4, 6, n}, d, layout);
        };
        h.check("concat",
                {part(3, dtype, Layout::contiguous), part(5, other, Layout::transposed),
                 part(0, dtype, Layout::contiguous)},
                {Attr::of_int(axis)}, Rule::bits, 3);
      }
    for (DType index : {DType::int32, DType::int64})
      for (int64_t start : {0, 2, 6})
        for (int64_t axis : {0, 1, 2}) {
          Tensor position = Tensor::empty({1}, index, Device{}, "test");
          if (index == DType::int32)
            *static_cast<int32_t*>(position.data()) = static_cast<int32_t>(start);
          else
            *static_cast<int64_t*>(position.data()) = start;
          Shape rows{10, 9, 16};
          rows[static_cast<int>(axis)] = 3;
          h.check("index_write_", {h.random({10, 9, 16}, dtype), h.random(rows, dtype), position}, {Attr::of_int(axis)},
                  Rule::bits);
          h.check("index_write_",
                  {h.random({10, 9, 16}, dtype, Layout::transposed), h.random(rows, dtype, Layout::stepped), position},
                  {Attr::of_int(axis)}, Rule::bits);
        }
    h.check("slice_backward", {h.random({3, 4}, dtype)}, {axes({5, 13}), axes({1, 11}), axes({3, 4}), axes({1, -3})},
            Rule::bits);
    h.check("slice_backward", {h.random({5, 13}, dtype)}, {axes({5, 13}), axes({0, 0}), axes({5, 13}), axes({1, 1})},
            Rule::bits);
    h.check("slice_backward", {h.random({8, 32}, dtype)}, {axes({16, 96}), axes({4, 32}), axes({8, 32}), axes({1, 1})},
            Rule::bits);
  }
}

// A position beyond the axis: clamped, and reported.
void test_position_report(Harness& h) {
  const Operator& op = *OperatorRegistry::instance().find("index_write_");
  struct Memory {
    float cache[8], rows[2];
    int64_t position;
  }* memory = nullptr;
  cudaMallocManaged(reinterpret_cast<void**>(&memory), sizeof(Memory));
  for (float& v : memory->cache) v = 0;
  memory->rows[0] = memory->rows[1] = 1;
  memory->position = 7;
  const auto view = [](void* data, DType dtype, int64_t n) {
    View v;
    v.data = data;
    v.dtype = dtype;
    v.shape = {n};
    v.strides = {1};
    v.defined_ = true;
    return v;
  };
  const View inputs[] = {view(memory->cache, DType::float32, 8), view(memory->rows, DType::float32, 2),
                         view(&memory->position, DType::int64, 1)};
  h.launch(op, inputs, {}, {Attr::of_int(0)});
  if (memory->cache[5] != 0 || memory->cache[6] != 1 || memory->cache[7] != 1) h.fail("index_write_: not clamped");
  try {
    cuda::throw_reported();
    h.fail("index_write_: a position out of range was not reported");
  } catch (const Error& e) {
    if (std::string(e.what()).find("from 0 to 6") == std::string::npos) h.fail(e.what());
  }
  cudaFree(memory);
}

// ---------------------------------------------------------------- creation

void test_creation(Harness& h) {
  for (DType dtype : kAllDTypes) {
    for (int64_t n : kSizes)
      for (double value : {0.0, -1.5, 200.7, 1e300})
        h.check("full", {}, {axes({n}), of(value), Attr::of_dtype(dtype)}, Rule::bits);
    h.check("full", {}, {axes({}), of(3), Attr::of_dtype(dtype)}, Rule::bits);
    for (double step : {1.0, 0.1, -3.0})
      h.check("arange", {}, {of(5), of(5 + step * 1000.5), of(step), Attr::of_dtype(dtype)}, Rule::bits);
    h.check("arange", {}, {of(0), of(0), of(1), Attr::of_dtype(dtype)}, Rule::bits);
  }
}

// ---------------------------------------------------------------- reductions

void test_reduce(Harness& h) {
  const std::pair<Shape, std::vector<Dims>> cases[] = {
      {{}, {{}}},
      {{0}, {{}}},
      {{0, 5}, {{0}, {1}}},
      {{1023}, {{}}},
      {{100003}, {{}}},
      {{1 << 20}, {{}}},
      {{3, 5}, {{0}, {1}, {}}},
      {{33, 1025}, {{0}, {1}, {}}},
      {{4, 8192}, {{0}, {1}, {}}},
      {{2, 300000}, {{0}, {1}, {}}},
      {{4096, 48}, {{0}, {1}}},
      {{2048, 768}, {{0}, {1}, {}}},
      {{5000, 7}, {{0}, {1}}},
      {{7, 31, 33}, {{0}, {1}, {2}, {0, 2}, {0, 1}, {1, 2}, {}}},
      {{2, 3, 4, 5}, {{1, 3}, {0, 2}, {-1}}},
      {{64, 1, 32}, {{0}, {1}, {2}}},
  };
  for (DType dtype : kAllDTypes)
    for (const auto& [shape, lists] : cases)
      for (const Dims& list : lists)
        for (Layout layout : kLayouts) {
          if (num_elements(shape) > 200000 && layout != Layout::contiguous && layout != Layout::offset) continue;
          const Attrs attrs{list.empty() ? Attr::of_all_axes() : Attr::of_axes(list),
                            Attr::of_bool(layout == Layout::offset)};
          const Tensor x = h.random(shape, dtype, layout);
          const Rule sums = is_floating(dtype) ? Rule::sum : Rule::bits;
          h.check("sum", {x}, attrs, sums);
          if (is_floating(dtype)) h.check("mean", {x}, attrs, sums);
          for (bool special : {false, true}) {
            const Tensor y = special ? h.random(shape, dtype, layout, true) : x;
            h.check("max", {y}, attrs, Rule::equal);
            h.check("min", {y}, attrs, Rule::equal);
            if (list.size() <= 1) h.check("argmax", {y}, attrs, Rule::bits);
          }
        }
  for (DType dtype : kAllDTypes) {
    const Rule sums = is_floating(dtype) ? Rule::sum : Rule::bits;
    const Attrs none{Attr::of_axes({}), Attr::of_bool(false)};
    for (const char* name : {"sum", "max", "argmax"}) h.check(name, {h.random({7, 31, 33}, dtype)}, none, Rule::bits);
    h.check("sum_to", {h.random({6, 100, 64}, dtype)}, {axes({64})}, sums);
    h.check("sum_to", {h.random({6, 100, 64}, dtype)}, {axes({100, 1})}, sums);
    h.check("sum_to", {h.random({6, 100, 64}, dtype, Layout::transposed)}, {axes({6, 1, 64})}, sums);
    h.check("sum_to", {h.random({6, 100, 64}, dtype)}, {axes({})}, sums);
    h.check("sum_to", {h.random({6, 10, 3}, dtype)}, {axes({10, 3})}, sums);
  }
}

// ---------------------------------------------------------------- random

Tensor random_state(int64_t seed, int64_t step) {
  Tensor state = Tensor::empty({2}, DType::int64, Device{}, "test");
  static_cast<int64_t*>(state.data())[0] = seed;
  static_cast<int64_t*>(state.data())[1] = step;
  return state;
}

void test_random(Harness& h) {
  const int64_t seeds[][3] = {{0, 0, 0}, {1234, 7, 3}, {-5, 1 << 20, 65537}, {int64_t{1} << 40, 3, 9}};
  for (const auto& [seed, step, op_id] : seeds)
    for (DType dtype : kFloats) {
      const Tensor state = random_state(seed, step);
      const Rule normal = dtype == DType::float64 ? Rule::close : Rule::bits;
      for (int64_t n : kSizes) {
        h.check("uniform", {state}, {axes({n}), of(-0.25), of(3), Attr::of_dtype(dtype), Attr::of_int(op_id)},
                Rule::bits);
        h.check("normal", {state}, {axes({n}), of(0.1), of(0.02), Attr::of_dtype(dtype), Attr::of_int(op_id)}, normal);
        for (double p : {0.0, 0.1, 0.5, 1.0})
          for (Layout layout : {Layout::contiguous, Layout::offset, Layout::stepped})
            for (const char* op : {"dropout", "dropout_backward"})
              h.check(op, {h.random({n}, dtype, layout, true), state}, {of(p), Attr::of_int(op_id)}, Rule::bits);
      }
      for (Layout layout : kLayouts)
        h.check("dropout", {h.random({5, 33, 24}, dtype, layout), state}, {of(0.3), Attr::of_int(op_id)}, Rule::bits);
    }
  h.check("rng_advance_", {random_state(3, 41)}, {}, Rule::bits);
}

// ---------------------------------------------------------------- more than 2^31 elements

View device_view(void* data, DType dtype, const Shape& shape) {
  View v;
  v.data = data;
  v.dtype = dtype;
  v.shape = shape;
  v.strides = contiguous_strides(shape);
  v.defined_ = true;
  return v;
}

void test_large(Harness& h) {
  const auto op = [](const char* name) -> const Operator& { return *OperatorRegistry::instance().find(name); };
  const int64_t rows = 3, columns = 715827883, n = rows * columns;  // 2^31 + 1
  uint8_t *a = nullptr, *b = nullptr;
  int64_t* total = nullptr;
  if (cudaMalloc(reinterpret_cast<void**>(&a), static_cast<size_t>(2 * n)) != cudaSuccess ||
      cudaMalloc(reinterpret_cast<void**>(&b), static_cast<size_t>(2 * n)) != cudaSuccess ||
      cudaMallocManaged(reinterpret_cast<void**>(&total), 64) != cudaSuccess)
    return h.fail("large: out of memory");
  const auto at = [&](const void* p, int64_t bytes) {
    uint16_t v = 0;
    cudaMemcpy(&v, static_cast<const char*>(p) + bytes, 2, cudaMemcpyDeviceToHost);
    return v;
  };
  const View x = device_view(a, DType::uint8, {rows, columns}), y = device_view(b, DType::uint8, {rows, columns});
  const View sum = device_view(total, DType::int64, {});
  const Attrs full{axes({rows, columns}), of(3), Attr::of_dtype(DType::uint8)};
  h.launch(op("full"), {}, std::span(&x, 1), full);
  h.launch(op("sum"), std::span(&x, 1), std::span(&sum, 1), {Attr::of_all_axes(), Attr::of_bool(false)});
  if (*total != 3 * n) h.fail("large: sum of uint8 is " + std::to_string(*total));
  const View pair[] = {x, x};
  h.launch(op("add"), pair, std::span(&y, 1), {});
  h.launch(op("sum"), std::span(&y, 1), std::span(&sum, 1), {Attr::of_all_axes(), Attr::of_bool(false)});
  if (*total != 6 * n) h.fail("large: sum of a sum of uint8 is " + std::to_string(*total));
  // A column of another value, through a transposed copy.
  cudaMemset(a + 2 * columns, 9, static_cast<size_t>(columns));
  View transposed = device_view(a, DType::uint8, {columns, rows});
  transposed.strides = {1, columns};
  const View turned = device_view(b, DType::uint8, {columns, rows});
  h.launch(op("contiguous"), std::span(&transposed, 1), std::span(&turned, 1), {});
  if (at(b, n - 2) != 0x0903 || at(b, 3) != 0x0303) h.fail("large: transposed copy");
  const View largest = device_view(total, DType::int64, {});
  h.launch(op("argmax"), std::span(&x, 1), std::span(&largest, 1), {Attr::of_all_axes(), Attr::of_bool(false)});
  if (*total != 2 * columns) h.fail("large: argmax is " + std::to_string(*total));
  // bfloat16: the last elements of GELU are those of the first ones.
  const View u = device_view(a, DType::bfloat16, {n}), v = device_view(b, DType::bfloat16, {n});
  h.launch(op("full"), {}, std::span(&u, 1), {axes({n}), of(1.25), Attr::of_dtype(DType::bfloat16)});
  h.launch(op("gelu"), std::span(&u, 1), std::span(&v, 1), {Attr::of_string("tanh")});
  if (at(b, 0) != at(b, 2 * n - 2) || at(b, 0) == 0) h.fail("large: gelu");
  cudaFree(a);
  cudaFree(b);
  cudaFree(total);
}

// ---------------------------------------------------------------- the table

void list_missing() {
  std::string missing;
  int count = 0;
  const auto& registry = OperatorRegistry::instance();
  for (uint32_t id = 0; id < registry.size(); ++id) {
    const Operator& op = registry.at(id);
    if (op.view || op.launch_cuda || !op.launch_cpu) continue;
    missing += " " + op.name;
    ++count;
  }
  std::printf("operators without a CUDA launcher: %d%s\n", count, missing.c_str());
}

}  // namespace

int main(int argc, char** argv) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::puts("no CUDA device: nothing tested");
    return 0;
  }
  const std::pair<const char*, std::vector<void (*)(Harness&)>> families[] = {
      {"creation", {test_creation}},
      {"elementwise", {test_unary, test_binary, test_where}},
      {"copy", {test_copy, test_writes, test_position_report}},
      {"reduce", {test_reduce}},
      {"random", {test_random}},
      {"large", {test_large}},
  };
  Harness harness;
  int first = 1;
  if (argc > 1 && std::strncmp(argv[1], "every=", 6) == 0) harness.sample(std::max(1, std::atoi(argv[first++] + 6)));
  for (const auto& [name, tests] : families) {
    bool wanted = argc == first;
    for (int i = first; i < argc; ++i) wanted |= std::strcmp(argv[i], name) == 0;
    if (!wanted) continue;
    const int cases = harness.cases(), failures = harness.failures();
    try {
      for (const auto test : tests) test(harness);
    } catch (const std::exception& e) {
      harness.fail(std::string(name) + ": " + e.what());
    }
    std::printf("%s: %d cases, %d failures\n", name, harness.cases() - cases, harness.failures() - failures);
    std::fflush(stdout);
  }
  list_missing();
  return harness.failures() == 0 ? 0 : 1;
}
