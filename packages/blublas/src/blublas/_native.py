"""The C interface of libblublas, declared for ctypes: include/blublas/blublas.h in Python, and nothing else."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_double, c_int32, c_int64, c_size_t, c_uint32, c_void_p

import libblublas

FLOAT32, BFLOAT16, FLOAT64 = 0, 1, 3

CPU, CUDA = 0, 1
MATH_IEEE, MATH_TF32 = 0, 1

EPILOGUE_BIAS = 1 << 0
EPILOGUE_GELU_TANH = 1 << 1
EPILOGUE_GELU_ERF = 1 << 2
EPILOGUE_STORE_PREACTIVATION = 1 << 3
EPILOGUE_GELU_TANH_GRADIENT = 1 << 4
EPILOGUE_GELU_ERF_GRADIENT = 1 << 5
EPILOGUE_RESIDUAL = 1 << 6
EPILOGUE_ACCUMULATE = 1 << 7
EPILOGUE_COLUMN_SUM = 1 << 8
EPILOGUE_COLUMN_SUM_ACCUMULATE = 1 << 9
EPILOGUE_ROW_SUM_A = 1 << 10
EPILOGUE_ROW_SUM_A_ACCUMULATE = 1 << 11

CPU_FEATURES = {"avx2": 1 << 0, "avx512": 1 << 1, "avx512_bf16": 1 << 2}


class Matrix(ctypes.Structure):
    """``blublas_matrix``."""

    _fields_ = (
        ("data", c_void_p),
        ("dtype", c_int32),
        ("reserved", c_int32),
        ("rows", c_int64),
        ("cols", c_int64),
        ("row_stride", c_int64),
        ("col_stride", c_int64),
        ("batch_stride", c_int64),
    )


class GemmArgs(ctypes.Structure):
    """``blublas_gemm_args``."""

    _fields_ = (
        ("struct_size", c_uint32),
        ("device_type", c_int32),
        ("device_index", c_int32),
        ("num_threads", c_int32),
        ("stream", c_void_p),
        ("batch", c_int64),
        ("alpha", c_double),
        ("beta", c_double),
        ("a", Matrix),
        ("b", Matrix),
        ("c", Matrix),
        ("a_array", POINTER(c_void_p)),
        ("b_array", POINTER(c_void_p)),
        ("c_array", POINTER(c_void_p)),
        ("epilogue", c_int32),
        ("bias_dtype", c_int32),
        ("bias", c_void_p),
        ("bias_batch_stride", c_int64),
        ("aux", Matrix),
        ("residual", Matrix),
        ("column_sum", c_void_p),
        ("column_sum_batch_stride", c_int64),
        ("row_sum_a", c_void_p),
        ("row_sum_a_batch_stride", c_int64),
        ("workspace", c_void_p),
        ("workspace_bytes", c_size_t),
        ("math", c_int32),
        ("reserved", c_int32),
    )


TASK = ctypes.CFUNCTYPE(None, c_void_p, c_int64, c_int32)

library = libblublas.load_library()


def _declare(name: str, result: object, *arguments: object) -> None:
    function = getattr(library, name)
    function.restype = result
    function.argtypes = arguments


_declare("blublas_abi_version", c_uint32)
_declare("blublas_last_error", c_char_p)
_declare("blublas_gemm_workspace", c_int32, POINTER(GemmArgs), POINTER(c_size_t))
_declare("blublas_gemm", c_int32, POINTER(GemmArgs))
_declare("blublas_num_threads", c_int32)
_declare("blublas_set_num_threads", c_int32, c_int32)
_declare("blublas_max_threads", c_int32)
_declare("blublas_parallel", None, c_int64, TASK, c_void_p)
_declare("blublas_parallel_limited", None, c_int64, TASK, c_void_p, c_int32)
_declare("blublas_in_parallel", c_int32)
_declare("blublas_cpu_features", c_uint32)
_declare("blublas_kernel_name", c_char_p, c_int32)
_declare("blublas_set_kernel", c_int32, c_char_p)
_declare("blublas_cuda_config_name", c_char_p, c_int32)
_declare("blublas_set_cuda_config", c_int32, c_char_p)
