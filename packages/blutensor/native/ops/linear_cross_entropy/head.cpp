// loss = sum over n of log(sum over v of exp l[n, v]) - l[n, target n],  l = x W^T, and its gradients
//   dl[n, v] = (exp(l[n, v]) / sum exp l[n] - [v = target n]) g,  dx = dl W,  dW = dl^T x.
//
// Shapes: x [N, C], W [V, C]; l and dl exist for a chunk of rows only (kChunkBytes).
//
// Per chunk of rows, with the vocabulary cut in blocks (of kBlockColumns, which stay in L2 beside their part of W):
//   1. for every block, in parallel: l = x W^T by a GEMM on one thread; per row the block's largest logit, the target's logit, and e = exp(l - max) in
//      place with its sum;
//   2. per row: log-sum-exp over the blocks, the row's loss, and the factor that makes e of each block a gradient;
//   3. for every group of blocks, in parallel: dl = e factor - [target]; dW (+)= dl^T x, and the group's own dx += dl W, while dl is in cache;
//   4. dx = sum of the groups' in their order.
// A vocabulary of few blocks gives threads too little to share: then the GEMMs of a whole chunk run on all threads, and rows are shared instead.
// Everything is cut by the shape alone, so bits do not depend on threads.
//
// FLOPs: 6 N V C with gradients, 2 N V C without. Bytes beside the GEMMs': 16 per logit, in cache. Workspace: a chunk of logits, kGroups [rows, C] sums.
// Benchmark: benchmarks/bench_operators.py --only linear_cross_entropy
#include "ops/linear_cross_entropy/head.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "ops/kernels.h"
#include "ops/linear_cross_entropy/reference.h"
#include "ops/parallel.h"

namespace blutensor {

namespace {

constexpr int64_t kChunkBytes = 32 << 20;
constexpr int64_t kBlockColumns = 1024;
constexpr int64_t kGroups = 16;
constexpr int64_t kMinRows = 64;

template <class T>
struct Passes {
  static ExpSum<T> exponentiate(T* x, int64_t n) { return exponentiate_reference(x, n); }
  static void scale(T* x, int64_t n, T factor) { scale_reference(x, n, factor); }
};
template <>
struct Passes<float> {
  static ExpSum<float> exponentiate(float* x, int64_t n) {
    return kernels().linear_cross_entropy.exponentiate_f32(x, n);
  }
  static void scale(float* x, int64_t n, float factor) { kernels().linear_cross_entropy.scale_f32(x, n, factor); }
};

template <class T>
class Head {
 public:
  Head(const HeadProblem& problem, Execution& run)
      : p_(problem), run_(run), rows_(problem.x.rows), vocabulary_(problem.weight.rows), channels_(problem.x.cols) {
    const int64_t fitting = kChunkBytes / static_cast<int64_t>(sizeof(T)) / std::max<int64_t>(1, vocabulary_);
    chunk_rows_ = std::min(std::max<int64_t>(1, rows_), std::max(kMinRows, fitting / kMinRows * kMinRows));
    num_blocks_ = (vocabulary_ + kBlockColumns - 1) / kBlockColumns;
    blocked_ = num_blocks_ >= kGroups;
    logits_ = run.scratch(chunk_rows_, vocabulary_, p_.x.dtype);
    sums_ = run.take<ExpSum<T>>(chunk_rows_ * num_blocks_);
    factors_ = run.take<T>(chunk_rows_ * num_blocks_);
    target_logits_ = run.take<T>(chunk_rows_);
    losses_ = run.take<double>(rows_);
    if (blocked_ && wants_x()) partial_ = run.scratch(kGroups * chunk_rows_, channels_, p_.x.dtype);
  }

  void operator()() {
    if (blocked_) take_thread_scratch();
    int64_t count = 0;
    if (!run_.dry()) {
      for (int64_t n = 0; n < rows_; ++n) count += p_.targets[n] >= 0;
      // With nothing to average the factor multiplies nothing: ignored rows are set to 0.
      grad_scale_ = p_.mean ? T{1} / static_cast<T>(count) : T{1};
    }
    const int64_t last = rows_ > 0 ? (rows_ - 1) / chunk_rows_ * chunk_rows_ : 0;
    for (int64_t row = 0; row < rows_; row += chunk_rows_) {
      // The first two chunks and the last show all that a GEMM's workspace depends on.
      if (run_.dry() && row > chunk_rows_) row = last;
      row_ = row;
      count_ = std::min(chunk_rows_, rows_ - row);
      blocked_ ? run_blocked() : run_whole();
    }
    if (run_.dry()) return;
    finish_empty();
    double loss = 0;
    for (int64_t n = 0; n < rows_; ++n) loss += losses_[n];
    *static_cast<T*>(p_.loss) = static_cast<T>(p_.mean ? loss / static_cast<double>(count) : loss);
  }

 private:
  bool wants_x() const { return p_.x_grad.rows > 0; }
  bool wants_weight() const { return p_.weight_grad.rows > 0; }
  bool wants_gradients() const { return wants_x() || wants_weight(); }

