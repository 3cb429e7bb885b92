// loss = sum over n of log(sum over v of exp l[v, n]) - l[target n, n],  l = W x^T, and its gradients
//   dl[v, n] = (exp(l[v, n]) / sum over v of exp l[v, n] - [v = target n]) g,  dx = dl^T W,  dW = dl x.
//
// Shapes: x [N, C], W [V, C]; l and dl [V, n] exist for a chunk of n tokens only (kChunkBytes).
// Logits lie class by class, tokens side by side: both GEMMs that have a block of W or dl on the left then read it
// where it is, and only x, which is small, is packed; and the passes over logits need no operation across the lanes of
// a vector.
//
// Per chunk of tokens, with the vocabulary cut in blocks of kBlock classes, which stay in L2 beside their part of W:
//   1. for every block, in parallel: l = W x^T by a GEMM on one thread; per token the target's logit, the block's
//      largest logit, and e = exp(l - max) in place with its sum;
//   2. per token: log-sum-exp over the blocks, the loss, and the factor that makes e of each block a gradient;
//   3. for every group of blocks, in parallel: dl = e factor - [target] g; dW (+)= dl x, and the group's own
//      dx += dl^T W;
//   4. dx = sum of the groups' in their order.
// A vocabulary of few blocks gives threads too little to share: then each GEMM of a chunk runs on all threads, and
// tokens are shared too. Everything is cut by the shape alone, so bits do not depend on threads.
//
// FLOPs: 6 N V C with gradients, 2 N V C without. Bytes beside the GEMMs': 20 per logit, from L2. Workspace: a chunk of
// logits, and kGroups [n, C] sums.
// Benchmark: benchmarks/bench_layers.py --only linear_cross_entropy
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

// More tokens at a time read and write W and dW less often: 64 MiB hold 333 tokens of GPT-2's vocabulary.
constexpr int64_t kChunkBytes = 64 << 20;
constexpr int64_t kBlock = 512;
constexpr int64_t kGroups = 16;
constexpr int64_t kMinTokens = 64;
constexpr int64_t kTokensPerTask = 256;  // where tokens are shared

int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }
int64_t ceil_div(int64_t n, int64_t d) { return (n + d - 1) / d; }

template <class T>
void exponentiate(const LogitBlock<T>& block, T* max, T* sum) {
  if constexpr (std::is_same_v<T, float>)
    kernels().linear_cross_entropy.exponentiate_f32(block, max, sum);
  else
    exponentiate_reference(block, max, sum);
}

template <class T>
void scale(const LogitBlock<T>& block, const T* factor) {
  if constexpr (std::is_same_v<T, float>)
    kernels().linear_cross_entropy.scale_f32(block, factor);
  else
    scale_reference(block, factor);
}

template <class T>
class Head {
 public:
  Head(const HeadProblem& problem, Execution& run)
      : p_(problem), run_(run), tokens_(problem.x.rows), vocabulary_(problem.weight.rows), channels_(problem.x.cols) {
    const int64_t fitting = kChunkBytes / static_cast<int64_t>(sizeof(T)) / std::max<int64_t>(1, vocabulary_);
    const int64_t chunks = ceil_div(std::max<int64_t>(1, tokens_), std::max(kMinTokens, fitting));
    chunk_ = round_up(ceil_div(std::max<int64_t>(1, tokens_), chunks), 16);
    // Rows of the same few sets of the cache would have to be packed.
    stride_ = chunk_ * static_cast<int64_t>(sizeof(T)) % 1024 ? chunk_ : chunk_ + 16;
    num_blocks_ = ceil_div(vocabulary_, kBlock);
    blocked_ = num_blocks_ >= kGroups;
    logits_ = run.scratch(vocabulary_, stride_, p_.x.dtype);
    max_ = run.take<T>(num_blocks_ * stride_);
    sum_ = run.take<T>(num_blocks_ * stride_);
    factor_ = run.take<T>(num_blocks_ * stride_);
    target_logits_ = run.take<T>(stride_);
    losses_ = run.take<double>(tokens_);
    if (blocked_ && wants_x()) partial_ = run.scratch(kGroups * chunk_, channels_, p_.x.dtype);
  }

  void operator()() {
    if (blocked_) take_thread_scratch();
    int64_t valid = 0;
    if (!run_.dry()) {
      for (int64_t n = 0; n < tokens_; ++n) valid += p_.targets[n] >= 0;
      // With nothing to average there is no gradient: ignored tokens have factor 0.
      grad_scale_ = p_.mean ? T{1} / static_cast<T>(valid) : T{1};
    }
    const int64_t last = tokens_ > 0 ? (tokens_ - 1) / chunk_ * chunk_ : 0;
    for (int64_t token = 0; token < tokens_; token += chunk_) {
      // The first two chunks and the last show all that a GEMM's workspace depends on.
      if (run_.dry() && token > chunk_) token = last;
      first_ = token;
      count_ = std::min(chunk_, tokens_ - token);
      blocked_ ? run_blocks() : run_whole();
    }
    if (run_.dry()) return;
    if (tokens_ == 0 && wants_weight())
      std::memset(p_.weight_grad.data, 0, static_cast<size_t>(vocabulary_ * channels_) * sizeof(T));
    double loss = 0;
    for (int64_t n = 0; n < tokens_; ++n) loss += losses_[n];
    *static_cast<T*>(p_.loss) = static_cast<T>(p_.mean ? loss / static_cast<double>(valid) : loss);
  }

