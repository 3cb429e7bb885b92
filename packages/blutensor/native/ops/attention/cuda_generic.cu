// Attention for what the tiled kernels do not take: float64 and float16, odd head dimensions, odd strides, scales that
// are not positive; and attention_decode.
//
// One warp per row. Over 32 rows of the other operand at a time: each lane forms one score, then the lanes take the
// columns of the result and go through the 32 weights. Statistics and sums in float32, float64 for float64; every sum
// in a fixed order.
// Work: as the reference (reference.cpp); no shared tiles, so far from the tensor cores' rates.
#include <cmath>

#include "ops/attention/cuda_arguments.h"
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/report.h"
#include "ops/cuda/vector.cuh"

namespace blutensor::cuda {

namespace {

constexpr int kWarps = 4;
constexpr int kMaxHeadDim = 256;
constexpr int kColumns = kMaxHeadDim / 32;  // per lane: lane, lane + 32, ...

__device__ int lane_id() { return static_cast<int>(threadIdx.x) & 31; }

__device__ double exponential(double x) { return exp(x); }
__device__ float exponential(float x) { return expf(x); }
__device__ double logarithm(double x) { return log(x); }
__device__ float logarithm(float x) { return logf(x); }

// One pair of an operand.
template <class T>
struct Matrix {
  T* data;
  int64_t row_stride, col_stride;

  __device__ Matrix(const AttentionArguments& args, const AttentionOperand& operand, uint32_t pair)
      : data(static_cast<T*>(operand.data) + pair_offset(args.leading, operand, pair)),
        row_stride(operand.row_stride),
        col_stride(operand.col_stride) {}
  template <class Acc>
  __device__ Acc at(int64_t row, int column) const {
    return convert<Acc>(data[row * row_stride + column * col_stride]);
  }
  // row . x, x in shared memory
  template <class Acc>
  __device__ Acc dot(int64_t row, const Acc* x, int head_dim) const {
    const T* p = data + row * row_stride;
    Acc sum = 0;
    for (int d = 0; d < head_dim; ++d) sum += convert<Acc>(p[d * col_stride]) * x[d];
    return sum;
  }
  // sums[i] += sum over j < count of weight(lane j) * row first + j, at this lane's columns
  template <class Acc>
  __device__ void add(Acc (&sums)[kColumns], Acc weight, int64_t first, int count, int head_dim) const {
    for (int j = 0; j < count; ++j) {
      const Acc w = __shfl_sync(kAllLanes, weight, j);
#pragma unroll
      for (int i = 0; i < kColumns; ++i)
        if (lane_id() + 32 * i < head_dim) sums[i] += w * at<Acc>(first + j, lane_id() + 32 * i);
    }
  }
  template <class Acc>
  __device__ void read(Acc* x, int64_t row, int head_dim) const {
    for (int d = lane_id(); d < head_dim; d += 32) x[d] = at<Acc>(row, d);
  }
  template <class Acc>
  __device__ void write(const Acc (&sums)[kColumns], int64_t row, int head_dim, Acc factor) const {
#pragma unroll
    for (int i = 0; i < kColumns; ++i)
      if (lane_id() + 32 * i < head_dim)
        data[row * row_stride + (lane_id() + 32 * i) * col_stride] = convert<T>(sums[i] * factor);
  }
};

// The online softmax of one row, held by a warp.
template <class Acc>
struct Attended {
  Acc maximum = -INFINITY, total = 0, output[kColumns] = {};

