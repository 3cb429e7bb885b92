"""A checked product, as one or more calls of the native library."""

from __future__ import annotations

import ctypes
import math
import threading
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blublas import _native
from blublas._batch import batch_stride, expect_apart, matrix, pointers
from blublas._cuda import Producer
from blublas._views import View
from blublas.errors import OutOfMemoryError, check

__all__ = ["Product", "new_array"]

_ALIGNMENT = 64


def new_array(what: str, shape: tuple[int, ...], dtype: type[np.generic]) -> NDArray[Any]:
    """A NumPy array with undefined contents.

    Raises:
        OutOfMemoryError: no memory holds it.
    """
    try:
        return np.empty(shape, dtype)
    except (MemoryError, ValueError):  # ValueError: more than an address can reach
        num_bytes = math.prod(shape) * np.dtype(dtype).itemsize
        raise OutOfMemoryError(
            f"[gemm] expected memory for {what}, got none of {num_bytes} bytes: {np.dtype(dtype)} of shape {shape}"
        ) from None


class _Workspace(threading.local):
    """A buffer per thread that grows to what was needed most."""

    def __init__(self) -> None:
        self.buffer: NDArray[np.uint8] = np.empty(0, np.uint8)
        self.address = 0

    def at_least(self, num_bytes: int) -> tuple[NDArray[np.uint8], int]:
        """A buffer that holds that many aligned bytes, and where they start."""
        if self.buffer.nbytes < num_bytes + _ALIGNMENT:
            self.buffer = new_array("the workspace", (num_bytes + _ALIGNMENT,), np.uint8)
            self.address = -(-self.buffer.ctypes.data // _ALIGNMENT) * _ALIGNMENT
        return self.buffer, self.address


_workspace = _Workspace()


@dataclass(frozen=True, slots=True)
class Product:
    """Every operand in the whole batch's shape: matrices [..., rows, cols], vectors [..., size]."""

    a: View
    b: View
    c: View
    #: Flags of the epilogue.
    epilogue: int
    alpha: float
    beta: float
    num_threads: int
    bias: View | None = None
    aux: View | None = None
    residual: View | None = None
    column_sum: View | None = None
    row_sum_a: View | None = None
    #: How float32 is multiplied on CUDA.
    math: int = _native.MATH_IEEE
    #: On a CUDA device: who allocates, and DLPack's number of the stream.
    producer: Producer | None = None
    stream: int = 0

    def run(self) -> None:
        """Compute it."""
        num_axes = len(self.c.shape) - 2
        if num_axes > 1 and any(batch_stride(x, num_axes) is None for x in self._views()):
            self._expect_apart()
            self._cut(num_axes)
        else:
            self._run_one(num_axes)

    def _views(self) -> list[View]:
        values = (getattr(self, field.name) for field in fields(self))
        return [value for value in values if isinstance(value, View)]

    def _expect_apart(self) -> None:
        stored = self.aux if self.epilogue & _native.EPILOGUE_STORE_PREACTIVATION else None
        written = [x for x in (self.c, stored, self.column_sum, self.row_sum_a) if x is not None]
        expect_apart(written, [x for x in self._views() if not any(x is y for y in written)], self.c)

    def _cut(self, num_axes: int) -> None:
        others = (self.bias, self.aux, self.residual, self.column_sum, self.row_sum_a)
        if all(x is None or batch_stride(x, num_axes) is not None for x in others):
            return self._run_one(num_axes)
        for index in range(self.c.shape[0]):
            members: dict[str, Any] = {
                field.name: value.member(index)
                for field in fields(self)
                if isinstance(value := getattr(self, field.name), View)
            }
            replace(self, **members)._cut(num_axes - 1)

    def _run_one(self, num_axes: int) -> None:
        """One native call; pointers stand for the matrices that have no single stride."""
        args = _native.GemmArgs(struct_size=ctypes.sizeof(_native.GemmArgs), num_threads=self.num_threads)
        args.math = self.math
        if self.c.device is not None:
            args.device_type, args.device_index = _native.CUDA, self.c.device
            args.stream = None if self.stream == 1 else self.stream
        args.batch = math.prod(self.c.shape[:num_axes])
        args.alpha, args.beta, args.epilogue = self.alpha, self.beta, self.epilogue
        for name in ("a", "b", "c"):
            view: View = getattr(self, name)
            stride = batch_stride(view, num_axes)
            setattr(args, name, matrix(view, stride or 0))
            if stride is None:
                setattr(args, f"{name}_array", pointers(view, num_axes))
        if self.aux is not None:
            args.aux = matrix(self.aux, batch_stride(self.aux, num_axes) or 0)
        if self.residual is not None:
            args.residual = matrix(self.residual, batch_stride(self.residual, num_axes) or 0)
        for name in ("bias", "column_sum", "row_sum_a"):
            vector: View | None = getattr(self, name)
            if vector is not None:
                setattr(args, name, vector.address or None)
                setattr(args, f"{name}_batch_stride", batch_stride(vector, num_axes) or 0)
        if self.bias is not None:
            args.bias_dtype = self.bias.dtype

        num_bytes = ctypes.c_size_t()
        check(_native.library.blublas_gemm_workspace(args, num_bytes))
        workspace: object = None
        if self.producer is None:
            workspace, args.workspace = _workspace.at_least(num_bytes.value)
        elif num_bytes.value:
            workspace, args.workspace = self.producer.workspace(num_bytes.value, self.stream)
        args.workspace_bytes = num_bytes.value
        check(_native.library.blublas_gemm(args))
        del workspace  # until here it lives, whatever a signal handler computes and grows; on CUDA its owner gives
        # it to nobody before the stream is past the product
