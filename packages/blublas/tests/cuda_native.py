"""The C interface with operands on a CUDA device."""

from __future__ import annotations

import ctypes
from typing import Any

from cuda_arrays import Tensor

from blublas import _native

DTYPES = {"torch.float32": _native.FLOAT32, "torch.float64": _native.FLOAT64, "torch.bfloat16": _native.BFLOAT16}


def matrix_of(x: Tensor) -> _native.Matrix:
    return _native.Matrix(x.data_ptr(), DTYPES[str(x.dtype)], 0, *x.shape, *x.stride(), 0)


def describe(
    a: Tensor,
    b: Tensor,
    c: Tensor,
    *,
    math: str = "ieee",
    column_sum: Tensor | None = None,
    row_sum_a: Tensor | None = None,
) -> _native.GemmArgs:
    args = _native.GemmArgs(batch=1, alpha=1.0, a=matrix_of(a), b=matrix_of(b), c=matrix_of(c))
    args.struct_size = ctypes.sizeof(args)
    args.device_type = _native.CUDA
    args.math = _native.MATH_TF32 if math == "tf32" else _native.MATH_IEEE
    if column_sum is not None:
        args.epilogue |= _native.EPILOGUE_COLUMN_SUM
        args.column_sum = column_sum.data_ptr()
    if row_sum_a is not None:
        args.epilogue |= _native.EPILOGUE_ROW_SUM_A
        args.row_sum_a = row_sum_a.data_ptr()
    return args


def status(args: _native.GemmArgs) -> int:
    result: int = _native.library.blublas_gemm(args)
    return result


def call(torch: Any, args: _native.GemmArgs, more: int = 0) -> None:
    """Run it in a workspace full of NaN, `more` bytes (a multiple of 256) into a larger one, and wait."""
    needed = ctypes.c_size_t()
    assert _native.library.blublas_gemm_workspace(args, needed) == 0, _native.library.blublas_last_error()
    memory = torch.full((needed.value + more + 256,), 255, device="cuda", dtype=torch.uint8)
    args.workspace, args.workspace_bytes = memory.data_ptr() + more, needed.value
    assert status(args) == 0, _native.library.blublas_last_error()
    torch.cuda.synchronize()
    assert bool((memory[:more] == 255).all())
    assert bool((memory[more + needed.value :] == 255).all())
