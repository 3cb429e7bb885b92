/* blublas: GEMM with fused epilogues, and the thread pool of the process.
 *
 * Rules of this interface:
 *  - Plain C, append-only. A struct passed by pointer starts with `struct_size`; fields past its size read as 0.
 *  - A function that can fail returns a status (BLUBLAS_OK = 0, ...); blublas_last_error() has the text, per thread.
 *  - Workspace for blublas_gemm comes from the caller.
 *  - Every function may be called from any thread at any time unless it says otherwise.
 */
#ifndef BLUBLAS_BLUBLAS_H
#define BLUBLAS_BLUBLAS_H

#include <stddef.h>
#include <stdint.h>

#define BLUBLAS_ABI_MAJOR 0
#define BLUBLAS_ABI_MINOR 2

#if defined(_WIN32)
#define BLUBLAS_API
#else
#define BLUBLAS_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Status codes ---------------------------------------------------------------------------------------------------- */
enum {
  BLUBLAS_OK = 0,
  BLUBLAS_INVALID_VALUE = 1, /* a size, stride, pointer, flag or overlap that the call cannot accept */
  BLUBLAS_INVALID_DTYPE = 2, /* a dtype or a combination of dtypes that the call does not take */
  BLUBLAS_OUT_OF_MEMORY = 3,
  BLUBLAS_UNSUPPORTED = 4, /* this build or machine has no such device or kernel */
  BLUBLAS_RUNTIME_ERROR = 5
};

/* dtypes (numbering shared by all packages; blublas takes those marked *) and devices */
enum {
  BLUBLAS_FLOAT32 = 0,  /* * */
  BLUBLAS_BFLOAT16 = 1, /* * */
  BLUBLAS_FLOAT16 = 2,
  BLUBLAS_FLOAT64 = 3 /* * */
};
enum { BLUBLAS_CPU = 0, BLUBLAS_CUDA = 1 };

/* How products of float32 operands are computed on CUDA; everything else pays no attention to it. */
enum {
  BLUBLAS_MATH_IEEE = 0, /* float32 multiplications and additions */
  BLUBLAS_MATH_TF32 = 1  /* tensor cores: operands rounded to the nearest tf32 (10 bits of mantissa), float32 sums */
};

/* major << 16 | minor of the library that was loaded. */
BLUBLAS_API uint32_t blublas_abi_version(void);
/* Text of the last failure on this thread; "" when nothing failed. */
BLUBLAS_API const char* blublas_last_error(void);

/* Matrices -------------------------------------------------------------------------------------------------------- */

/* A view of a matrix, or of a batch of them. Element (i, j) of batch t is at
 *     data + (t * batch_stride + i * row_stride + j * col_stride) elements.
 * Row-major: row_stride = leading dimension, col_stride = 1; column-major or transposed: the other way round.
 * Read operands take any strides, zero (broadcast) and negative ones too. Written operands (c, and aux when it is
 * stored) must not overlap themselves: ordered by size, each |stride| exceeds the extent of those below it (status 1
 * otherwise). */
typedef struct blublas_matrix {
  void* data;
  int32_t dtype;
  int32_t reserved; /* 0 */
  int64_t rows, cols;
  int64_t row_stride, col_stride, batch_stride; /* in elements */
} blublas_matrix;

/* Epilogue flags ---------------------------------------------------------------------------------------------------
 * For every batch and every (m, n), in this order, in the accumulation type (float32; float64 for float64 operands):
 *
 *   v  = alpha * sum_k A[m,k] * B[k,n]
 *   v += beta * C[m,n]                   if beta != 0 (with beta == 0 C is never read: NaN there does not leak)
 *   v += bias[n]                         BIAS
 *   aux[m,n] = v                         STORE_PREACTIVATION
 *   v  = gelu(v)                         GELU_TANH or GELU_ERF
 *   v *= gelu'(aux[m,n])                 GELU_TANH_GRADIENT or GELU_ERF_GRADIENT (aux: the pre-activation)
 *   v += residual[m,n]                   RESIDUAL
 *   v += C[m,n]                          ACCUMULATE
 *   C[m,n] = v                           (rounded to nearest even when C is bfloat16)
 *   column_sum[n] (+)= sum_m v           COLUMN_SUM   (v before it is rounded to C's dtype)
 *   row_sum_a[m] (+)= sum_k A[m,k]       ROW_SUM_A    (of the operand itself, without alpha)
 *
 * gelu tanh form: 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))); erf form: 0.5 x (1 + erf(x / sqrt 2)).
 *
 * Combinations: at most one of the four GELU flags; STORE_PREACTIVATION not together with a GELU gradient (both use
 * aux); everything else combines freely. "(+)=" stores, or adds to what is there with COLUMN_SUM_ACCUMULATE /
 * ROW_SUM_A_ACCUMULATE.
 *
 * The usual layers, with X [M, K], weight W [N, K] (PyTorch's layout), dY [M, N]:
 *   forward          Y  = X W^T + b   a = X,  b = W^T (row_stride 1, col_stride K); BIAS, and as needed GELU_TANH,
 *                                     STORE_PREACTIVATION, RESIDUAL
 *   input gradient   dX = dY W        a = dY, b = W; GELU_TANH_GRADIENT with aux = the pre-activation before
 *   weight gradient  dW = dY^T X      a = dY^T [N, M], b = X; ROW_SUM_A: row_sum_a[n] = sum over rows of dY = db
 */
