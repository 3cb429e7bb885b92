// Native tests of blublas, for the sanitizers above all: exact operands against a plain loop, in every layout, dtype, kernel set
// and epilogue; guards around every buffer; the pool under load. Prints what fails; the exit status is the number of failures.
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "blublas/blublas.h"

namespace {

int failures = 0;

void check(bool passed, const std::string& what) {
  if (passed) return;
  ++failures;
  std::printf("FAILED: %s (last error: %s)\n", what.c_str(), blublas_last_error());
}

// ---- Operands ----------------------------------------------------------------------------------------------------
// Small integers: every product and sum is exact in float32, so that results are compared with ==.
uint32_t random_state = 1;
int random_integer() {
  random_state = random_state * 1664525U + 1013904223U;
  return static_cast<int>(random_state >> 28) - 8;
}

uint16_t to_bfloat16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

float from_bfloat16(uint16_t value) {
  const uint32_t bits = static_cast<uint32_t>(value) << 16;
  float result;
  std::memcpy(&result, &bits, 4);
  return result;
}

int64_t item_bytes(int32_t dtype) { return dtype == BLUBLAS_FLOAT64 ? 8 : dtype == BLUBLAS_BFLOAT16 ? 2 : 4; }

enum class Layout { rows, columns, padded, spread, backwards };
constexpr Layout kLayouts[] = {Layout::rows, Layout::columns, Layout::padded, Layout::spread, Layout::backwards};

// A matrix in memory of exactly its extent, so that AddressSanitizer sees any step beside it.
class Matrix {
 public:
  Matrix(int64_t rows, int64_t cols, int32_t dtype, Layout layout, int64_t batch = 1) {
    view_.dtype = dtype, view_.rows = rows, view_.cols = cols;
    view_.row_stride = layout == Layout::columns  ? 1
                       : layout == Layout::padded ? cols + 3
                       : layout == Layout::spread ? 3 * cols + 2
                                                  : cols;
    view_.col_stride = layout == Layout::columns ? rows : layout == Layout::spread ? 3 : 1;
    const int64_t extent = rows > 0 && cols > 0 ? (rows - 1) * view_.row_stride + (cols - 1) * view_.col_stride + 1 : 0;
    view_.batch_stride = extent;
    memory_ = std::make_unique<char[]>(static_cast<size_t>(extent * batch * item_bytes(dtype)));
    std::memset(memory_.get(), 0xff, static_cast<size_t>(extent * batch * item_bytes(dtype)));  // NaN
    view_.data = memory_.get();
    if (layout == Layout::backwards && extent > 0) {
      view_.data = memory_.get() + (extent - 1) * item_bytes(dtype);
      view_.row_stride = -view_.row_stride, view_.col_stride = -view_.col_stride;
    }
    batch_ = batch;
  }

  void randomize() {
    for (int64_t t = 0; t < batch_; ++t)
      for (int64_t i = 0; i < view_.rows; ++i)
        for (int64_t j = 0; j < view_.cols; ++j) set(t, i, j, random_integer());
  }

  double at(int64_t t, int64_t i, int64_t j) const {
    const char* element = address(t, i, j);
    if (view_.dtype == BLUBLAS_FLOAT64) return read<double>(element);
    if (view_.dtype == BLUBLAS_FLOAT32) return static_cast<double>(read<float>(element));
    return static_cast<double>(from_bfloat16(read<uint16_t>(element)));
  }

  void set(int64_t t, int64_t i, int64_t j, double value) {
    char* element = address(t, i, j);
    const float narrow = static_cast<float>(value);
    const uint16_t half = to_bfloat16(narrow);
    if (view_.dtype == BLUBLAS_FLOAT64) std::memcpy(element, &value, 8);
    if (view_.dtype == BLUBLAS_FLOAT32) std::memcpy(element, &narrow, 4);
    if (view_.dtype == BLUBLAS_BFLOAT16) std::memcpy(element, &half, 2);
  }

  const blublas_matrix& view() const { return view_; }

 private:
  template <typename T>
  static T read(const char* element) {
    T value;
    std::memcpy(&value, element, sizeof(T));
    return value;
  }
  char* address(int64_t t, int64_t i, int64_t j) const {
    return static_cast<char*>(view_.data) +
           (t * view_.batch_stride + i * view_.row_stride + j * view_.col_stride) * item_bytes(view_.dtype);
  }

