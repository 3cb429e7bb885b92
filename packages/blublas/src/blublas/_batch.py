"""Leading axes of arrays as the batch of native calls.

A native call walks its batch with one stride per operand, or with an array of pointers for a, b and c. Any other
layout is cut along its first axis until one of these fits.
"""

from __future__ import annotations

import ctypes
import itertools
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from blublas import _native
from blublas._views import View
from blublas.errors import InvalidValueError

__all__ = ["batch_shape", "batch_stride", "expect_apart", "matrix", "pointers"]


def batch_shape(a: View, b: View) -> tuple[int, ...]:
    """Broadcast the axes before the last two.

    Raises:
        InvalidValueError: they do not broadcast.
    """
    if a.shape[:-2] == b.shape[:-2]:
        return a.shape[:-2]
    try:
        return np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except ValueError:
        raise InvalidValueError(
            f"[gemm] expected leading axes of a and b that broadcast, got {a.shape[:-2]} and {b.shape[:-2]}"
        ) from None


def batch_stride(view: View, num_axes: int) -> int | None:
    """The one stride from each member of the batch (its first axes) to the next; None where there is no such stride."""
    axes = [axis for axis in zip(view.shape[:num_axes], view.strides, strict=False) if axis[0] != 1]
    if not axes or any(size == 0 for size, _ in axes):
        return 0
    for (_, outer), (size, inner) in itertools.pairwise(axes):
        if outer != size * inner:
            return None
    return axes[-1][1]


def pointers(view: View, num_axes: int) -> ctypes.Array[ctypes.c_void_p]:
    """The address of every matrix of the batch, in row-major order of the batch's axes."""
    steps = [stride * view.item_bytes for stride in view.strides[:num_axes]]
    indices = itertools.product(*(range(size) for size in view.shape[:num_axes]))
    addresses = [view.address + sum(i * step for i, step in zip(index, steps, strict=True)) for index in indices]
    return (ctypes.c_void_p * len(addresses))(*addresses)


def matrix(view: View, stride: int) -> _native.Matrix:
    """The last two axes as a native matrix."""
    return _native.Matrix(view.address or None, view.dtype, 0, *view.shape[-2:], *view.strides[-2:], stride)


# ---- overlap across the native calls of one product --------------------------------------------------------------
class _Memory:
    """What NumPy makes an array of, to ask it for overlaps."""

    def __init__(self, view: View) -> None:
        item = view.item_bytes
        self.__array_interface__ = {
            "version": 3,
            "typestr": f"<u{item}",
            "shape": view.shape,
            "strides": tuple(stride * item for stride in view.strides),
            "data": (view.address, False),
        }


def _overlap(x: View, y: View) -> bool:
    if 0 in x.shape or 0 in y.shape:
        return False
    first: NDArray[Any] = np.asarray(_Memory(x))
    second: NDArray[Any] = np.asarray(_Memory(y))
    if not np.may_share_memory(first, second):  # the quick look at bounds
        return False
    try:
        return np.shares_memory(first, second, max_work=cast(Any, 100_000))
    except np.exceptions.TooHardError:
        return True


def _overlaps_itself(view: View) -> bool:
    if 0 in view.shape:
        return False
    extent = 0
    for stride, size in sorted((abs(stride), size) for stride, size in zip(view.strides, view.shape, strict=True)):
        if size > 1 and stride <= extent:
            return True
        extent += stride * (size - 1)
    return False


def expect_apart(written: list[View], read: list[View], out: View) -> None:
    """Hold a product of several native calls, or with pointers, to the rule that the native library checks per call.

    Raises:
        InvalidValueError: what is written overlaps itself or something else; reading ``out`` itself is allowed.
    """
    for x in written:
        if _overlaps_itself(x):
            raise InvalidValueError(
                f"[gemm] expected {x.name} whose elements do not overlap each other, got shape {x.shape} with strides "
                f"{x.strides}"
            )
    others = [x for x in read if not (x.name in ("residual", "gelu_gradient_of") and _same(x, out))]
    for x, y in [*itertools.product(written, others), *itertools.combinations(written, 2)]:
        if _overlap(x, y):
            raise InvalidValueError(
                f"[gemm] expected {x.name} in memory of its own, got one that overlaps {y.name}: write to another array"
            )


def _same(x: View, y: View) -> bool:
    return (x.address, x.dtype, x.shape, x.strides) == (y.address, y.dtype, y.shape, y.strides)
