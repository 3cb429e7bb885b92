"""Basic indexing: integers, slices, None and Ellipsis, as views."""

from __future__ import annotations

from typing import Any

import numpy as np

from .errors import DTypeError, IndexOutOfRangeError
from .tensor import Index, Tensor


def get_item(x: Tensor, index: Index | tuple[Index, ...]) -> Tensor:
    """`x[index]` as a view.

    Raises:
        DTypeError: An index that is not an integer, a slice, None or Ellipsis.
        IndexOutOfRangeError: Too many indices, or an integer outside its axis.
    """
    from . import _operators

    items: list[Any] = list(index) if isinstance(index, tuple) else [index]
    for item in items:
        if isinstance(item, (bool, np.bool_)) or not (
            item is None or item is Ellipsis or isinstance(item, slice) or hasattr(item, "__index__")
        ):
            raise DTypeError(f"[index] expected integers, slices, None or Ellipsis, got {type(item).__name__}")
    used = sum(1 for i in items if i is not None and i is not Ellipsis)
    if used > x.ndim:
        raise IndexOutOfRangeError(f"[index] expected at most {x.ndim} indices for shape {x.shape}, got {used}")
    if sum(1 for i in items if i is Ellipsis) > 1:
        raise IndexOutOfRangeError("[index] expected at most one Ellipsis")
    at = next((k for k, i in enumerate(items) if i is Ellipsis), len(items))
    items[at : at + 1] = [slice(None)] * (x.ndim - used)

    starts, stops, steps, drop, insert = [], [], [], [], []
    axis = out_axis = 0
    for item in items:
        if item is None:
            insert.append(out_axis)
            out_axis += 1
            continue
        size = x.shape[axis]
        if isinstance(item, slice):
            start, stop, step = item.indices(size)
            count = len(range(start, stop, step))
            starts.append(start if count else 0)
            stops.append(count)
            steps.append(step)
            out_axis += 1
        else:
            i = item.__index__()
            if not -size <= i < size:
                raise IndexOutOfRangeError(
                    f"[index] expected an index from {-size} to {size - 1} of axis {axis}, got {i}"
                )
            starts.append(i % size)
            stops.append(1)
            steps.append(1)
            drop.append(axis)
        axis += 1
    y = x
    if any(s != 0 or n != d or t != 1 for s, n, t, d in zip(starts, stops, steps, x.shape, strict=True)):
        y = _operators.slice(x, starts, stops, steps)
    if drop:
        y = _operators.squeeze(y, drop)
    for position in insert:
        y = _operators.expand_dims(y, position)
    return y


def index_write_(target: Tensor, source: Tensor, position: Tensor, axis: int) -> Tensor:
    """Writes `source` into `target` at a position that is known on the device only (a cache at the current token).

    Args:
        target: Written in place.
        source: Shape of target, but for its size n along `axis`.
        position: 0-d integer: rows position .. position + n - 1 are written.
        axis: Axis of target.

    Returns:
        target.

    Raises:
        IndexOutOfRangeError: The rows do not fit.
    """
    from . import _operators

    _operators.private("index_write_")(target, source, position, axis)
    return target