enum {
  BLUBLAS_EPILOGUE_NONE = 0,
  BLUBLAS_EPILOGUE_BIAS = 1 << 0,
  BLUBLAS_EPILOGUE_GELU_TANH = 1 << 1,
  BLUBLAS_EPILOGUE_GELU_ERF = 1 << 2,
  BLUBLAS_EPILOGUE_STORE_PREACTIVATION = 1 << 3,
  BLUBLAS_EPILOGUE_GELU_TANH_GRADIENT = 1 << 4,
  BLUBLAS_EPILOGUE_GELU_ERF_GRADIENT = 1 << 5,
  BLUBLAS_EPILOGUE_RESIDUAL = 1 << 6,
  BLUBLAS_EPILOGUE_ACCUMULATE = 1 << 7,
  BLUBLAS_EPILOGUE_COLUMN_SUM = 1 << 8,
  BLUBLAS_EPILOGUE_COLUMN_SUM_ACCUMULATE = 1 << 9,
  BLUBLAS_EPILOGUE_ROW_SUM_A = 1 << 10,
  BLUBLAS_EPILOGUE_ROW_SUM_A_ACCUMULATE = 1 << 11,
  BLUBLAS_EPILOGUE_BIAS_GELU_TANH = (1 << 0) | (1 << 1),
  BLUBLAS_EPILOGUE_BIAS_GELU_ERF = (1 << 0) | (1 << 2)
};

/* One (batched) GEMM. Zero-initialise it, set struct_size = sizeof(blublas_gemm_args) and what is needed.
 *
 * dtypes: a, b float32 -> c float32; a, b float64 -> c float64; a, b bfloat16 -> c float32 or bfloat16 (accumulated in
 *   float32). bias, aux, residual: the accumulation type or c's dtype, each on its own. column_sum, row_sum_a: the
 *   accumulation type.
 * Sizes: a [M, K], b [K, N], c [M, N], aux and residual [M, N], each in the matrix's rows and cols. M, N, K and batch
 *   may be 0: with M or N 0 only the sums are written (an empty sum is 0); with K = 0 the product is 0 and the rest
 *   follows; with batch 0 nothing happens.
 * Batch: `batch` matrices at batch_stride (0 is fine for what is read). With a_array (b_array, c_array) non-NULL,
 *   `batch` pointers replace data and batch_stride of that operand. bias, column_sum, row_sum_a: one vector per batch
 *   at *_batch_stride elements (bias_batch_stride 0: one bias for all; the sums need separate vectors when batch > 1).
 * Overlap: c (and a stored aux) must not overlap a, b, bias or each other. residual, and an aux that is read, may be c
 *   itself (same pointer and strides) and must not overlap it otherwise. Overlap is found from the strides: status 1.
 *   The test is exact for slices of one matrix or tensor and errs on the side of refusing for stranger layouts.
 * Bits: the result depends on operands, shape, strides and the kernel set (blublas_set_kernel), never on the number of
 *   threads, the workspace's size, the addresses, or who calls. Sums over K run in fixed blocks that the shape decides.
 *   On CUDA it depends further on the device's architecture, on which addresses are multiples of 16, and on
 *   blublas_set_cuda_config; never on timing.
 * CUDA: device_type BLUBLAS_CUDA, device_index, stream (a cudaStream_t, NULL: the default stream). All addresses are of
 *   memory that the device reaches; a_array, b_array and c_array themselves lie in host memory and are read during the
 *   call. The call returns when the work is in the stream; it neither allocates nor synchronizes and may be captured
 *   into a graph. num_threads is ignored. The workspace is 256-byte aligned and belongs to the call until the stream is
 *   past it; with less than blublas_gemm_workspace asks for, the call fails with status 1 and launches nothing. The
 *   calling thread's current device is the same afterwards.
 */
typedef struct blublas_gemm_args {
  uint32_t struct_size;
  int32_t device_type;  /* BLUBLAS_CPU or BLUBLAS_CUDA */
  int32_t device_index; /* 0 on CPU */
  int32_t num_threads;  /* 0: the pool's number; otherwise at most this many of them */
  void* stream;         /* NULL on CPU: the work is done when the call returns */
  int64_t batch;        /* 1 for one matrix */
  double alpha, beta;
  blublas_matrix a, b, c; /* messages call c `out` */
  const void* const* a_array;
  const void* const* b_array;
  void* const* c_array;
  int32_t epilogue;   /* flags above */
  int32_t bias_dtype; /* dtype of bias */
  const void* bias;   /* [N], contiguous */
  int64_t bias_batch_stride;
  blublas_matrix aux;
  blublas_matrix residual;
  void* column_sum; /* [N], contiguous */
  int64_t column_sum_batch_stride;
  void* row_sum_a; /* [M], contiguous */
  int64_t row_sum_a_batch_stride;
  void* workspace; /* 64-byte aligned; may be NULL when workspace_bytes is 0 and none is needed */
  size_t workspace_bytes;
  int32_t math;     /* BLUBLAS_MATH_*; since 0.2 */
  int32_t reserved; /* 0 */
} blublas_gemm_args;

