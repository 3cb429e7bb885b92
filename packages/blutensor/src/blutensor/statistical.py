"""Reductions and scans with the arguments of the Python array API standard, over the operators of the same names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from . import _operators, dtypes
from ._arguments import flag, integer
from ._naming import named
from .errors import ShapeError
from .manipulation import normalized_axis
from .tensor import Tensor

Axes = int | Sequence[int] | None


def _reduced(function: Callable[..., Tensor], x: Tensor, axis: Axes, keepdims: bool, dtype: Any) -> Tensor:
    if dtype is None:
        return function(x, axis, keepdims)
    target = dtypes.as_dtype(dtype)
    return function(x.astype(target), axis, keepdims).astype(target)


@named("sum")
def sum(x: Tensor, /, axis: Axes = None, keepdims: bool = False, *, dtype: dtypes.DType | str | None = None) -> Tensor:
    """Sum over axes (none given: all).

    float32 and the 16-bit floats accumulate in float64 (on a GPU in float32 over a tree), float64 with compensation;
    signed integers and bool give int64, unsigned ones uint64, and wrap. The sum of nothing is 0.

    Args:
        x: Any shape and dtype.
        axis: One or several.
        keepdims: Keep the axes with size 1.
        dtype: What x is converted to first, and the result has.
    """
    return _reduced(_operators.sum, x, axis, keepdims, dtype)


@named("prod")
def prod(x: Tensor, /, axis: Axes = None, keepdims: bool = False, *, dtype: dtypes.DType | str | None = None) -> Tensor:
    """Product over axes (none given: all).

    Floats accumulate in float64; signed integers and bool give int64, unsigned ones uint64, and wrap. The product of
    nothing is 1.

    Args:
        x: Any shape and dtype.
        axis: One or several.
        keepdims: Keep the axes with size 1.
        dtype: What x is converted to first, and the result has.
    """
    return _reduced(_operators.prod, x, axis, keepdims, dtype)


def _scanned(
    op: str, x: Tensor, axis: int | None, dtype: Any, include_initial: bool, reverse: bool, exclusive: bool
) -> Tensor:
    if axis is None:
        if x.ndim != 1:
            raise ShapeError(f"[{op}] expected an axis for a tensor of {x.ndim} axes, got none")
        axis = 0
    axis = normalized_axis(op, axis, x.ndim)
    initial_too, reverse = flag(op, "include_initial", include_initial), flag(op, "reverse", reverse)
    exclusive = flag(op, "exclusive", exclusive)
    if initial_too and (reverse or exclusive):
        raise ShapeError(f"[{op}] expected include_initial without reverse and exclusive, got them together")
    target = None if dtype is None else dtypes.as_dtype(dtype)
    function = getattr(_operators, op)
    result: Tensor = function(x if target is None else x.astype(target), axis, reverse, exclusive)
    if target is not None:
        result = result.astype(target)
    if not initial_too:
        return result
    shape = list(x.shape)
    shape[axis] = 1
    initial = _full(shape, 0 if op == "cumulative_sum" else 1, result)
    return _operators.concat([initial, result], axis)


def _full(shape: Sequence[int], value: int, like: Tensor) -> Tensor:
    from ._calls import full_on

    return full_on(shape, value, like.dtype, like._fixed()[3])


@named("cumulative_sum")
def cumulative_sum(
    x: Tensor,
    /,
    *,
    axis: int | None = None,
    dtype: dtypes.DType | str | None = None,
    include_initial: bool = False,
    reverse: bool = False,
    exclusive: bool = False,
) -> Tensor:
    """Sums of all elements up to each one along an axis.

    Floats accumulate in float64; signed integers and bool give int64, unsigned ones uint64, and wrap.

    Args:
        x: Any shape with at least one axis, any dtype.
        axis: May be left out for one axis.
        dtype: What x is converted to first, and the result has.
        include_initial: Put the sum of nothing in front: one element more along the axis.
        reverse: Sum from the end.
        exclusive: Leave out the element itself.

    Raises:
        ShapeError: No axis given for several, or `include_initial` with one of the last two.
    """
    return _scanned("cumulative_sum", x, axis, dtype, include_initial, reverse, exclusive)


@named("cumulative_prod")
def cumulative_prod(
    x: Tensor,
    /,
    *,
    axis: int | None = None,
    dtype: dtypes.DType | str | None = None,
    include_initial: bool = False,
    reverse: bool = False,
    exclusive: bool = False,
) -> Tensor:
    """Products of all elements up to each one along an axis; arguments and errors as of `cumulative_sum`."""
    return _scanned("cumulative_prod", x, axis, dtype, include_initial, reverse, exclusive)


@named("diff")
def diff(
    x: Tensor, /, *, axis: int = -1, n: int = 1, prepend: Tensor | None = None, append: Tensor | None = None
) -> Tensor:
    """Differences between neighbours along an axis, taken n times: n elements fewer each time.

    Args:
        x: Numeric, at least one axis.
        axis: Along which.
        n: How often; 0 gives x itself.
        prepend: Put in front of x along the axis first.
        append: Put behind it.

    Raises:
        ShapeError: A negative n, a tensor without axes, or tensors that do not fit x.
    """
    times = integer("diff", "n", n, least=0)
    if x.ndim == 0:
        raise ShapeError("[diff] expected a tensor of at least one axis, got rank 0")
    axis = normalized_axis("diff", axis, x.ndim)
    if times == 0:
        return x
    parts = [part for part in (prepend, x, append) if part is not None]
    y = x if len(parts) == 1 else _operators.concat(parts, axis)
    for _ in range(min(times, y.shape[axis] + 1)):  # of nothing nothing is left
        starts = [0] * y.ndim
        shorter = list(y.shape)
        shorter[axis] = max(shorter[axis] - 1, 0)
        ones = [1] * y.ndim
        first = _operators.slice(y, starts, shorter, ones)
        starts[axis] = 1 if shorter[axis] else 0
        y = _operators.subtract(_operators.slice(y, starts, shorter, ones), first)
    return y
