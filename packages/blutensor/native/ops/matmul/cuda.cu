// matmul on CUDA: floats go to blublas (matmul.cpp serves all devices), integers to the plain kernel below.
//
// integer_product: one thread per element of c [batch..., M, N] walks K; sums wrap around in 64 bits, as on the host.
// It is there so that index arithmetic works on the device; no layer depends on its speed.
#include "ops/cuda/launch.h"
#include "ops/cuda/table.h"
#include "ops/matmul/matmul.h"

namespace blutensor {

namespace {

constexpr int kThreads = 256;

struct Batch {
  int rank;
  int64_t shape[kMaxRank], a_strides[kMaxRank], b_strides[kMaxRank];
};

struct Product {
  int64_t numel, m, n, k;
  int64_t a_row, a_col, b_row, b_col;  // strides
  Batch batch;
};

template <class T>
__global__ void __launch_bounds__(kThreads) integer_product(const T* a, const T* b, T* c, Product p) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < p.numel; i += step) {
    int64_t rest = i / p.n / p.m;
    int64_t a_at = i / p.n % p.m * p.a_row, b_at = i % p.n * p.b_col;
    for (int axis = p.batch.rank - 1; axis >= 0; --axis) {
      const int64_t index = rest % p.batch.shape[axis];
      a_at += index * p.batch.a_strides[axis];
      b_at += index * p.batch.b_strides[axis];
      rest /= p.batch.shape[axis];
    }
    uint64_t sum = 0;
    for (int64_t k = 0; k < p.k; ++k)
      sum += static_cast<uint64_t>(a[a_at + k * p.a_col]) * static_cast<uint64_t>(b[b_at + k * p.b_row]);
    c[i] = static_cast<T>(sum);
  }
}

template <class T>
void launch_integers(const Launch& launch, const View& a, const View& b, const Product& p) {
  integer_product<<<cuda::grid_for(p.numel, kThreads), kThreads, 0, cuda::stream_of(launch)>>>(
      a.ptr<const T>(), b.ptr<const T>(), launch.outputs[0].ptr<T>(), p);
  cuda::check_launch("matmul");
}

void integer_matmul(const Launch& launch) {
  const MatmulOperands operands = matmul_operands(launch);
  const View &a = operands.a, &b = operands.b, &c = launch.outputs[0];
  const Strides a_strides = batch_strides(a, operands.batch), b_strides = batch_strides(b, operands.batch);
  const int ra = a.rank(), rb = b.rank();
  Product p{c.numel(),         a.shape[ra - 2],   b.shape[rb - 1],
            a.shape[ra - 1],   a.strides[ra - 2], a.strides[ra - 1],
            b.strides[rb - 2], b.strides[rb - 1], {}};
  p.batch.rank = operands.batch.size();
  for (int axis = 0; axis < p.batch.rank; ++axis) {
    p.batch.shape[axis] = operands.batch[axis];
    p.batch.a_strides[axis] = a_strides[axis];
    p.batch.b_strides[axis] = b_strides[axis];
  }
  switch (dtype_size(c.dtype)) {  // what wraps around is the same with and without signs
    case 8:
      return launch_integers<uint64_t>(launch, a, b, p);
    case 4:
      return launch_integers<uint32_t>(launch, a, b, p);
    case 2:
      return launch_integers<uint16_t>(launch, a, b, p);
    default:
      return launch_integers<uint8_t>(launch, a, b, p);
  }
}

void launch_matmul(const Launch& launch) {
  if (is_floating(launch.outputs[0].dtype)) return launch_of<execute_matmul>(launch);
  if (launch.outputs[0].numel()) integer_matmul(launch);
}

}  // namespace

void add_matmul_cuda(CudaTable& table) { table.add("matmul", launch_matmul, workspace_of<execute_matmul>); }

}  // namespace blutensor
