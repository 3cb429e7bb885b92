"""Basic indexing: integers, slices, None and Ellipsis, as views."""

from __future__ import annotations

from typing import Any

import numpy as np

from .autograd import is_grad_enabled
from .dtypes import bool_
from .errors import AutogradError, DTypeError, IndexOutOfRangeError, ShapeError
from .interop import asarray
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
        if _selects_elements(item):
            raise DTypeError(
                f"[index] expected integers, slices, None or Ellipsis, got {_describe(item)}: indexing by integer "
                "arrays and masks is not supported; use embedding(ids, x) for rows, where(mask, x, y) for masks"
            )
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


def set_item(x: Tensor, index: Index | tuple[Index, ...], value: Any) -> None:
    """`x[index] = value`: a number for every element, or values that broadcast to `x[index]`.

    Raises:
        AutogradError: x requires a gradient.
        DTypeError: An index as in `get_item`, or values that are no numbers.
        ShapeError: Values that do not fit.
    """
    if x.requires_grad and is_grad_enabled():
        made = x.grad_fn
        what = "a leaf that requires a gradient" if made is None else f"a result of '{made}' that is part of the graph"
        raise AutogradError(
            f"[setitem] cannot assign to elements of {what}: writes in place are not recorded; assign within no_grad()"
        )
    target = get_item(x, index)
    if isinstance(value, (Tensor, np.ndarray)):
        target.copy_(value)
    elif isinstance(value, (bool, int, float, np.generic)):
        target.fill_(value)  # type: ignore[arg-type]
    else:
        target.copy_(_values(value))


def _values(value: Any) -> Tensor:
    """Nested sequences as a tensor."""
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ShapeError(f"[setitem] expected nested sequences of equal lengths, got {value!r}: {error}") from None
    if array.dtype.kind not in "biuf":
        raise DTypeError(f"[setitem] expected a tensor, an array, a number or a sequence of numbers, got {value!r}")
    return asarray(array, device="cpu")


def _selects_elements(item: object) -> bool:
    """Whether NumPy would index by it element by element."""
    if isinstance(item, (Tensor, np.ndarray)):
        return item.ndim > 0 or item.dtype in (bool_, np.dtype(bool))
    return isinstance(item, (list, tuple))


def _describe(item: object) -> str:
    if isinstance(item, Tensor):
        return f"a tensor of {item.dtype.name} and shape {item.shape}"
    if isinstance(item, np.ndarray):
        return f"an array of {item.dtype} and shape {item.shape}"
    return type(item).__name__


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