  std::unique_ptr<char[]> memory_;
  blublas_matrix view_{};
  int64_t batch_ = 1;
};

// Asks for the workspace and calls, in a buffer of exactly that size.
int32_t run(blublas_gemm_args& args) {
  size_t bytes = 0;
  const int32_t status = blublas_gemm_workspace(&args, &bytes);
  if (status != BLUBLAS_OK) return status;
  void* workspace = bytes > 0 ? ::operator new(bytes, std::align_val_t{64}) : nullptr;
  if (workspace) std::memset(workspace, 0xff, bytes);
  args.workspace = workspace, args.workspace_bytes = bytes;
  const int32_t result = blublas_gemm(&args);
  if (workspace) ::operator delete(workspace, std::align_val_t{64});
  return result;
}

blublas_gemm_args arguments(const Matrix& a, const Matrix& b, const Matrix& c, int64_t batch = 1) {
  blublas_gemm_args args{};
  args.struct_size = sizeof(args);
  args.batch = batch, args.alpha = 1;
  args.a = a.view(), args.b = b.view(), args.c = c.view();
  return args;
}

// ---- Products ----------------------------------------------------------------------------------------------------
struct Types {
  int32_t operand, result, compute;
};

// Everything but GELU: exact. Flags that are off are not given.
void test_product(int64_t m, int64_t n, int64_t k, Types types, Layout layout, int32_t flags, double beta,
                  int64_t batch, const char* set) {
  Matrix a(m, k, types.operand, layout, batch), b(k, n, types.operand, layout, batch),
      c(m, n, types.result, layout, batch);
  Matrix residual(m, n, types.result, layout, batch), aux(m, n, types.compute, layout, batch),
      bias(1, n, types.compute, Layout::rows);
  Matrix column_sum(1, n, types.compute, Layout::rows, batch), row_sum(1, m, types.compute, Layout::rows, batch);
  for (Matrix* x : {&a, &b, &residual, &bias}) x->randomize();
  const bool reads_c = beta != 0 || (flags & BLUBLAS_EPILOGUE_ACCUMULATE);
  Matrix old(m, n, types.result, Layout::rows, batch);
  old.randomize();
  for (int64_t t = 0; t < batch && reads_c; ++t)
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j) c.set(t, i, j, old.at(t, i, j));

  blublas_gemm_args args = arguments(a, b, c, batch);
  args.alpha = 2, args.beta = beta, args.epilogue = flags;
  args.bias = bias.view().data, args.bias_dtype = types.compute;
  args.aux = aux.view(), args.residual = residual.view();
  args.column_sum = column_sum.view().data, args.column_sum_batch_stride = n;
  args.row_sum_a = row_sum.view().data, args.row_sum_a_batch_stride = m;
  const std::string what = std::string(set) + " " + std::to_string(m) + "x" + std::to_string(n) + "x" +
                           std::to_string(k) + " operand " + std::to_string(types.operand) + " result " +
                           std::to_string(types.result) + " layout " + std::to_string(static_cast<int>(layout)) +
                           " flags " + std::to_string(flags) + " batch " + std::to_string(batch);
  if (run(args) != BLUBLAS_OK) return check(false, what);

  bool same = true;
  for (int64_t t = 0; t < batch; ++t) {
    std::vector<double> columns(static_cast<size_t>(n), 0.0);
    for (int64_t i = 0; i < m; ++i) {
      double row = 0;
      for (int64_t p = 0; p < k; ++p) row += a.at(t, i, p);
      if (flags & BLUBLAS_EPILOGUE_ROW_SUM_A) same &= row_sum.at(t, 0, i) == row;
      for (int64_t j = 0; j < n; ++j) {
        double v = 0;
        for (int64_t p = 0; p < k; ++p) v += a.at(t, i, p) * b.at(t, p, j);
        v *= 2;
        if (beta != 0) v += beta * old.at(t, i, j);
        if (flags & BLUBLAS_EPILOGUE_BIAS) v += bias.at(0, 0, j);
        if (flags & BLUBLAS_EPILOGUE_STORE_PREACTIVATION) same &= aux.at(t, i, j) == v;
        if (flags & BLUBLAS_EPILOGUE_RESIDUAL) v += residual.at(t, i, j);
        if (flags & BLUBLAS_EPILOGUE_ACCUMULATE) v += old.at(t, i, j);
        columns[static_cast<size_t>(j)] += v;
        const double stored = types.result == BLUBLAS_BFLOAT16
                                  ? static_cast<double>(from_bfloat16(to_bfloat16(static_cast<float>(v))))
                                  : v;
        same &= c.at(t, i, j) == stored;
      }
    }
    if (flags & BLUBLAS_EPILOGUE_COLUMN_SUM)
      for (int64_t j = 0; j < n; ++j) same &= column_sum.at(t, 0, j) == columns[static_cast<size_t>(j)];
  }
  check(same, what);
}