  int64_t block_begin(int64_t block) const { return block * kBlockColumns; }
  int64_t block_size(int64_t block) const { return std::min(kBlockColumns, vocabulary_ - block_begin(block)); }
  T* logits(int64_t row, int64_t block) const {
    return static_cast<T*>(logits_.data) + row * vocabulary_ + block_begin(block);
  }
  int64_t target(int64_t row) const { return p_.targets[row_ + row]; }

  // ---------------------------------------------------------------- the GEMMs of columns [begin, begin + size) of the vocabulary

  Matrix x_rows() const { return p_.x.row_block(row_, count_); }
  Matrix chunk(int64_t begin, int64_t size) const { return logits_.row_block(0, count_).col_block(begin, size); }

  blublas_gemm_args logits_gemm(int64_t begin, int64_t size) const {
    return make_gemm(x_rows(), p_.weight.row_block(begin, size).transposed(), chunk(begin, size));
  }
  blublas_gemm_args weight_gemm(int64_t begin, int64_t size) const {
    auto args = make_gemm(chunk(begin, size).transposed(), x_rows(), p_.weight_grad.row_block(begin, size));
    if (row_ > 0) args.epilogue |= BLUBLAS_EPILOGUE_ACCUMULATE;
    return args;
  }
  blublas_gemm_args x_gemm(int64_t begin, int64_t size, const Matrix& to, bool accumulate) const {
    auto args = make_gemm(chunk(begin, size), p_.weight.row_block(begin, size), to);
    if (accumulate) args.epilogue |= BLUBLAS_EPILOGUE_ACCUMULATE;
    return args;
  }

  // ---------------------------------------------------------------- rows

  // Before the logits are overwritten: the target's.
  void exponentiate(int64_t row, int64_t block) {
    const int64_t in_block = target(row) - block_begin(block);
    T* x = logits(row, block);
    if (in_block >= 0 && in_block < block_size(block)) target_logits_[row] = x[in_block];
    sums_[row * num_blocks_ + block] = Passes<T>::exponentiate(x, block_size(block));
  }

  // Loss of a row and the factors of its blocks.
  void combine(int64_t row) {
    const ExpSum<T>* sums = sums_ + row * num_blocks_;
    T* factors = factors_ + row * num_blocks_;
    losses_[row_ + row] = 0;
    if (target(row) < 0) return;
    double max = -std::numeric_limits<double>::infinity(), sum = 0;
    for (int64_t b = 0; b < num_blocks_; ++b) max = std::max(max, static_cast<double>(sums[b].max));
    for (int64_t b = 0; b < num_blocks_; ++b) {
      const double weight =
          sums[b].max == -std::numeric_limits<T>::infinity() ? 0 : std::exp(static_cast<double>(sums[b].max) - max);
      factors[b] = static_cast<T>(weight);
      // A block that is NaN throughout has max -inf: its sum still counts.
      sum += static_cast<double>(sums[b].sum) * (weight == 0 && std::isnan(sums[b].sum) ? 1 : weight);
    }
    losses_[row_ + row] = std::log(sum) + max - static_cast<double>(target_logits_[row]);
    for (int64_t b = 0; b < num_blocks_; ++b)
      factors[b] = static_cast<T>(static_cast<double>(factors[b]) / sum) * grad_scale_;
  }

  void to_gradient(int64_t row, int64_t block) {
    T* x = logits(row, block);
    const int64_t size = block_size(block), in_block = target(row) - block_begin(block);
    if (target(row) < 0) {
      std::memset(x, 0, static_cast<size_t>(size) * sizeof(T));
      return;
    }
    Passes<T>::scale(x, size, factors_[row * num_blocks_ + block]);
    if (in_block >= 0 && in_block < size) x[in_block] -= grad_scale_;
  }

  // ---------------------------------------------------------------- few blocks: GEMMs of a whole chunk

  void run_whole() {
    run_.gemm(logits_gemm(0, vocabulary_));
    if (!run_.dry()) {
      parallel_for(count_, std::max<int64_t>(1, kElementwiseGrain / std::max<int64_t>(1, vocabulary_)),
                   [&](int64_t begin, int64_t end) {
                     for (int64_t row = begin; row < end; ++row) {
                       for (int64_t b = 0; b < num_blocks_; ++b) exponentiate(row, b);
                       combine(row);
                       for (int64_t b = 0; b < num_blocks_ && wants_gradients(); ++b) to_gradient(row, b);
                     }
                   });
    }
    if (wants_x()) run_.gemm(x_gemm(0, vocabulary_, p_.x_grad.row_block(row_, count_), false));
    if (wants_weight()) run_.gemm(weight_gemm(0, vocabulary_));
  }

  // ---------------------------------------------------------------- many blocks: each on one thread

