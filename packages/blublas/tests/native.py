"""The C interface without the Python layer in between."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from blublas import _native

Array = npt.NDArray[Any]
DTYPES = {"float32": _native.FLOAT32, "float64": _native.FLOAT64, "uint16": _native.BFLOAT16}


def matrix_of(x: Array) -> _native.Matrix:
    """[rows, cols] or [batch, rows, cols]."""
    strides = [stride // x.itemsize for stride in x.strides]
    batch_stride = strides[0] if x.ndim == 3 else 0
    return _native.Matrix(x.ctypes.data, DTYPES[str(x.dtype)], 0, *x.shape[-2:], *strides[-2:], batch_stride)


def describe(a: Array, b: Array, c: Array, **fields: Any) -> _native.GemmArgs:
    args = _native.GemmArgs(batch=1, alpha=1.0, a=matrix_of(a), b=matrix_of(b), c=matrix_of(c), **fields)
    args.struct_size = _native.ctypes.sizeof(args)
    return args


def aligned(num_bytes: int) -> tuple[Array, int]:
    memory = np.full(num_bytes + 64, 0xFF, np.uint8)  # NaN, should anybody read before writing
    return memory, -(-memory.ctypes.data // 64) * 64


def call(args: _native.GemmArgs, workspace_bytes: int | None = None) -> int:
    """Status of the product, in a workspace of that many bytes (None: what it asks for), which must not be exceeded."""
    if workspace_bytes is None:
        needed = _native.c_size_t()
        status: int = _native.library.blublas_gemm_workspace(args, needed)
        if status != 0:
            return status
        workspace_bytes = needed.value
    memory, args.workspace = aligned(workspace_bytes + 64)
    args.workspace_bytes = workspace_bytes
    status = _native.library.blublas_gemm(args)
    end = args.workspace + workspace_bytes - memory.ctypes.data
    assert np.all(memory[end:] == 0xFF), "wrote past the workspace"
    return status


def last_error() -> str:
    text: bytes = _native.library.blublas_last_error()
    return text.decode()