void test_products(const char* set) {
  if (blublas_set_kernel(set) != BLUBLAS_OK) return;
  constexpr Types kTypes[] = {{BLUBLAS_FLOAT32, BLUBLAS_FLOAT32, BLUBLAS_FLOAT32},
                              {BLUBLAS_FLOAT64, BLUBLAS_FLOAT64, BLUBLAS_FLOAT64},
                              {BLUBLAS_BFLOAT16, BLUBLAS_FLOAT32, BLUBLAS_FLOAT32},
                              {BLUBLAS_BFLOAT16, BLUBLAS_BFLOAT16, BLUBLAS_FLOAT32}};
  constexpr int32_t kFlags[] = {
      0, BLUBLAS_EPILOGUE_BIAS | BLUBLAS_EPILOGUE_COLUMN_SUM,
      BLUBLAS_EPILOGUE_RESIDUAL | BLUBLAS_EPILOGUE_STORE_PREACTIVATION | BLUBLAS_EPILOGUE_ROW_SUM_A,
      BLUBLAS_EPILOGUE_ACCUMULATE | BLUBLAS_EPILOGUE_BIAS | BLUBLAS_EPILOGUE_STORE_PREACTIVATION |
          BLUBLAS_EPILOGUE_RESIDUAL | BLUBLAS_EPILOGUE_COLUMN_SUM | BLUBLAS_EPILOGUE_ROW_SUM_A};
  constexpr int64_t kSizes[][3] = {{1, 1, 1},    {1, 33, 40}, {3, 70, 9},   {5, 8, 0},     {6, 16, 7},
                                   {13, 31, 17}, {14, 32, 8}, {15, 33, 9},  {29, 65, 3},   {40, 1, 50},
                                   {0, 5, 3},    {5, 0, 3},   {2, 2, 1100}, {16, 40, 1700}};
  int turn = 0;
  for (const auto& size : kSizes)
    for (const Types& types : kTypes)
      for (const int32_t flags : kFlags)
        test_product(size[0], size[1], size[2], types, kLayouts[turn % 5], flags, turn % 3 == 0 ? 3 : 0,
                     turn % 4 == 0 ? 2 : 1, set),
            ++turn;
  for (const Layout layout : kLayouts) test_product(130, 150, 70, kTypes[0], layout, kFlags[3], 1, 1, set);
  check(blublas_set_kernel("auto") == BLUBLAS_OK, "set_kernel auto");
}

