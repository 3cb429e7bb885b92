"""Making tensors. Names follow the Python array API standard."""

from __future__ import annotations

from collections.abc import Sequence

from . import dtypes
from ._calls import arange_on, full_on
from .devices import as_device
from .interop import asarray, empty, from_dlpack
from .tensor import Scalar, Tensor

__all__ = ["arange", "asarray", "empty", "empty_like", "from_dlpack", "full", "full_like", "ones", "ones_like",
           "zeros", "zeros_like"]  # fmt: skip

Shape = int | Sequence[int]


def full(
    shape: Shape, fill_value: Scalar, *, dtype: dtypes.DType | str | None = None, device: str | None = None
) -> Tensor:
    """A tensor of one value; dtype defaults to bool, int64 or float32 by the value's type.

    `device` is "cpu" or "cuda:<index>"; the default device unless given, as everywhere here.
    """
    if dtype is None:
        kind = {bool: dtypes.bool_, int: dtypes.int64}.get(type(fill_value), dtypes.float32)
        dtype = kind
    return full_on(shape, fill_value, dtype, as_device("full", device))


def zeros(shape: Shape, *, dtype: dtypes.DType | str = dtypes.float32, device: str | None = None) -> Tensor:
    """A tensor of zeros."""
    return full(shape, 0, dtype=dtype, device=device)


def ones(shape: Shape, *, dtype: dtypes.DType | str = dtypes.float32, device: str | None = None) -> Tensor:
    """A tensor of ones."""
    return full(shape, 1, dtype=dtype, device=device)


def full_like(
    x: Tensor, fill_value: Scalar, *, dtype: dtypes.DType | str | None = None, device: str | None = None
) -> Tensor:
    """`full` with the shape (and, by default, dtype and device) of x."""
    target = x._fixed()[3] if device is None else as_device("full_like", device)
    return full_on(x.shape, fill_value, x.dtype if dtype is None else dtype, target)


def zeros_like(x: Tensor, *, dtype: dtypes.DType | str | None = None, device: str | None = None) -> Tensor:
    """`zeros` with the shape (and, by default, dtype and device) of x."""
    return full_like(x, 0, dtype=dtype, device=device)


def ones_like(x: Tensor, *, dtype: dtypes.DType | str | None = None, device: str | None = None) -> Tensor:
    """`ones` with the shape (and, by default, dtype and device) of x."""
    return full_like(x, 1, dtype=dtype, device=device)


def empty_like(x: Tensor, *, dtype: dtypes.DType | str | None = None, device: str | None = None) -> Tensor:
    """`empty` with the shape (and, by default, dtype and device) of x."""
    return empty(x.shape, dtype=x.dtype if dtype is None else dtype, device=x.device if device is None else device)


def arange(
    start: float,
    stop: float | None = None,
    step: float = 1,
    *,
    dtype: dtypes.DType | str | None = None,
    device: str | None = None,
) -> Tensor:
    """start, start + step, ... below stop (1-d); int64 when all are integers, else float32."""
    if stop is None:
        start, stop = 0, start
    if dtype is None:
        integral = all(isinstance(v, int) for v in (start, stop, step))
        dtype = dtypes.int64 if integral else dtypes.float32
    return arange_on(start, stop, step, dtype, as_device("arange", device))