 private:
  bool wants_x() const { return p_.x_grad.rows > 0; }
  bool wants_weight() const { return p_.weight_grad.rows > 0; }

  int64_t block_begin(int64_t block) const { return block * kBlock; }
  int64_t block_size(int64_t block) const { return std::min(kBlock, vocabulary_ - block_begin(block)); }
  int64_t target(int64_t token) const { return p_.targets[first_ + token]; }
  T& logit(int64_t v, int64_t token) const { return static_cast<T*>(logits_.data)[v * stride_ + token]; }

  // ---------------------------------------------------------------- GEMMs of classes [begin, begin + size)

  Matrix x_rows() const { return p_.x.row_block(first_, count_); }
  Matrix logits(int64_t begin, int64_t size) const { return logits_.row_block(begin, size).col_block(0, count_); }

  blublas_gemm_args logits_gemm(int64_t begin, int64_t size) const {
    return make_gemm(p_.weight.row_block(begin, size), x_rows().transposed(), logits(begin, size));
  }
  blublas_gemm_args weight_gemm(int64_t begin, int64_t size) const {
    auto args = make_gemm(logits(begin, size), x_rows(), p_.weight_grad.row_block(begin, size));
    if (first_ > 0) args.epilogue |= BLUBLAS_EPILOGUE_ACCUMULATE;
    return args;
  }
  blublas_gemm_args x_gemm(int64_t begin, int64_t size, const Matrix& to, bool accumulate) const {
    auto args = make_gemm(logits(begin, size).transposed(), p_.weight.row_block(begin, size), to);
    if (accumulate) args.epilogue |= BLUBLAS_EPILOGUE_ACCUMULATE;
    return args;
  }

  // ---------------------------------------------------------------- passes over tokens [begin, end) of a block

  LogitBlock<T> part(int64_t block, int64_t begin, int64_t end) const {
    return {&logit(block_begin(block), begin), stride_, block_size(block), end - begin};
  }
  bool in_block(int64_t token, int64_t block) const {
    return target(token) >= block_begin(block) && target(token) < block_begin(block) + block_size(block);
  }

