"""Indexing: integers, slices, None and Ellipsis as views; arrays of integers and masks as copies, as in NumPy."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import _in_place, _native
from . import _operators as ops
from ._calls import full_on, need_tensor
from ._naming import named
from .autograd import is_grad_enabled
from .dtypes import bool_, described, int64, nested_array, numbers_array, shown
from .errors import AutogradError, CaptureError, DTypeError, IndexOutOfRangeError, ShapeError
from .interop import asarray
from .manipulation import broadcast_shapes, normalized_axis
from .tensor import Index, Tensor

__all__ = ["get_item", "index_write_", "nonzero", "set_item", "take", "take_along_axis"]


_gather = ops.private("gather")
_scatter = ops.private("scatter_")
_nonzero_indices = ops.private("nonzero_indices")
_slice_backward = ops.private("slice_backward")
_index_write = ops.private("index_write_")


@named("index")
def get_item(x: Tensor, index: Index | tuple[Index, ...]) -> Tensor:
    """`x[index]`: a view, or a copy where arrays of integers or masks select elements.

    Gradients of an element that is selected several times add up in the order of the indices.

    Raises:
        DTypeError: An index of another type.
        IndexOutOfRangeError: Too many indices, an integer outside its axis, or a mask of another shape. On a GPU, an
            integer of an array is told where the device is waited for.
        CaptureError: A mask, in a captured function.
    """
    place = _place(x, index)
    return _gather(place.view, place.indices, place.axis) if place.indices else place.view


@named("setitem")
def set_item(x: Tensor, index: Index | tuple[Index, ...], value: Any) -> None:
    """`x[index] = value`: a number for every element, or values that broadcast to `x[index]`.

    Where an array of integers names a place twice, the last value stays.

    Raises:
        AutogradError: x requires a gradient and cannot be written (see `add_`).
        DTypeError: An index as in `get_item`, or values that are no numbers.
        IndexOutOfRangeError: As in `get_item`.
        ShapeError: Values that do not fit.
    """
    if _in_place.is_recorded(x):
        return _in_place.replace("setitem", x, lambda: _with_item(x, index, value))
    if x.requires_grad and is_grad_enabled():
        raise AutogradError(
            "[setitem] cannot assign to elements of a leaf that requires a gradient: writes in place are not recorded; "
            "assign within no_grad()"
        )
    items = _items(x, index)
    if sum(map(_is_array, items)) == 1 and any(map(_is_mask, items)) and _is_number(value):
        target, mask = _masked(x, items)
        target.copy_(ops.where(mask, _values(value, target), target))
        return None
    place = _place(x, index)
    if not place.indices:
        return _assign(place.view, value)
    values = _values(value, x)
    if values.storage_id == x.storage_id:
        values = ops.copy(values)
    _scatter(place.view, values, place.indices, place.axis)
    return None


@named("take")
def take(x: Tensor, indices: Tensor, /, *, axis: int | None = None) -> Tensor:
    """The parts of x at integer indices along an axis: `x[..., indices, ...]`.

    Args:
        x: Any dtype.
        indices: Integers of any shape, which takes the axis's place; negative ones count from the end.
        axis: May be left out where x has one axis.

    Raises:
        IndexOutOfRangeError: An index outside the axis, or no such axis.
        ShapeError: No axis is given, and x has several.
    """
    if axis is None and x.ndim != 1:
        raise ShapeError(f"[take] expected an axis for a tensor of shape {x.shape}")
    return _gather(x, [need_tensor("take", "indices", indices)], axis or 0)


@named("take_along_axis")
def take_along_axis(x: Tensor, indices: Tensor, /, *, axis: int = -1) -> Tensor:
    """Of every line of x along an axis, the elements at that line's own indices.

    Args:
        x: Any dtype.
        indices: Integers with as many axes as x, that broadcast with x in all but `axis`; negative ones count from the
            end.
        axis: Negative ones count from the end.

    Returns:
        x's dtype, in the shape of the broadcast indices.

    Raises:
        IndexOutOfRangeError: An index outside the axis, or no such axis.
        ShapeError: Shapes that do not broadcast.
    """
    axis = normalized_axis("take_along_axis", axis, x.ndim)
    if need_tensor("take_along_axis", "indices", indices).ndim != x.ndim:
        raise ShapeError(f"[take_along_axis] expected indices of as many axes as x, {x.shape}, got {indices.shape}")
    lines = broadcast_shapes(*((*shape[:axis], 1, *shape[axis + 1 :]) for shape in (x.shape, indices.shape)))

    def in_lines(t: Tensor) -> Tensor:
        shape = (*lines[:axis], t.shape[axis], *lines[axis + 1 :])
        return t if t.shape == shape else ops.broadcast_to(t, shape)

    return ops.take_along_axis(in_lines(x), in_lines(indices), axis)


@named("nonzero")
def nonzero(x: Tensor, /) -> tuple[Tensor, ...]:
    """Indices of the elements that are not zero, in row-major order: an int64 tensor for each axis.

    Raises:
        ShapeError: x has no axis.
        CaptureError: In a captured function: the shape of the result depends on values.
    """
    if x.ndim == 0:
        raise ShapeError("[nonzero] expected at least 1 axis, got a 0-d tensor")
    found = _nonzero("nonzero", x.detach() if x.dtype is bool_ else ops.astype(x.detach(), bool_))
    return tuple(found[axis] for axis in range(x.ndim))


@named("index_write_")
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
    _index_write(target, source, position, axis)
    return target


# ---------------------------------------------------------------- items of an index


def _items(x: Tensor, index: Any) -> list[Any]:
    """Integers, slices, None, Ellipsis, and tensors of integers or bools on x's device; values are not checked."""
    items = [_item(i, x) for i in (index if isinstance(index, tuple) else (index,))]
    used = sum(map(_axes_taken, items))
    if used > x.ndim:
        raise IndexOutOfRangeError(f"[index] expected at most {x.ndim} indices for shape {x.shape}, got {used}")
    if sum(1 for i in items if i is Ellipsis) > 1:
        raise IndexOutOfRangeError("[index] expected at most one Ellipsis")
    return items