void test_gelu(const char* set) {
  if (blublas_set_kernel(set) != BLUBLAS_OK) return;
  constexpr int64_t n = 203;
  for (const int32_t flag : {BLUBLAS_EPILOGUE_GELU_TANH, BLUBLAS_EPILOGUE_GELU_ERF, BLUBLAS_EPILOGUE_GELU_TANH_GRADIENT,
                             BLUBLAS_EPILOGUE_GELU_ERF_GRADIENT}) {
    Matrix a(17, 1, BLUBLAS_FLOAT32, Layout::rows), b(1, n, BLUBLAS_FLOAT32, Layout::rows),
        c(17, n, BLUBLAS_FLOAT32, Layout::padded);
    Matrix aux(17, n, BLUBLAS_FLOAT32, Layout::rows);
    for (int64_t i = 0; i < 17; ++i) a.set(0, i, 0, 1);
    for (int64_t j = 0; j < n; ++j) b.set(0, 0, j, 0.1 * static_cast<double>(j - 100));
    const bool gradient = flag == BLUBLAS_EPILOGUE_GELU_TANH_GRADIENT || flag == BLUBLAS_EPILOGUE_GELU_ERF_GRADIENT;
    for (int64_t i = 0; i < 17; ++i)
      for (int64_t j = 0; j < n; ++j) aux.set(0, i, j, b.at(0, 0, j));
    blublas_gemm_args args = arguments(a, b, c);
    args.epilogue = flag, args.aux = aux.view();
    check(run(args) == BLUBLAS_OK, "gelu runs");
    bool close = true;
    for (int64_t j = 0; j < n; ++j) {
      const double x = b.at(0, 0, j), pi = 3.14159265358979323846, root = std::sqrt(2 / pi);
      const double tanh = std::tanh(root * (x + 0.044715 * x * x * x)), erf = std::erf(x / std::sqrt(2.0));
      double expected = 0.5 * x * (1 + (flag == BLUBLAS_EPILOGUE_GELU_TANH ? tanh : erf));
      if (flag == BLUBLAS_EPILOGUE_GELU_TANH_GRADIENT)
        expected = x * (0.5 * (1 + tanh) + 0.5 * x * (1 - tanh * tanh) * root * (1 + 3 * 0.044715 * x * x));
      if (flag == BLUBLAS_EPILOGUE_GELU_ERF_GRADIENT)
        expected = x * (0.5 * (1 + erf) + x * std::exp(-0.5 * x * x) / std::sqrt(2 * pi));
      // Ten roundings of float32 at the scale of x: the accuracy proper is tested beside PyTorch.
      for (int64_t i = 0; i < 17; ++i)
        close &= std::fabs(c.at(0, i, j) - expected) <= 6e-7 * std::fmax(1.0, std::fabs(x));
    }
    check(close, std::string(set) + " gelu flag " + std::to_string(flag) + (gradient ? " gradient" : ""));
  }
  check(blublas_set_kernel("auto") == BLUBLAS_OK, "set_kernel auto");
}

void test_refusals() {
  Matrix a(4, 5, BLUBLAS_FLOAT32, Layout::rows), b(5, 6, BLUBLAS_FLOAT32, Layout::rows),
      c(4, 6, BLUBLAS_FLOAT32, Layout::rows);
  const auto refused = [&](int32_t status, const char* what, auto change) {
    blublas_gemm_args args = arguments(a, b, c);
    change(args);
    const int32_t got = run(args);
    check(got == status && std::strncmp(blublas_last_error(), "[gemm]", 6) == 0, std::string("refusal: ") + what);
    check(std::isnan(c.at(0, 0, 0)), std::string("nothing written: ") + what);
  };
  using Args = blublas_gemm_args;
  refused(BLUBLAS_INVALID_VALUE, "size of the struct", [](Args& x) { x.struct_size = 4; });
  refused(BLUBLAS_UNSUPPORTED, "device", [](Args& x) { x.device_type = 7; });
  refused(BLUBLAS_INVALID_DTYPE, "dtype", [](Args& x) { x.a.dtype = BLUBLAS_FLOAT16; });
  refused(BLUBLAS_INVALID_VALUE, "shape", [](Args& x) { x.b.rows = 7; });
  refused(BLUBLAS_INVALID_VALUE, "negative size", [](Args& x) { x.batch = -1; });
  refused(BLUBLAS_INVALID_VALUE, "pointer", [](Args& x) { x.b.data = nullptr; });
  refused(BLUBLAS_INVALID_VALUE, "flags", [](Args& x) { x.epilogue = 1 << 20; });
  refused(BLUBLAS_INVALID_VALUE, "overlap with itself", [](Args& x) { x.c.row_stride = 0; });
  refused(BLUBLAS_INVALID_VALUE, "extreme stride",
          [](Args& x) { x.a.row_stride = std::numeric_limits<int64_t>::min(); });
  refused(BLUBLAS_INVALID_VALUE, "overlap", [](Args& x) { x.c.data = x.a.data; });
  check(blublas_gemm(nullptr) == BLUBLAS_INVALID_VALUE, "no arguments");
  check(blublas_set_kernel(nullptr) == BLUBLAS_INVALID_VALUE, "no name of a kernel set");
  check(blublas_set_num_threads(-1) == BLUBLAS_INVALID_VALUE, "negative number of threads");
}