  __device__ void rescale(Acc top, Acc shift) {
    const Acc correction = exponential(maximum - shift);
    total *= correction;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) output[i] *= correction;
    maximum = top;
  }
  // Keys first .. first + 31, of which `count` exist.
  template <class T>
  __device__ void visit(const Matrix<const T>& key, const Matrix<const T>& value, const Acc* query, int64_t first,
                        int count, int head_dim, Acc scale) {
    const bool seen = lane_id() < count;
    const Acc score = seen ? scale * key.template dot<Acc>(first + lane_id(), query, head_dim) : Acc{-INFINITY};
    const Acc top = fmax(maximum, warp_max(score));
    // While every score is -inf there is nothing to be relative to: 0 keeps the exponents at -inf instead of NaN.
    const Acc shift = top == Acc{-INFINITY} ? Acc{0} : top;
    rescale(top, shift);
    const Acc weight = seen ? exponential(score - shift) : Acc{0};
    total += warp_sum(weight);
    value.template add<Acc>(output, weight, first, count, head_dim);
  }
};

// The row that this warp works on, over all pairs.
__device__ int64_t warp_row() { return static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32; }
unsigned blocks_for(int64_t rows) { return static_cast<unsigned>((rows + kWarps - 1) / kWarps); }

template <class T, class Acc>
__global__ void __launch_bounds__(32 * kWarps) attention_forward_rows(const __grid_constant__ AttentionArguments args) {
  __shared__ Acc rows[kWarps][kMaxHeadDim];
  const int64_t index = warp_row();
  const uint32_t pair = static_cast<uint32_t>(index / args.num_queries);
  const int row = static_cast<int>(index % args.num_queries);
  if (pair >= args.num_pairs) return;
  Acc* query = rows[threadIdx.x / 32];
  Matrix<const T>(args, args.query, pair).read(query, row, args.head_dim);
  __syncwarp();
  const Matrix<const T> key(args, args.key, pair), value(args, args.value, pair);
  const int visible = args.causal ? min(row + 1, args.num_keys) : args.num_keys;
  Attended<Acc> state;
  for (int first = 0; first < visible; first += 32)
    state.visit(key, value, query, first, min(32, visible - first), args.head_dim, static_cast<Acc>(args.scale));
  Matrix<T>(args, args.output, pair).write(state.output, row, args.head_dim, visible == 0 ? Acc{0} : 1 / state.total);
  if (lane_id() == 0)
    static_cast<Acc*>(args.logsumexp)[index] = visible == 0 ? Acc{-INFINITY} : state.maximum + logarithm(state.total);
}

template <class T, class Acc>
__global__ void __launch_bounds__(32 * kWarps)
    attention_backward_query_rows(const __grid_constant__ AttentionArguments args) {
  __shared__ Acc rows[kWarps][2][kMaxHeadDim];
  const int64_t index = warp_row();
  const uint32_t pair = static_cast<uint32_t>(index / args.num_queries);
  const int row = static_cast<int>(index % args.num_queries), head_dim = args.head_dim;
  if (pair >= args.num_pairs) return;
  Acc *query = rows[threadIdx.x / 32][0], *grad = rows[threadIdx.x / 32][1];
  Matrix<const T>(args, args.query, pair).read(query, row, head_dim);
  Matrix<const T>(args, args.grad_output, pair).read(grad, row, head_dim);
  __syncwarp();

  // Summed as dP is: where a row sees one key, whose value is its output, they are equal, and the gradients of its scores 0.
  Acc delta = Matrix<const T>(args, args.output, pair).template dot<Acc>(row, grad, head_dim);
  if (args.grad_logsumexp.data != nullptr)
    delta -= static_cast<const Acc*>(args.grad_logsumexp.data)[pair_offset(args.leading, args.grad_logsumexp, pair) +
                                                               row * args.grad_logsumexp.row_stride];
  if (lane_id() == 0) static_cast<Acc*>(args.delta)[index] = delta;

  const Acc logsumexp = static_cast<const Acc*>(args.logsumexp)[index], scale = static_cast<Acc>(args.scale);
  const Matrix<const T> key(args, args.key, pair), value(args, args.value, pair);
  const int visible = args.causal ? min(row + 1, args.num_keys) : args.num_keys;
  Acc sums[kColumns] = {};
  for (int first = 0; first < visible; first += 32) {
    const int count = min(32, visible - first), mine = first + lane_id();
    Acc weight = 0;
    if (lane_id() < count) {
      const Acc p = exponential(scale * key.template dot<Acc>(mine, query, head_dim) - logsumexp);
      weight = p * (value.template dot<Acc>(mine, grad, head_dim) - delta);
    }
    key.template add<Acc>(sums, weight, first, count, head_dim);
  }
  Matrix<T>(args, args.grad_query, pair).write(sums, row, head_dim, scale);
}

// After attention_backward_query_rows, which leaves delta.
template <class T, class Acc>
__global__ void __launch_bounds__(32 * kWarps)
    attention_backward_key_rows(const __grid_constant__ AttentionArguments args) {
  __shared__ Acc rows[kWarps][2][kMaxHeadDim];
  const int64_t index = warp_row();
  const uint32_t pair = static_cast<uint32_t>(index / args.num_keys);
  const int row = static_cast<int>(index % args.num_keys), head_dim = args.head_dim;
  if (pair >= args.num_pairs) return;
  Acc *key = rows[threadIdx.x / 32][0], *value = rows[threadIdx.x / 32][1];
  Matrix<const T>(args, args.key, pair).read(key, row, head_dim);
  Matrix<const T>(args, args.value, pair).read(value, row, head_dim);
  __syncwarp();

  const Matrix<const T> query(args, args.query, pair), grad(args, args.grad_output, pair);
  const int64_t statistics = static_cast<int64_t>(pair) * args.num_queries;
  const Acc* logsumexp = static_cast<const Acc*>(args.logsumexp) + statistics;
  const Acc *delta = static_cast<const Acc*>(args.delta) + statistics, scale = static_cast<Acc>(args.scale);
  Acc key_sums[kColumns] = {}, value_sums[kColumns] = {};
  for (int first = args.causal ? row : 0; first < args.num_queries; first += 32) {
    const int count = min(32, args.num_queries - first), mine = first + lane_id();
    Acc p = 0, ds = 0;
    if (lane_id() < count) {
      p = exponential(scale * query.template dot<Acc>(mine, key, head_dim) - logsumexp[mine]);
      ds = p * (grad.template dot<Acc>(mine, value, head_dim) - delta[mine]);
    }
    grad.template add<Acc>(value_sums, p, first, count, head_dim);
    query.template add<Acc>(key_sums, ds, first, count, head_dim);
  }
  Matrix<T>(args, args.grad_key, pair).write(key_sums, row, head_dim, scale);
  Matrix<T>(args, args.grad_value, pair).write(value_sums, row, head_dim, Acc{1});
}

// ---------------------------------------------------------------- decode

constexpr int kDecodeWarps = 16;

// One block per pair: every warp takes each kDecodeWarps-th group of 32 cache rows, then warp 0 merges the states in
// the order of the warps.
template <class T, class Acc>
__global__ void __launch_bounds__(32 * kDecodeWarps)
    attention_decode_pairs(const __grid_constant__ AttentionArguments args, Report* slot) {
  __shared__ Acc query[kMaxHeadDim];
  __shared__ Acc outputs[kDecodeWarps][kMaxHeadDim], maxima[kDecodeWarps], totals[kDecodeWarps];
  const uint32_t pair = blockIdx.x;
  const int warp = threadIdx.x / 32, head_dim = args.head_dim;
  const int64_t position = args.position_is_int64 ? *static_cast<const int64_t*>(args.position)
                                                  : *static_cast<const int32_t*>(args.position);
  if ((position < 0 || position >= args.num_keys) && pair == 0 && threadIdx.x == 0)
    report(slot, ReportCode::attention_decode_position, position, args.num_keys);
  const int visible = static_cast<int>(min(max(position, int64_t{0}), static_cast<int64_t>(args.num_keys) - 1)) + 1;
  if (warp == 0) Matrix<const T>(args, args.query, pair).read(query, 0, head_dim);
  __syncthreads();
  const Matrix<const T> key(args, args.key, pair), value(args, args.value, pair);
  Attended<Acc> state;
  for (int first = 32 * warp; first < visible; first += 32 * kDecodeWarps)
    state.visit(key, value, query, first, min(32, visible - first), head_dim, static_cast<Acc>(args.scale));
#pragma unroll
  for (int i = 0; i < kColumns; ++i) outputs[warp][lane_id() + 32 * i] = state.output[i];
  if (lane_id() == 0) maxima[warp] = state.maximum, totals[warp] = state.total;
  __syncthreads();
  if (warp != 0) return;
  for (int other = 1; other < kDecodeWarps; ++other) {
    if (totals[other] == Acc{0} && maxima[other] == Acc{-INFINITY}) continue;  // saw nothing, or only -inf
    const Acc top = fmax(state.maximum, maxima[other]), shift = top == Acc{-INFINITY} ? Acc{0} : top;
    state.rescale(top, shift);
    const Acc factor = exponential(maxima[other] - shift);
    state.total += totals[other] * factor;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) state.output[i] += outputs[other][lane_id() + 32 * i] * factor;
  }
  Matrix<T>(args, args.output, pair).write(state.output, 0, head_dim, 1 / state.total);
}

}  // namespace

