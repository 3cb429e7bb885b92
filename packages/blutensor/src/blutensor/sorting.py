"""Sorting, searching and sets.

The results of the `unique_*` functions have shapes that depend on values: they are found on the host, wait for a GPU,
and cannot be captured.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from . import _operators, dtypes
from ._arguments import flag
from ._naming import named
from .indexing import take_along_axis
from .interop import asarray
from .tensor import Tensor


@named("argsort")
def argsort(x: Tensor, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """Positions that sort x along an axis: int64, of x's shape.

    Equal elements stay in their order, whether `stable` asks for it or not. NaN comes behind all numbers, in descending
    order before them.

    Raises:
        IndexOutOfRangeError: No such axis.
        DTypeError: An axis that is no integer, or flags that are no bools.
    """
    flag("argsort", "stable", stable)
    return _operators.argsort(x, axis, descending)


@named("sort")
def sort(x: Tensor, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """X sorted along an axis; see `argsort`. Gradients go back to where the elements came from."""
    return take_along_axis(x, argsort(x, axis=axis, descending=descending, stable=stable), axis=axis)


@named("searchsorted")
def searchsorted(
    x1: Tensor, x2: Tensor, /, *, side: Literal["left", "right"] = "left", sorter: Tensor | None = None
) -> Tensor:
    """Where each element of x2 would have to be inserted into x1 to keep it sorted: int64, of x2's shape.

    Args:
        x1: One axis, ascending (NaN last), or in the order of `sorter`.
        x2: Any shape.
        side: "left": before equal elements, "right": behind them.
        sorter: Positions that sort x1.

    Raises:
        ShapeError: x1 has not one axis, or another side.
    """
    return _operators.searchsorted(x1 if sorter is None else take_along_axis(x1, sorter, axis=0), x2, side)


class UniqueAll(NamedTuple):
    """What `unique_all` returns."""

    values: Tensor
    indices: Tensor
    inverse_indices: Tensor
    counts: Tensor


class UniqueCounts(NamedTuple):
    """What `unique_counts` returns."""

    values: Tensor
    counts: Tensor


class UniqueInverse(NamedTuple):
    """What `unique_inverse` returns."""

    values: Tensor
    inverse_indices: Tensor


@named("unique_all")
def unique_all(x: Tensor, /) -> UniqueAll:
    """The different elements of x, ascending; every NaN counts as one of its own.

    Returns:
        values [n] of x's dtype; indices [n]: where each occurs first in the flattened x; inverse_indices, of x's shape:
        which value each element is; counts [n]. The last three are int64.

    Raises:
        CaptureError: During a capture.
    """
    from .transfer import host_array

    # NumPy has no bfloat16, and float32 holds its numbers.
    source = x.detach().astype(dtypes.float32) if x.dtype is dtypes.bfloat16 else x.detach()
    values, indices, inverse, counts = np.unique(
        host_array(source, "unique"), return_index=True, return_inverse=True, return_counts=True, equal_nan=False
    )

    def tensor(array: npt.NDArray[Any]) -> Tensor:
        return asarray(np.asarray(array, order="C"), device=x.device)

    positions = [tensor(a.astype(np.int64)) for a in (indices, inverse.reshape(x.shape), counts)]
    return UniqueAll(tensor(values).astype(x.dtype), *positions)


@named("unique_counts")
def unique_counts(x: Tensor, /) -> UniqueCounts:
    """The different elements of x and how often each occurs; see `unique_all`."""
    found = unique_all(x)
    return UniqueCounts(found.values, found.counts)


@named("unique_inverse")
def unique_inverse(x: Tensor, /) -> UniqueInverse:
    """The different elements of x and which of them each element is; see `unique_all`."""
    found = unique_all(x)
    return UniqueInverse(found.values, found.inverse_indices)


@named("unique_values")
def unique_values(x: Tensor, /) -> Tensor:
    """The different elements of x; see `unique_all`."""
    return unique_all(x).values