  // Workspace of the GEMMs, for each thread; fewer threads work where the operator was planned for fewer.
  void take_thread_scratch() {
    row_ = 0;
    count_ = std::min(chunk_rows_, rows_);
    const auto bytes = [](blublas_gemm_args args) {
      args.num_threads = 1;
      return gemm_workspace(args);
    };
    const int64_t size = std::min(kBlockColumns, vocabulary_), rest = block_size(num_blocks_ - 1),
                  last = rows_ - (rows_ - 1) / chunk_rows_ * chunk_rows_;
    for (const int64_t rows : {count_, last}) {
      for (const int64_t columns : {size, rest}) {
        count_ = rows;
        scratch_bytes_ = std::max(scratch_bytes_, bytes(logits_gemm(0, columns)));
        row_ = 1;  // accumulating
        if (wants_weight()) scratch_bytes_ = std::max(scratch_bytes_, bytes(weight_gemm(0, columns)));
        if (wants_x())
          scratch_bytes_ = std::max(scratch_bytes_, bytes(x_gemm(0, columns, partial_.row_block(0, rows), true)));
        row_ = 0;
        if (wants_weight()) scratch_bytes_ = std::max(scratch_bytes_, bytes(weight_gemm(0, columns)));
        if (wants_x())
          scratch_bytes_ = std::max(scratch_bytes_, bytes(x_gemm(0, columns, partial_.row_block(0, rows), false)));
      }
    }
    scratch_bytes_ = (scratch_bytes_ + 63) / 64 * 64;
    threads_ = run_.take_per_thread(scratch_bytes_, &scratch_);
  }

  void gemm_on_thread(blublas_gemm_args args, int32_t thread) const {
    args.num_threads = 1;
    args.workspace = scratch_ + static_cast<size_t>(thread) * scratch_bytes_;
    args.workspace_bytes = scratch_bytes_;
    run_gemm(args);
  }

  void run_blocked() {
    if (run_.dry()) return;
    parallel_for_threads(
        num_blocks_, 1,
        [&](int64_t block, int64_t, int32_t thread) {
          gemm_on_thread(logits_gemm(block_begin(block), block_size(block)), thread);
          for (int64_t row = 0; row < count_; ++row) exponentiate(row, block);
        },
        threads_);
    parallel_for(count_, 16, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) combine(row);
    });
    if (!wants_gradients()) return;
    parallel_for_threads(
        kGroups, 1,
        [&](int64_t group, int64_t, int32_t thread) {
          const int64_t first = num_blocks_ * group / kGroups, end = num_blocks_ * (group + 1) / kGroups;
          for (int64_t block = first; block < end; ++block) {
            const int64_t begin = block_begin(block), size = block_size(block);
            for (int64_t row = 0; row < count_; ++row) to_gradient(row, block);
            if (wants_weight()) gemm_on_thread(weight_gemm(begin, size), thread);
            if (wants_x())
              gemm_on_thread(x_gemm(begin, size, partial_.row_block(group * chunk_rows_, count_), block > first),
                             thread);
          }
        },
        threads_);
    if (wants_x()) add_groups();
  }

  void add_groups() {
    const int64_t n = count_ * channels_;
    const auto* partial = static_cast<const T*>(partial_.data);
    auto* out = static_cast<T*>(p_.x_grad.data) + row_ * channels_;
    constexpr int64_t kPiece = 1024;
    parallel_for(n, 4 * kPiece, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; i += kPiece) {
        const int64_t size = std::min(kPiece, end - i);
        std::memcpy(out + i, partial + i, static_cast<size_t>(size) * sizeof(T));
        for (int64_t group = 1; group < kGroups; ++group) {
          const T* other = partial + group * chunk_rows_ * channels_ + i;
          for (int64_t j = 0; j < size; ++j) out[i + j] += other[j];
        }
      }
    });
  }

  // Without rows no GEMM has written dW.
  void finish_empty() {
    if (rows_ == 0 && wants_weight())
      std::memset(p_.weight_grad.data, 0, static_cast<size_t>(vocabulary_ * channels_) * sizeof(T));
  }

  const HeadProblem& p_;
  Execution& run_;
  int64_t rows_, vocabulary_, channels_;
  int64_t chunk_rows_ = 0, num_blocks_ = 0;
  bool blocked_ = false;
  Matrix logits_;               // [chunk_rows, V]
  ExpSum<T>* sums_ = nullptr;   // [chunk_rows, num_blocks]
  T* factors_ = nullptr;        // [chunk_rows, num_blocks]
  T* target_logits_ = nullptr;  // [chunk_rows]
  double* losses_ = nullptr;    // [N]
  Matrix partial_;              // [kGroups * chunk_rows, C]
  char* scratch_ = nullptr;
  size_t scratch_bytes_ = 0;  // of one thread
  int32_t threads_ = 1;
  T grad_scale_ = 1;
  int64_t row_ = 0, count_ = 0;  // the chunk at work
};

}  // namespace

void run_head(const HeadProblem& problem, Execution& run) {
  if (problem.x.dtype == DType::float64)
    Head<double>(problem, run)();
  else
    Head<float>(problem, run)();
}

}  // namespace blutensor