void attention_forward_generic(const AttentionArguments& args, DType dtype, cudaStream_t stream) {
  const int64_t rows = static_cast<int64_t>(args.num_pairs) * args.num_queries;
  if (rows == 0) return;
  visit_device_floating(dtype, "attention", [&](auto tag) {
    using T = typename decltype(tag)::type;
    attention_forward_rows<T, device_compute_t<T>><<<blocks_for(rows), 32 * kWarps, 0, stream>>>(args);
  });
}

void attention_backward_generic(const AttentionArguments& args, DType dtype, cudaStream_t stream) {
  const int64_t queries = static_cast<int64_t>(args.num_pairs) * args.num_queries;
  const int64_t keys = static_cast<int64_t>(args.num_pairs) * args.num_keys;
  visit_device_floating(dtype, "attention", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using Acc = device_compute_t<T>;
    if (queries > 0) attention_backward_query_rows<T, Acc><<<blocks_for(queries), 32 * kWarps, 0, stream>>>(args);
    if (keys > 0) attention_backward_key_rows<T, Acc><<<blocks_for(keys), 32 * kWarps, 0, stream>>>(args);
  });
}

void attention_decode(const AttentionArguments& args, DType dtype, cudaStream_t stream) {
  if (args.num_pairs == 0) return;
  Report* slot = report_slot();
  visit_device_floating(dtype, "attention_decode", [&](auto tag) {
    using T = typename decltype(tag)::type;
    attention_decode_pairs<T, device_compute_t<T>><<<args.num_pairs, 32 * kDecodeWarps, 0, stream>>>(args, slot);
  });
}

}  // namespace blutensor::cuda
