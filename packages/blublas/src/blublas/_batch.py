"""Leading dimensions of arrays as the batch of one native call."""

from __future__ import annotations

import ctypes
import itertools
import math
from collections.abc import Sequence

import numpy as np

from blublas import _native
from blublas._views import ITEM_BYTES, View

__all__ = ["batch_shape", "batch_stride", "matrix", "pointers"]


def batch_shape(**views: View) -> tuple[int, ...]:
    """Broadcast the dimensions before the last two.

    Raises:
        ValueError: they do not broadcast.
    """
    try:
        return np.broadcast_shapes(*(view.shape[:-2] for view in views.values()))
    except ValueError:
        shapes = ", ".join(f"{name} {view.shape[:-2]}" for name, view in views.items())
        raise ValueError(f"[gemm] expected batch dimensions that broadcast, got {shapes}") from None


def _broadcast_strides(view: View, shape: tuple[int, ...], core: int) -> tuple[int, ...]:
    """Strides of the batch dimensions of an array with ``core`` others behind them; 0 where it is broadcast."""
    own = view.shape[: len(view.shape) - core]
    missing = len(shape) - len(own)
    strides = itertools.chain([0] * missing, view.strides[: len(own)])
    sizes = itertools.chain([1] * missing, own)
    return tuple(0 if size == 1 else stride for size, stride in zip(sizes, strides, strict=True))


def batch_stride(view: View, shape: tuple[int, ...], core: int = 2) -> int | None:
    """The one stride between consecutive members of the batch, or None when there is no such stride."""
    dimensions = [(size, stride) for size, stride in zip(shape, _broadcast_strides(view, shape, core), strict=True) if size != 1]
    if not dimensions or math.prod(shape) == 0:
        return 0
    for (_, outer), (size, inner) in itertools.pairwise(dimensions):
        if outer != size * inner:
            return None
    return dimensions[-1][1]


def pointers(view: View, shape: tuple[int, ...]) -> ctypes.Array[ctypes.c_void_p]:
    """The address of every matrix of the batch, in row-major order of the batch's dimensions."""
    offsets = np.zeros(shape, np.int64)
    strides: Sequence[int] = _broadcast_strides(view, shape, 2)
    for axis, (size, stride) in enumerate(zip(shape, strides, strict=True)):
        offsets += (np.arange(size, dtype=np.int64) * stride).reshape([-1 if i == axis else 1 for i in range(len(shape))])
    addresses = view.address + offsets.ravel() * ITEM_BYTES[view.dtype]
    return (ctypes.c_void_p * addresses.size)(*addresses.tolist())


def matrix(view: View, stride: int) -> _native.Matrix:
    """The last two dimensions as a native matrix."""
    return _native.Matrix(view.address or None, view.dtype, 0, *view.shape[-2:], *view.strides[-2:], stride)
