"""Making tensors. Names follow the Python array API standard."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from . import _operators, dtypes
from ._arguments import flag, integer, number
from ._calls import EXACT_INTEGERS, arange_on, full_on, need_tensor
from ._naming import named
from .devices import DeviceKey, as_device
from .errors import DTypeError, ShapeError
from .interop import asarray, empty, from_dlpack
from .tensor import Scalar, Tensor

__all__ = ["arange", "asarray", "empty", "empty_like", "eye", "from_dlpack", "full", "full_like", "linspace", "ones",
           "ones_like", "zeros", "zeros_like"]  # fmt: skip

Shape = int | Sequence[int]


@named("full")
def full(
    shape: Shape, fill_value: Scalar | Tensor, *, dtype: dtypes.DType | str | None = None, device: str | None = None
) -> Tensor:
    """A tensor of one value; dtype defaults to bool, int64 or float32 by the value's type.

    The value may be a tensor without axes, which is then converted and copied; dtype and device default to its own.
    `device` is "cpu" or "cuda:<index>"; the default device unless given, as everywhere here.

    Raises:
        DTypeError: A value that is no real number.
        NumberRangeError: A number that the integer dtype does not hold: out of its range, infinite or NaN.
        ShapeError: A tensor with axes.
    """
    if isinstance(fill_value, Tensor):
        return _filled("full", shape, fill_value, dtype, device)
    fill_value = _number("full", fill_value)
    if dtype is None:
        dtype = dtypes.scalar_dtype(fill_value, None)
    return full_on(shape, fill_value, dtype, as_device("full", device))


def _number(op: str, value: Scalar) -> Scalar:
    if isinstance(value, np.generic):
        value = value.item()
    if not isinstance(value, (bool, int, float)):
        raise DTypeError(f"[{op}] expected a number, got {dtypes.described(value)}")
    return value


def _filled(op: str, shape: Shape, value: Tensor, dtype: dtypes.DType | str | None, device: str | None) -> Tensor:
    if value.ndim:
        raise ShapeError(f"[{op}] expected a number or a tensor without axes, got shape {value.shape}")
    if device is not None:
        value = value.to(device)
    converted = value if dtype is None else _operators.astype(value, dtypes.as_dtype(dtype))
    return _operators.copy(_operators.broadcast_to(converted, shape))


@named("zeros")
def zeros(shape: Shape, *, dtype: dtypes.DType | str | None = None, device: str | None = None) -> Tensor:
    """A tensor of zeros, float32 unless another dtype is given."""
    return full(shape, 0, dtype=dtypes.float32 if dtype is None else dtype, device=device)


@named("ones")
def ones(shape: Shape, *, dtype: dtypes.DType | str | None = None, device: str | None = None) -> Tensor:
    """A tensor of ones, float32 unless another dtype is given."""
    return full(shape, 1, dtype=dtypes.float32 if dtype is None else dtype, device=device)


@named("full_like")
def full_like(
    x: Tensor, fill_value: Scalar | Tensor, *, dtype: dtypes.DType | str | None = None, device: str | None = None
) -> Tensor:
    """`full` with the shape (and, by default, dtype and device) of x.

    Raises:
        DTypeError: A value that is no real number.
        NumberRangeError: A number that the integer dtype does not hold.
        ShapeError: A tensor with axes.
    """
    if isinstance(fill_value, Tensor):
        return _filled(
            "full_like",
            x.shape,
            fill_value,
            x.dtype if dtype is None else dtype,
            x.device if device is None else device,
        )
    fill_value = _number("full_like", fill_value)
    target = x._fixed()[3] if device is None else as_device("full_like", device)
    return full_on(x.shape, fill_value, x.dtype if dtype is None else dtype, target)


@named("zeros_like")
def zeros_like(x: Tensor, *, dtype: dtypes.DType | str | None = None, device: str | None = None) -> Tensor:
    """`zeros` with the shape (and, by default, dtype and device) of x."""
    return full_like(x, 0, dtype=dtype, device=device)


@named("ones_like")
def ones_like(x: Tensor, *, dtype: dtypes.DType | str | None = None, device: str | None = None) -> Tensor:
    """`ones` with the shape (and, by default, dtype and device) of x."""
    return full_like(x, 1, dtype=dtype, device=device)


@named("empty_like")
def empty_like(x: Tensor, *, dtype: dtypes.DType | str | None = None, device: str | None = None) -> Tensor:
    """`empty` with the shape (and, by default, dtype and device) of x."""
    return empty(
        need_tensor("empty_like", "x", x).shape,
        dtype=x.dtype if dtype is None else dtype,
        device=x.device if device is None else device,
    )


@named("arange")
def arange(
    start: float,
    stop: float | None = None,
    step: float = 1,
    *,
    dtype: dtypes.DType | str | None = None,
    device: str | None = None,
) -> Tensor:
    """start, start + step, ... below stop (1-d); int64 when all are integers, else float32.

    Raises:
        DTypeError: Something else than numbers.
        ShapeError: A step of 0, or NaN.
        NumberRangeError: Numbers that the integer dtype does not hold.
    """
    if stop is None:
        start, stop = 0, start
    start, stop, step = (v.item() if isinstance(v, np.generic) else v for v in (start, stop, step))
    if dtype is None:
        integral = all(isinstance(v, int) for v in (start, stop, step))
        dtype = dtypes.int64 if integral else dtypes.float32
    target, key = dtypes.as_dtype(dtype), as_device("arange", device)
    _check_line("arange", start, stop, step, target)
    if target.kind == "integer" and all(isinstance(v, int) for v in (start, stop, step)) and step:
        numbers = range(int(start), int(stop), int(step))
        if len(numbers) and max(abs(numbers[0]), abs(numbers[-1])) > EXACT_INTEGERS:
            return _exact_arange(numbers, target, key)
    return arange_on(start, stop, step, target, key)


def _exact_arange(numbers: range, dtype: dtypes.DType, device: DeviceKey) -> Tensor:
    """Integers that are not all float64 numbers, computed in 64 bits, which wrap to the right ones."""
    index = arange_on(0, len(numbers), 1, dtypes.uint64, device)
    step = numbers.step if len(numbers) > 1 else 0
    return (index * (step % 2**64) + numbers[0] % 2**64).astype(dtype)


def _check_line(op: str, start: float, stop: float, step: float, dtype: dtypes.DType) -> None:
    """That an integer dtype holds the first and the last of start, start + step, ... below stop."""
    if dtype.kind != "integer" or not all(isinstance(v, (int, float)) for v in (start, stop, step)) or step == 0:
        return
    if all(isinstance(v, int) for v in (start, stop, step)):
        line = range(int(start), int(stop), int(step))
        ends: tuple[float, ...] = (line[0], line[-1]) if line else ()
    else:
        gaps = (stop - start) / step
        if not math.isfinite(gaps):
            return
        ends = (start, start + (math.ceil(gaps) - 1) * step) if gaps > 0 else ()
    for end in ends:
        dtypes.check_number(op, end, dtype)


@named("linspace")
def linspace(
    start: float,
    stop: float,
    /,
    num: int,
    *,
    dtype: dtypes.DType | str | None = None,
    device: str | None = None,
    endpoint: bool = True,
) -> Tensor:
    """`num` numbers at equal distances from start to stop (1-d), computed in float64; float32 unless a dtype is given.

    Args:
        start: The first number.
        stop: The last one, or with `endpoint=False` the one after it.
        num: How many, at least 0.
        dtype: Of the result; integers are truncated.
        device: Of the result.
        endpoint: Whether stop is the last number.

    Raises:
        ShapeError: A negative `num`.
        DTypeError: `num` that is no integer, `endpoint` that is no bool.
        NumberRangeError: Numbers that the integer dtype does not hold.
    """
    count, endpoint = integer("linspace", "num", num, least=0), flag("linspace", "endpoint", endpoint)
    target, key = dtypes.float32 if dtype is None else dtypes.as_dtype(dtype), as_device("linspace", device)
    for name, end in (("start", start), ("stop", stop)):
        number("linspace", name, end)
    for end in (start, stop)[: min(count, 1 + endpoint)]:
        dtypes.check_number("linspace", end, target)
    gaps = count - 1 if endpoint else count
    index = arange_on(0, count, 1, dtypes.float64, key)
    if gaps > 0:
        line = index * ((stop - start) / gaps) + float(start)
        if endpoint:
            line = _operators.where(_operators.less(index, float(gaps)), line, float(stop))
    else:
        line = index + float(start)
    return line.astype(target)


@named("eye")
def eye(
    n_rows: int,
    n_cols: int | None = None,
    /,
    *,
    k: int = 0,
    dtype: dtypes.DType | str | None = None,
    device: str | None = None,
) -> Tensor:
    """A matrix [n_rows, n_cols] with ones on its k-th diagonal and zeros elsewhere; float32 unless a dtype is given."""
    rows = integer("eye", "n_rows", n_rows, least=0)
    columns = rows if n_cols is None else integer("eye", "n_cols", n_cols, least=0)
    key = as_device("eye", device)
    down = arange_on(0, rows, 1, dtypes.int64, key).reshape(rows, 1)
    along = arange_on(0, columns, 1, dtypes.int64, key)
    diagonal = min(max(integer("eye", "k", k), -rows), columns)  # beyond these there is nothing either
    return _operators.equal(down + diagonal, along).astype(dtypes.float32 if dtype is None else dtype)