void test_thread_counts() {
  Matrix a(150, 700, BLUBLAS_FLOAT32, Layout::rows), b(700, 130, BLUBLAS_FLOAT32, Layout::columns);
  for (int64_t i = 0; i < 700; ++i) {
    for (int64_t j = 0; j < 150; ++j) a.set(0, j, i, random_integer() * 0.37);
    for (int64_t j = 0; j < 130; ++j) b.set(0, i, j, random_integer() * 0.73);
  }
  Matrix first(150, 130, BLUBLAS_FLOAT32, Layout::rows);
  for (const int32_t threads : {1, 2, 3, 4, 8}) {
    check(blublas_set_num_threads(threads) == BLUBLAS_OK, "set_num_threads");
    Matrix c(150, 130, BLUBLAS_FLOAT32, Layout::rows);
    blublas_gemm_args args = arguments(a, b, threads == 1 ? first : c);
    check(run(args) == BLUBLAS_OK, "product on several threads");
    if (threads > 1)
      check(std::memcmp(first.view().data, c.view().data, 150 * 130 * 4) == 0,
            "same bits on " + std::to_string(threads) + " threads");
  }
  check(blublas_set_num_threads(0) == BLUBLAS_OK, "default threads");
}

// ---- Pool --------------------------------------------------------------------------------------------------------
struct Counts {
  std::vector<std::atomic<int>> tasks;
  std::vector<int64_t> plain;  // written without atomics: visible to the caller afterwards
  std::atomic<int> misplaced{0};
  explicit Counts(size_t size) : tasks(size), plain(size) {}
};

void count_task(void* arg, int64_t index, int32_t thread) {
  Counts& counts = *static_cast<Counts*>(arg);
  counts.tasks[static_cast<size_t>(index)].fetch_add(1, std::memory_order_relaxed);
  counts.plain[static_cast<size_t>(index)] = index + 1;
  if (thread < 0 || thread >= blublas_num_threads() || blublas_in_parallel() != 1) counts.misplaced.fetch_add(1);
}

void test_pool() {
  for (const int32_t threads : {1, 2, 4}) {
    check(blublas_set_num_threads(threads) == BLUBLAS_OK, "set_num_threads");
    for (int round = 0; round < 200; ++round) {
      Counts counts(static_cast<size_t>(round));
      blublas_parallel(round, count_task, &counts);
      bool once = counts.misplaced.load() == 0;
      for (size_t i = 0; i < counts.plain.size(); ++i)
        once &= counts.tasks[i].load() == 1 && counts.plain[i] == static_cast<int64_t>(i) + 1;
      check(once, "every task once");
    }
  }
  Counts outer(50);
  blublas_parallel(
      50,
      [](void* arg, int64_t index, int32_t thread) {
        Counts inner(20);
        blublas_parallel(20, count_task, &inner);
        for (const auto& task : inner.tasks)
          if (task.load() != 1) static_cast<Counts*>(arg)->misplaced.fetch_add(1);
        count_task(arg, index, thread);
        if (blublas_set_num_threads(1) != BLUBLAS_INVALID_VALUE) static_cast<Counts*>(arg)->misplaced.fetch_add(1);
      },
      &outer);
  check(outer.misplaced.load() == 0, "nested calls");

  // Callers that compete, while the number of threads changes.
  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 3; ++caller)
    callers.emplace_back([&] {
      while (!stop.load()) {
        std::vector<int> seen(64, 0);
        blublas_parallel(
            64, [](void* arg, int64_t index, int32_t) { static_cast<int*>(arg)[index] += 1; }, seen.data());
        for (const int value : seen) wrong.fetch_add(value != 1);
      }
    });
  for (int round = 0; round < 50; ++round) {
    check(blublas_set_num_threads(1 + round % 4) == BLUBLAS_OK, "set_num_threads beside callers");
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  stop = true;
  for (std::thread& caller : callers) caller.join();
  check(wrong.load() == 0, "competing callers");
  check(blublas_set_num_threads(0) == BLUBLAS_OK, "default threads");
}

}  // namespace

// "pool" as an argument runs the tests of threads alone.
int main(int argc, char** argv) {
  test_pool();
  test_thread_counts();
  if (argc > 1 && std::string(argv[1]) == "pool") return failures;
  for (const char* set : {"reference", "avx2", "avx512"}) {
    test_products(set);
    test_gelu(set);
  }
  test_refusals();
  if (failures == 0) std::printf("all native tests of blublas passed\n");
  return failures;
}