def _item(item: Any, x: Tensor) -> Any:
    if item is None or item is Ellipsis or isinstance(item, slice):
        return item
    if isinstance(item, (list, tuple)):
        item = nested_array("index", item)
        item = item.astype(np.int64) if item.size == 0 else item
    if isinstance(item, np.ndarray) and (item.ndim > 0 or item.dtype == bool):
        if item.dtype.kind not in "biu":
            raise DTypeError(f"[index] expected integers or bools, got an array of {item.dtype} and shape {item.shape}")
        return asarray(item if item.dtype == bool else item.astype(np.int64), device=x.device)
    if isinstance(item, Tensor) and (item.ndim > 0 or item.dtype is bool_):
        if item.dtype is not bool_ and item.dtype.kind != "integer":
            raise DTypeError(
                f"[index] expected integers or bools, got a tensor of {item.dtype.name} and shape {item.shape}"
            )
        return item
    try:
        if isinstance(item, (bool, np.bool_)):
            raise TypeError
        return operator.index(item)
    except TypeError:
        raise DTypeError(
            f"[index] expected integers, slices, None, Ellipsis, arrays of integers or masks, got {type(item).__name__}"
        ) from None


def _is_array(item: object) -> bool:
    return isinstance(item, Tensor)


def _is_mask(item: object) -> bool:
    return isinstance(item, Tensor) and item.dtype is bool_


def _axes_taken(item: Any) -> int:
    if item is None or item is Ellipsis:
        return 0
    return item.ndim if _is_mask(item) else 1


def _expanded(x: Tensor, items: list[Any]) -> list[Any]:
    """The items with slices in place of the Ellipsis, or behind the last."""
    missing = [slice(None)] * (x.ndim - sum(map(_axes_taken, items)))
    at = next((k for k, i in enumerate(items) if i is Ellipsis), len(items))
    return [*items[:at], *missing, *items[at + 1 :]]


