// Operands of the matrix operators: tensors seen as matrices, copied into workspace only where their strides do not
// allow that.
//
// An operator is written once, for all devices, as a function of a Launch and an Execution. Run dry (views without
// pointers) it only counts the workspace that it needs; run with a workspace it does the work on the launch's device,
// on CUDA in the order of its stream.
#pragma once

#include <blublas/blublas.h>

#include "ops/operator.h"

namespace blutensor {

// rows x cols elements at data + i * row_stride + j * col_stride. Owns nothing.
struct Matrix {
  void* data = nullptr;
  DType dtype = DType::float32;
  int64_t rows = 0, cols = 0;
  int64_t row_stride = 0, col_stride = 1;

  Matrix transposed() const { return {data, dtype, cols, rows, col_stride, row_stride}; }
  // Rows [begin, begin + count).
  Matrix row_block(int64_t begin, int64_t count) const;
  // Columns [begin, begin + count).
  Matrix col_block(int64_t begin, int64_t count) const;
};

// The dtype in which GEMMs run on operands of this dtype: itself where blublas takes it, float32 for float16.
DType gemm_dtype(DType dtype);
// The dtype of biases, sums and statistics beside it.
DType accumulation_dtype(DType dtype);

// Sees axes [0, leading) of a view as rows and the others as columns. False when no pair of strides does.
bool as_matrix(const View& view, int leading, Matrix* matrix);

class Execution {
 public:
  enum class Mode : bool { run, dry };
  Execution(const Launch& launch, Mode mode);

  bool dry() const { return dry_; }
  bool on_host() const { return device_.type == DeviceType::cpu; }
  Device device() const { return device_; }
  void* stream() const { return stream_; }
  size_t peak_bytes() const { return peak_; }

  // Workspace aligned to 64 bytes (on CUDA to 256), until release(mark()) of an earlier mark.
  void* take(size_t bytes);
  template <class T>
  T* take(int64_t count) {
    return static_cast<T*>(take(static_cast<size_t>(count) * sizeof(T)));
  }
  // On the host, the rest of the workspace, `bytes` (a multiple of 64) for each thread; returns for how many. Planned
  // for the pool's threads; a run with more of them uses as many as were planned.
  int32_t take_per_thread(size_t bytes, char** scratch);
  size_t mark() const { return used_; }
  void release(size_t mark) { used_ = mark; }

  // The view as a matrix of `dtype`, axes [0, leading) being its rows: itself, or a row-major copy in the workspace.
  Matrix matrix(const View& view, int leading, DType dtype);
  // Like matrix(), with col_stride 1.
  Matrix rows(const View& view, int leading, DType dtype);
  // A row-major matrix of workspace.
  Matrix scratch(int64_t rows, int64_t cols, DType dtype);
  // The view's elements, contiguous; nullptr for an undefined view.
  void* contiguous(const View& view, DType dtype);

  // Runs a GEMM on the device, in workspace taken for it.
  void gemm(blublas_gemm_args args);
  // Elements of a row-major matrix of floats or doubles into a view, in its dtype.
  void store(const Matrix& from, const View& to, bool accumulate = false);

 private:
  Matrix copied(const View& view, int leading, DType dtype);

  Device device_;
  void* stream_;
  Float32Math math_;
  char* base_;
  size_t bytes_;
  bool dry_;
  size_t used_ = 0, peak_ = 0;
};

// Workspace and launcher, on any device, of an operator that is written as `execute`.
template <void (*execute)(const Launch&, Execution&)>
size_t workspace_of(const Launch& launch) {
  Execution dry(launch, Execution::Mode::dry);
  execute(launch, dry);
  return dry.peak_bytes();
}
template <void (*execute)(const Launch&, Execution&)>
void launch_of(const Launch& launch) {
  Execution run(launch, Execution::Mode::run);
  execute(launch, run);
}

// On the host: elements of `source` in row-major order to contiguous memory of another floating dtype (or the same
// dtype, of any kind).
void copy_to_contiguous(const View& source, void* to, DType dtype);
// Contiguous floats (or doubles) into a view of any layout and floating dtype: stored, or added to what is there.
void store_contiguous(const void* from, DType dtype, const View& to, bool accumulate);

// A GEMM c = a b whose operands are described later; batch 1, alpha 1.
blublas_gemm_args make_gemm(const Matrix& a, const Matrix& b, const Matrix& c);
blublas_matrix gemm_matrix(const Matrix& matrix, int64_t batch_stride = 0);
// One GEMM in the given workspace, on the device that `args` names; both throw Error with blublas's message.
size_t gemm_workspace(const blublas_gemm_args& args);
void run_gemm(const blublas_gemm_args& args);

}  // namespace blutensor
