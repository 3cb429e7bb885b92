"""Shapes: joining, repeating, turning and cutting tensors. Names and arguments follow the Python array API standard.

Views where the standard allows one: nothing is copied that strides can say.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from . import _operators as ops
from ._arguments import flag_or_none, integer
from ._calls import need_tensor
from ._naming import named
from .creation import arange, zeros
from .dtypes import described, nested_array, shown
from .errors import DTypeError, IndexOutOfRangeError, ShapeError
from .interop import sizes_of
from .tensor import Tensor

__all__ = ["broadcast_arrays", "broadcast_shapes", "concat", "diagonal", "flip", "meshgrid", "moveaxis", "repeat",
           "reshape", "roll", "stack", "tile", "tril", "triu", "unstack"]  # fmt: skip

Axes = int | Sequence[int]


def normalized_axis(op: str, axis: int, rank: int) -> int:
    """An axis as a number from 0 to rank - 1.

    Raises:
        IndexOutOfRangeError: Outside [-rank, rank).
    """
    number = integer(op, "axis", axis)
    if not -rank <= number < rank:
        raise IndexOutOfRangeError(f"[{op}] expected an axis from {-rank} to {rank - 1}, got {shown(number)}")
    return number % rank


def normalized_axes(op: str, axes: Axes, rank: int) -> tuple[int, ...]:
    """Axes, or one, as different numbers from 0 to rank - 1."""
    values = tuple(axes) if isinstance(axes, Sequence) else (axes,)
    numbers = tuple(normalized_axis(op, axis, rank) for axis in values)
    if len(set(numbers)) != len(numbers):
        raise ShapeError(f"[{op}] expected every axis once, got {values}")
    return numbers


@named("broadcast_shapes")
def broadcast_shapes(*shapes: Sequence[int]) -> tuple[int, ...]:
    """The shape that all of these broadcast to.

    Raises:
        ShapeError: There is none.
    """
    checked = [sizes_of("broadcast_shapes", shape) for shape in shapes]
    rank = max((len(s) for s in checked), default=0)
    result = [1] * rank
    for shape in checked:
        for i, size in enumerate(shape, rank - len(shape)):
            if size != 1 and result[i] not in (1, size):
                raise ShapeError(f"[broadcast] expected shapes that broadcast, got {', '.join(map(str, shapes))}")
            result[i] = result[i] if size == 1 else size
    return tuple(result)


@named("broadcast_arrays")
def broadcast_arrays(*arrays: Tensor) -> list[Tensor]:
    """All tensors in the shape that they broadcast to, as views.

    Raises:
        ShapeError: The shapes do not broadcast.
    """
    shape = broadcast_shapes(*(need_tensor("broadcast_arrays", "arrays", a).shape for a in arrays))
    return [a if a.shape == shape else ops.broadcast_to(a, shape) for a in arrays]


@named("reshape")
def reshape(x: Tensor, /, shape: int | Sequence[int], *, copy: bool | None = None) -> Tensor:
    """The same elements in another shape; one size may be -1.

    Args:
        x: Any shape.
        shape: The new one.
        copy: True copies always, False never (an error when it would have to), None when the strides need it.

    Raises:
        ShapeError: Not as many elements, or a copy is needed and `copy` is False.
        DTypeError: `copy` that is neither a bool nor None.
    """
    copy = flag_or_none("reshape", "copy", copy)
    if copy:
        return ops.reshape(ops.copy(x), shape)
    result = ops.reshape(x, shape)
    if copy is False and result.storage_id != x.storage_id:
        raise ShapeError(
            f"[reshape] a copy is needed to go from shape {x.shape} with strides {x.strides} to {result.shape}"
        )
    return result


@named("concat")
def concat(tensors: Sequence[Tensor], axis: int | None = 0) -> Tensor:
    """The tensors one after the other along an axis; axis None: of all their elements, in one row.

    Args:
        tensors: Equal shapes but for that axis; dtypes promote.
        axis: Negative ones count from the end.

    Raises:
        ShapeError: No tensors, or shapes that do not fit.
        IndexOutOfRangeError: No such axis.
    """
    if axis is None:
        return ops.concat([t.reshape(-1) if t.size else t.reshape(0) for t in tensors], 0)
    return ops.concat(tensors, axis)


@named("stack")
def stack(tensors: Sequence[Tensor], axis: int = 0) -> Tensor:
    """The tensors side by side along a new axis.

    Raises:
        ShapeError: No tensors, or of different shapes.
        IndexOutOfRangeError: No such axis of the result.
    """
    tensors = list(tensors)
    if tensors:
        axis = normalized_axis("stack", axis, need_tensor("stack", "tensors", tensors[0]).ndim + 1)
        for t in tensors[1:]:
            if need_tensor("stack", "tensors", t).shape != tensors[0].shape:
                raise ShapeError(f"[stack] expected tensors of one shape, got {tensors[0].shape} and {t.shape}")
    return ops.concat([ops.expand_dims(t, axis) for t in tensors], axis)


@named("unstack")
def unstack(x: Tensor, axis: int = 0) -> tuple[Tensor, ...]:
    """The parts of x along an axis, without it: views.

    Raises:
        IndexOutOfRangeError: No such axis.
    """
    axis = normalized_axis("unstack", axis, need_tensor("unstack", "x", x).ndim)
    before = (slice(None),) * axis
    return tuple(x[(*before, i)] for i in range(x.shape[axis]))


@named("moveaxis")
def moveaxis(x: Tensor, source: Axes, destination: Axes) -> Tensor:
    """X with some axes at other places and the rest in order: a view.

    Raises:
        ShapeError: Axes named twice, or not as many places as axes.
        IndexOutOfRangeError: No such axis.
    """
    origin, target = normalized_axes("moveaxis", source, x.ndim), normalized_axes("moveaxis", destination, x.ndim)
    if len(origin) != len(target):
        raise ShapeError(f"[moveaxis] expected as many destinations as sources, got {source} and {destination}")
    order = [axis for axis in range(x.ndim) if axis not in origin]
    for place, axis in sorted(zip(target, origin, strict=True)):
        order.insert(place, axis)
    return ops.permute_dims(x, order)


@named("flip")
def flip(x: Tensor, *, axis: Axes | None = None) -> Tensor:
    """X with its elements in reverse order along axes, by default all: a view.

    Raises:
        IndexOutOfRangeError: No such axis.
    """
    need_tensor("flip", "x", x)
    axes = range(x.ndim) if axis is None else normalized_axes("flip", axis, x.ndim)
    return x[tuple(slice(None, None, -1) if i in axes else slice(None) for i in range(x.ndim))] if x.ndim else x


@named("roll")
def roll(x: Tensor, shift: int | Sequence[int], *, axis: Axes | None = None) -> Tensor:
    """X with its elements moved along axes; what leaves at one end comes back at the other.

    Args:
        x: Any shape.
        shift: By how many places; one for each axis, or one for all.
        axis: By default the row-major order of all elements is rolled.

    Raises:
        ShapeError: Not as many shifts as axes.
        IndexOutOfRangeError: No such axis.
    """
    if axis is None:
        return roll(x.reshape(x.size), shift, axis=0).reshape(x.shape)
    axes = [normalized_axis("roll", a, x.ndim) for a in (axis if isinstance(axis, Sequence) else (axis,))]
    shifts = [integer("roll", "shift", s) for s in (shift if isinstance(shift, Sequence) else [shift] * len(axes))]
    if len(shifts) != len(axes):
        raise ShapeError(f"[roll] expected a shift for each axis, got {shift} and {axis}")
    result = x
    for a, by in zip(axes, shifts, strict=True):
        size = x.shape[a]
        start = -by % size if size else 0
        if start:
            before = (slice(None),) * a
            result = ops.concat([result[(*before, slice(start, None))], result[(*before, slice(None, start))]], a)
    return ops.copy(x) if result is x else result


@named("tile")
def tile(x: Tensor, repetitions: Sequence[int], /) -> Tensor:
    """X laid side by side `repetitions` times along each axis (the last ones, where there are fewer).

    Raises:
        ShapeError: A negative number.
    """
    counts = sizes_of("tile", repetitions)
    rank = max(x.ndim, len(counts))
    shape = (1,) * (rank - x.ndim) + x.shape
    counts = (1,) * (rank - len(counts)) + counts
    result = x.reshape(shape)
    for axis in range(rank):
        if counts[axis] != 1:
            result = _repeated(result, axis, counts[axis], whole=True)
    return ops.copy(result) if result.storage_id == x.storage_id else result


def _repeated(x: Tensor, axis: int, count: int, whole: bool) -> Tensor:
    """The axis `count` times as long: as a whole again and again, or every element again and again."""
    before, size, after = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
    rows, columns = math.prod(before), math.prod(after)
    three = x.reshape(rows, size, columns)
    wide = ops.broadcast_to(
        ops.expand_dims(three, 1 if whole else 2),
        (rows, count, size, columns) if whole else (rows, size, count, columns),
    )
    return wide.reshape(*before, size * count, *after)


@named("repeat")
def repeat(x: Tensor, repeats: int | Sequence[int] | Tensor, /, *, axis: int | None = None) -> Tensor:
    """X with every element along an axis repeated in place; axis None: of all its elements, in one row.

    Args:
        x: Any shape.
        repeats: How often; a number for each element of the axis, or one for all. A tensor is read on the host, so a
            captured function takes numbers only.
        axis: Negative ones count from the end.

    Raises:
        ShapeError: Negative, or not as many as elements.
        IndexOutOfRangeError: No such axis.
    """
    if axis is None:
        return repeat(x.reshape(x.size), repeats, axis=0)
    axis = normalized_axis("repeat", axis, x.ndim)
    if isinstance(repeats, int) or (hasattr(repeats, "__index__") and not isinstance(repeats, Tensor)):
        return _repeated(x, axis, integer("repeat", "repeats", repeats, least=0), whole=False)
    numbers = repeats.tolist() if isinstance(repeats, Tensor) else repeats
    counts = np.atleast_1d(nested_array("repeat", numbers))
    if counts.dtype.kind not in "iu" and counts.size:
        raise DTypeError(f"[repeat] expected integers for repeats, got {described(numbers)}")
    counts = counts.astype(np.int64)
    if counts.ndim != 1 or len(counts) not in (1, x.shape[axis]) or (counts < 0).any():
        raise ShapeError(
            f"[repeat] expected {x.shape[axis]} numbers of at least 0, one for each element of axis {axis}, got "
            f"{numbers}"
        )
    if len(counts) == 1:
        return _repeated(x, axis, int(counts[0]), whole=False)
    from .indexing import take
    from .interop import asarray

    return take(x, asarray(np.repeat(np.arange(len(counts)), counts), device=x.device), axis=axis)


@named("meshgrid")
def meshgrid(*arrays: Tensor, indexing: Literal["xy", "ij"] = "xy") -> list[Tensor]:
    """Coordinates of a grid from those along its axes, as views.

    Args:
        arrays: 1-d, of N_1, N_2, ... elements.
        indexing: "ij": all results are (N_1, N_2, N_3, ...); "xy": (N_2, N_1, N_3, ...).

    Raises:
        ShapeError: A tensor that is not 1-d, or another `indexing`.
    """
    if not isinstance(indexing, str) or indexing not in ("xy", "ij"):
        raise ShapeError(f"[meshgrid] expected indexing 'xy' or 'ij', got {described(indexing)}")
    for a in arrays:
        if need_tensor("meshgrid", "arrays", a).ndim != 1:
            raise ShapeError(f"[meshgrid] expected 1-d tensors, got shape {a.shape}")
    rank = len(arrays)
    places = list(range(rank))
    if indexing == "xy" and rank > 1:
        places[:2] = [1, 0]
    return broadcast_arrays(
        *(
            a.reshape(*(a.size if i == place else 1 for i in range(rank)))
            for a, place in zip(arrays, places, strict=True)
        )
    )


def _triangle(op: str, x: Tensor, k: int, lower: bool) -> Tensor:
    if x.ndim < 2:
        raise ShapeError(f"[{op}] expected at least 2 axes, got shape {x.shape}")
    rows, columns = x.shape[-2:]
    row, column = ops.expand_dims(arange(rows, device=x.device), 1), arange(columns, device=x.device)
    k = integer(op, "k", k)
    inside = ops.less_equal(column, row + k) if lower else ops.greater_equal(column, row + k)
    return ops.where(inside, x, zeros((), dtype=x.dtype, device=x.device))


@named("tril")
def tril(x: Tensor, /, *, k: int = 0) -> Tensor:
    """Matrices [..., M, N] with zeros above the k-th diagonal (0: the main one, below it negative).

    Raises:
        ShapeError: Fewer than 2 axes.
    """
    return _triangle("tril", x, k, lower=True)


@named("triu")
def triu(x: Tensor, /, *, k: int = 0) -> Tensor:
    """Matrices [..., M, N] with zeros below the k-th diagonal (0: the main one, below it negative).

    Raises:
        ShapeError: Fewer than 2 axes.
    """
    return _triangle("triu", x, k, lower=False)


@named("diagonal")
def diagonal(x: Tensor, /, *, offset: int = 0) -> Tensor:
    """The diagonals [..., min(M, N)] of matrices [..., M, N], `offset` above the main one; a view of contiguous ones.

    Raises:
        ShapeError: Fewer than 2 axes.
    """
    if x.ndim < 2:
        raise ShapeError(f"[diagonal] expected at least 2 axes, got shape {x.shape}")
    part = x[..., max(-offset, 0) :, max(offset, 0) :]
    length = min(part.shape[-2:])
    if length == 0:
        return part.reshape(*x.shape[:-2], 0)
    part = part[..., :length, :length].contiguous()
    return part.reshape(*x.shape[:-2], length * length)[..., :: length + 1]