def _are_neighbours(items: list[Any]) -> bool:
    """Whether the arrays, and the integers beside them, stand together: then their axes stay where they are."""
    places = [k for k, i in enumerate(items) if _is_array(i) or isinstance(i, int)]
    return places[-1] - places[0] == len(places) - 1


# ---------------------------------------------------------------- what they select


@dataclass
class _Place:
    """`view` at `indices` in place of its axes from `axis` on; without indices all of it."""

    view: Tensor
    indices: list[Tensor]
    axis: int


def _slices(x: Tensor, items: list[Any]) -> tuple[list[int], list[int], list[int]]:
    """Start, length and step along every axis of x; along the axes of arrays, all of it."""
    starts: list[int] = []
    lengths: list[int] = []
    steps: list[int] = []
    for item in _expanded(x, items):
        if item is None:
            continue
        if not _is_array(item):
            axis, size = len(starts), x.shape[len(starts)]
            if isinstance(item, int) and not -size <= item < size:
                raise IndexOutOfRangeError(
                    f"[index] expected an index from {-size} to {size - 1} of axis {axis}, got {shown(item)}"
                )
            if isinstance(item, int):
                start, count, step = item % size, 1, 1
            else:
                start, stop, step = _slice_indices(item, size)
                count = len(range(start, stop, step))
            step = step if count > 1 else 1  # of one element any step is the same
            starts.append(start if count else 0)
            lengths.append(count)
            steps.append(step)
            continue
        for _ in range(_axes_taken(item)):
            lengths.append(x.shape[len(starts)])
            starts.append(0)
            steps.append(1)
    return starts, lengths, steps


def _slice_indices(item: slice, size: int) -> tuple[int, int, int]:
    try:
        return item.indices(size)
    except TypeError:
        raise DTypeError(f"[index] expected integers or None in a slice, got {item}") from None
    except ValueError:
        raise ShapeError(f"[index] expected a slice with a step other than 0, got {item}") from None


def _basic(x: Tensor, items: list[Any]) -> tuple[Tensor, list[tuple[int, Tensor]]]:
    """The view that all but the arrays select, and the arrays with the axis of the view that each begins at."""
    starts, lengths, steps = _slices(x, items)
    drop, insert, arrays = [], [], []
    axis = out_axis = 0
    for item in _expanded(x, items):
        if item is None:
            insert.append(out_axis)
        elif isinstance(item, int):
            drop.append(axis)
        elif _is_array(item):
            arrays.append((out_axis, item))
        taken = _axes_taken(item)
        axis += taken
        out_axis += 1 if item is None else 0 if isinstance(item, int) else taken
    y = x
    if any(s != 0 or n != d or t != 1 for s, n, t, d in zip(starts, lengths, steps, x.shape, strict=True)):
        y = ops.slice(x, starts, lengths, steps)
    if drop:
        y = ops.squeeze(y, drop)
    for position in insert:
        y = ops.expand_dims(y, position)
    return y, arrays


def _place(x: Tensor, index: Any) -> _Place:
    items = _items(x, index)
    if not any(map(_is_array, items)):
        return _Place(_basic(x, items)[0], [], 0)
    view, arrays = _basic(x, items)
    axes: list[int] = []
    indices: list[Tensor] = []
    added = 0
    for at, item in arrays:
        axis = at + added
        if not _is_mask(item):
            axes.append(axis)
            indices.append(item)
            continue
        item = _fitting_mask(view, item, axis)
        if item.ndim == 0:  # a new axis, of one element or none
            view, item, added = ops.expand_dims(view, axis), item.reshape(1), added + 1
        found = _nonzero("index", item)
        axes += range(axis, axis + item.ndim)
        indices += [found[k] for k in range(item.ndim)]
    if not _are_neighbours(items):
        view = ops.permute_dims(view, axes + [a for a in range(view.ndim) if a not in axes])
        axes = [0]
    return _Place(view, indices, axes[0])