/* Bytes of workspace that let blublas_gemm use all of its threads (num_threads, or the pool's). Pointers in `args` are
 * not looked at. With less, blublas_gemm uses fewer threads; below what one thread needs it fails with status 1 and
 * touches nothing. May be 0. */
BLUBLAS_API int32_t blublas_gemm_workspace(const blublas_gemm_args* args, size_t* bytes);

/* Does it. On failure nothing was written. May be called from tasks of blublas_parallel (it then runs on the calling
 * thread). */
BLUBLAS_API int32_t blublas_gemm(const blublas_gemm_args* args);

/* Thread pool ------------------------------------------------------------------------------------------------------
 * One per process, started at the first use. Workers are persistent: after work they spin for about 60 microseconds and
 * then sleep. After fork() the child starts a pool of its own at its first use. */

/* Number of threads that a parallel call uses, the caller included. At the start: the physical cores that
 * sched_getaffinity and the control group give the process. */
BLUBLAS_API int32_t blublas_num_threads(void);
/* 1 <= num_threads <= blublas_max_threads(), 0 restores the default. Waits for a running parallel call; status 1 inside
 * a task. */
BLUBLAS_API int32_t blublas_set_num_threads(int32_t num_threads);
/* Upper limit of blublas_set_num_threads and bound of every thread_index. Constant; may exceed the number of cores. */
BLUBLAS_API int32_t blublas_max_threads(void);

typedef void (*blublas_task)(void* arg, int64_t task_index, int32_t thread_index);

/* Calls task(arg, i, t) once for every 0 <= i < num_tasks and returns when all are done; what tasks wrote is then
 * visible to the caller. Tasks are handed out one by one, in order of index, to whoever is free: cut the work by index
 * alone and results never depend on threads. thread_index is in [0, blublas_num_threads()), and two tasks of a call
 * that run at once have different ones (0 is the caller): use it for scratch space of that call. Inside a task a nested
 * call runs inline on the calling thread, with the outer thread_index. A call that finds the pool busy with another thread's call
 * runs inline too, with thread_index 0. A task must not throw (the process would terminate). A task may wait for tasks
 * of lower index, which have all begun, and for nothing else. */
BLUBLAS_API void blublas_parallel(int64_t num_tasks, blublas_task task, void* arg);
/* The same with at most max_threads threads (0: no limit but the pool's). */
BLUBLAS_API void blublas_parallel_limited(int64_t num_tasks, blublas_task task, void* arg, int32_t max_threads);
/* 1 inside a task of blublas_parallel, 0 outside: whether a parallel call would run inline. */
BLUBLAS_API int32_t blublas_in_parallel(void);

/* Kernels ---------------------------------------------------------------------------------------------------------- */

enum {
  BLUBLAS_CPU_AVX2 = 1 << 0,   /* AVX2 and FMA */
  BLUBLAS_CPU_AVX512 = 1 << 1, /* AVX-512 F, BW, DQ, VL */
  BLUBLAS_CPU_AVX512_BF16 = 1 << 2
};
/* What CPU and operating system offer, and this build knows: flags above. */
BLUBLAS_API uint32_t blublas_cpu_features(void);
/* Name of the micro-kernel that GEMMs with operands of this dtype use now, e.g. "gemm_f32_avx512_14x32"; "" for other
 * dtypes. */
BLUBLAS_API const char* blublas_kernel_name(int32_t dtype);
/* Chooses the kernel set: "reference", "avx2", "avx512", or "auto" for the best that the machine has. For tests and
 * measurements; not while a GEMM runs. Status 4 when the machine or the build has no such set, 1 for another name. */
BLUBLAS_API int32_t blublas_set_kernel(const char* name);
/* Names of the CUDA tile kernels of this build, for index 0, 1, ...; NULL past the last (at once without CUDA). The last
 * one is "general", the kernel for any strides. Since 0.2. */
BLUBLAS_API const char* blublas_cuda_config_name(int32_t index);
/* Chooses the CUDA kernel for products of its precision by name, "name/parts" with a number of parts into which K is
 * cut, or "auto". For tests and measurements; not while a GEMM is called. Products whose layout or device does not
 * allow the chosen one are done as with "auto". Status 1 for another name, 4 without CUDA. Since 0.2. */
BLUBLAS_API int32_t blublas_set_cuda_config(const char* name);

#ifdef __cplusplus
}
#endif

#endif