  void to_exponentials(int64_t block, int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token)
      if (in_block(token, block)) target_logits_[token] = logit(target(token), token);
    exponentiate(part(block, begin, end), max_ + block * stride_ + begin, sum_ + block * stride_ + begin);
  }

  void to_gradients(int64_t block, int64_t begin, int64_t end) {
    scale<T>(part(block, begin, end), factor_ + block * stride_ + begin);
    for (int64_t token = begin; token < end; ++token)
      if (in_block(token, block)) logit(target(token), token) -= grad_scale_;
  }

  // Loss of a token, and its factor in every block.
  void combine(int64_t token) {
    const auto at = [&](const T* values, int64_t block) {
      return static_cast<double>(values[block * stride_ + token]);
    };
    constexpr double lowest = -std::numeric_limits<double>::infinity();
    losses_[first_ + token] = 0;
    if (target(token) < 0) {
      for (int64_t b = 0; b < num_blocks_; ++b) factor_[b * stride_ + token] = 0;
      return;
    }
    double max = lowest, sum = 0;
    for (int64_t b = 0; b < num_blocks_; ++b) max = std::max(max, at(max_, b));
    for (int64_t b = 0; b < num_blocks_; ++b) {
      const double weight = at(max_, b) == lowest ? 0 : std::exp(at(max_, b) - max);
      factor_[b * stride_ + token] = static_cast<T>(weight);
      // NaN counts whatever its block's weight.
      sum += std::isnan(at(sum_, b)) ? at(sum_, b) : at(sum_, b) * weight;
    }
    losses_[first_ + token] = std::log(sum) + max - static_cast<double>(target_logits_[token]);
    for (int64_t b = 0; b < num_blocks_; ++b)
      factor_[b * stride_ + token] = static_cast<T>(at(factor_, b) / sum) * grad_scale_;
  }

  // ---------------------------------------------------------------- few blocks: GEMMs on all threads

  // pass(block, first token, end) for all of the chunk, in parallel.
  template <class Pass>
  void for_each_part(const Pass& pass) {
    const int64_t pieces = ceil_div(count_, kTokensPerTask);
    parallel_for(num_blocks_ * pieces, 1, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        const int64_t first = task % pieces * kTokensPerTask;
        pass(task / pieces, first, std::min(count_, first + kTokensPerTask));
      }
    });
  }

  void combine_all() {
    parallel_for(count_, 16, [&](int64_t begin, int64_t end) {
      for (int64_t token = begin; token < end; ++token) combine(token);
    });
  }

  void run_whole() {
    run_.gemm(logits_gemm(0, vocabulary_));
    if (!run_.dry()) {
      for_each_part([&](int64_t block, int64_t begin, int64_t end) { to_exponentials(block, begin, end); });
      combine_all();
      if (wants_x() || wants_weight())
        for_each_part([&](int64_t block, int64_t begin, int64_t end) { to_gradients(block, begin, end); });
    }
    if (wants_x()) run_.gemm(x_gemm(0, vocabulary_, p_.x_grad.row_block(first_, count_), false));
    if (wants_weight()) run_.gemm(weight_gemm(0, vocabulary_));
  }

  // ---------------------------------------------------------------- many blocks: each on one thread

  // Workspace of the GEMMs, for each thread; fewer threads work where the operator was planned for fewer.
  void take_thread_scratch() {
    const auto grow = [&](blublas_gemm_args args) {
      args.num_threads = 1;
      scratch_bytes_ = std::max(scratch_bytes_, gemm_workspace(args));
    };
    const int64_t last = tokens_ - std::max<int64_t>(0, tokens_ - 1) / chunk_ * chunk_;
    for (const int64_t tokens : {std::min(chunk_, tokens_), last})
      for (const int64_t classes : {kBlock, block_size(num_blocks_ - 1)})
        for (const bool accumulate : {false, true}) {
          count_ = tokens;
          first_ = accumulate ? 1 : 0;
          grow(logits_gemm(0, classes));
          if (wants_weight()) grow(weight_gemm(0, classes));
          if (wants_x()) grow(x_gemm(0, classes, partial_.row_block(0, tokens), accumulate));
        }
    scratch_bytes_ = static_cast<size_t>(round_up(static_cast<int64_t>(scratch_bytes_), 64));
    threads_ = run_.take_per_thread(scratch_bytes_, &scratch_);
  }

  void gemm_on_thread(blublas_gemm_args args, int32_t thread) const {
    args.num_threads = 1;
    args.workspace = scratch_ + static_cast<size_t>(thread) * scratch_bytes_;
    args.workspace_bytes = scratch_bytes_;
    run_gemm(args);
  }

  void run_blocks() {
    if (run_.dry()) return;
    const auto forward = [&](int64_t block, int64_t, int32_t thread) {
      gemm_on_thread(logits_gemm(block_begin(block), block_size(block)), thread);
      to_exponentials(block, 0, count_);
    };
    const auto backward = [&](int64_t group, int64_t, int32_t thread) {
      const int64_t first = num_blocks_ * group / kGroups, end = num_blocks_ * (group + 1) / kGroups;
      const Matrix dx = partial_.row_block(group * chunk_, count_);
      for (int64_t block = first; block < end; ++block) {
        to_gradients(block, 0, count_);
        if (wants_weight()) gemm_on_thread(weight_gemm(block_begin(block), block_size(block)), thread);
        if (wants_x()) gemm_on_thread(x_gemm(block_begin(block), block_size(block), dx, block > first), thread);
      }
    };
    parallel_for_threads(num_blocks_, 1, forward, threads_);
    combine_all();
    if (!wants_x() && !wants_weight()) return;
    parallel_for_threads(kGroups, 1, backward, threads_);
    if (wants_x()) add_groups();
  }

  void add_groups() {
    constexpr int64_t kPiece = 1024;
    const auto* partial = static_cast<const T*>(partial_.data);
    auto* out = static_cast<T*>(p_.x_grad.data) + first_ * channels_;
    parallel_for(count_ * channels_, 4 * kPiece, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; i += kPiece) {
        const int64_t size = std::min(kPiece, end - i);
        std::memcpy(out + i, partial + i, static_cast<size_t>(size) * sizeof(T));
        for (int64_t group = 1; group < kGroups; ++group) {
          const T* other = partial + group * chunk_ * channels_ + i;
          for (int64_t j = 0; j < size; ++j) out[i + j] += other[j];
        }
      }
    });
  }

  const HeadProblem& p_;
  Execution& run_;
  int64_t tokens_, vocabulary_, channels_;
  int64_t chunk_ = 0, stride_ = 0, num_blocks_ = 0;
  bool blocked_ = false;
  Matrix logits_;                                          // [V, stride]
  T *max_ = nullptr, *sum_ = nullptr, *factor_ = nullptr;  // [num_blocks, stride]
  T* target_logits_ = nullptr;                             // [stride]
  double* losses_ = nullptr;                               // [N]
  Matrix partial_;                                         // [kGroups * chunk, C]
  char* scratch_ = nullptr;
  size_t scratch_bytes_ = 0;  // of one thread
  int32_t threads_ = 1;
  T grad_scale_ = 1;
  int64_t first_ = 0, count_ = 0;  // the chunk at work
};

}  // namespace

void run_head(const HeadProblem& problem, Execution& run) {
  if (problem.x.dtype == DType::float64)
    Head<double>(problem, run)();
  else
    Head<float>(problem, run)();
}

}  // namespace blutensor