def _fitting_mask(view: Tensor, mask: Tensor, axis: int) -> Tensor:
    """The mask, checked; one with axes of size 0, as the array API standard allows them, selects nothing."""
    covered = view.shape[axis : axis + mask.ndim]
    if mask.shape == covered:
        return mask
    if len(covered) != mask.ndim or any(m not in (c, 0) for m, c in zip(mask.shape, covered, strict=True)):
        raise IndexOutOfRangeError(
            f"[index] expected a mask of shape {covered}, as the axes from {axis} on of {view.shape}, got {mask.shape}"
        )
    return full_on(covered, False, bool_, view._fixed()[3])


def _nonzero(op: str, mask: Tensor) -> Tensor:
    """Indices [rank, n] of the elements that are true."""
    if _native.lib.blutensor_capture_active():
        raise CaptureError(
            f"[{op}] the shape of what a mask selects depends on its values, which a captured function cannot have; "
            "use where(mask, x, y), or select before the capture"
        )
    return _nonzero_indices(mask, int(ops.sum(mask.astype(int64)).item()))


# ---------------------------------------------------------------- what is written


def _is_number(value: Any) -> bool:
    if isinstance(value, (Tensor, np.ndarray)):
        return value.ndim == 0
    return isinstance(value, (bool, int, float, np.generic))


def _masked(x: Tensor, items: list[Any]) -> tuple[Tensor, Tensor]:
    """The view of everything around one mask, and the mask in a shape that broadcasts to it."""
    target, [(axis, mask)] = _basic(x, items)
    mask = _fitting_mask(target, mask, axis)
    return target, mask.reshape(*mask.shape, *(1,) * (target.ndim - axis - mask.ndim))


def _assign(target: Tensor, value: Any) -> None:
    if isinstance(value, (Tensor, np.ndarray)):
        target.copy_(value)
    elif isinstance(value, (bool, int, float, np.generic)):
        target.fill_(value)  # type: ignore[arg-type]
    else:
        target.copy_(_sequence(value, target))


def _values(value: Any, target: Tensor) -> Tensor:
    """What is written, as a tensor of the target's dtype and device."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, (bool, int, float)):
        return full_on((), value, target.dtype, target._fixed()[3])
    if isinstance(value, np.ndarray):
        value = asarray(value, device="cpu")
    elif not isinstance(value, Tensor):
        value = _sequence(value, target)
    return value.to(target.device, target.dtype)  # type: ignore[no-any-return]


def _sequence(value: Any, target: Tensor) -> Tensor:
    """Nested sequences as a tensor; an integer target has to hold their numbers."""
    array = numbers_array("setitem", value, target.dtype)
    if array.dtype.kind not in "biufO":
        raise DTypeError(
            f"[setitem] expected a tensor, an array, a number or a sequence of numbers, got {described(value)}"
        )
    if array.dtype.kind == "O":  # integers that no integer dtype of NumPy holds together
        array = array.astype(np.float64 if target.dtype.is_floating else target.dtype.numpy)
    return asarray(array, device="cpu")


def _with_item(x: Tensor, index: Any, value: Any) -> Tensor:
    """X with other elements at an index, as a new tensor that gradients flow through.

    Raises:
        AutogradError: An index with arrays, other than a mask alone that a number is written at.
    """
    items = _items(x, index)
    masks = [i for i in items if i is not Ellipsis]
    if len(masks) == 1 and _is_mask(masks[0]) and _is_number(value):
        return ops.where(_masked(x, items)[1], _values(value, x), x)
    if any(map(_is_array, items)):
        raise AutogradError(
            f"[setitem] cannot assign at arrays of indices to a result of '{x.grad_fn}' that is part of the graph: "
            "only integers, slices, and numbers at a mask, are recorded; use where(), or a copy within no_grad()"
        )
    start, length, step = _slices(x, items)
    part = _basic(x.detach(), items)[0].shape
    values = ops.broadcast_to(_values(value, x), part).reshape(length)
    inside = full_on(length, True, bool_, x._fixed()[3])
    put = _slice_backward
    return ops.where(put(inside, x.shape, start, length, step), put(values, x.shape, start, length, step), x)
