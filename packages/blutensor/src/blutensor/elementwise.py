"""Elementwise functions whose arguments the operator table cannot describe."""

from __future__ import annotations

from . import _operators
from ._arguments import flag
from ._calls import full_on, need_tensor
from ._naming import named
from .errors import DTypeError
from .tensor import Scalar, Tensor


@named("clip")
def clip(x: Tensor, /, min: Tensor | Scalar | None = None, max: Tensor | Scalar | None = None) -> Tensor:
    """X, but not below `min` and not above `max`, elementwise; NaN where any of them is.

    The gradient of x is that of the result where x lies within the bounds, boundaries included, else it is the bound's.

    Args:
        x: Numeric.
        min: A number, a tensor whose shape broadcasts with x's, or None for no bound.
        max: Like `min`.

    Returns:
        A tensor of x's dtype.

    Raises:
        DTypeError: Bounds that do not convert to x's dtype.
        ShapeError: Shapes that do not broadcast, or an integer that the dtype does not hold.
    """
    return _operators.clip(x, _bound(x, "min", min), _bound(x, "max", max))


def _bound(x: Tensor, name: str, value: Tensor | Scalar | None) -> Tensor | None:
    if value is None or isinstance(value, Tensor):
        return value
    if x.dtype.kind == "integer" and not isinstance(value, int):
        raise DTypeError(f"[clip] expected an integer for {name} of a tensor of {x.dtype.name}, got {value!r}")
    return full_on((), value, x.dtype, x._fixed()[3])


@named("positive")
def positive(x: Tensor, /) -> Tensor:
    """A copy of a numeric tensor: what the sign + stands for.

    Raises:
        DTypeError: A tensor of bool.
    """
    return _operators.copy(_numeric("positive", x))


@named("conj")
def conj(x: Tensor, /) -> Tensor:
    """The complex conjugate of a numeric tensor; every dtype here is real, so that it is x itself.

    Raises:
        DTypeError: A tensor of bool.
    """
    return _numeric("conj", x)


@named("real")
def real(x: Tensor, /) -> Tensor:
    """The real part of a numeric tensor; every dtype here is real, so that it is x itself.

    Raises:
        DTypeError: A tensor of bool.
    """
    return _numeric("real", x)


def _numeric(op: str, x: Tensor) -> Tensor:
    if need_tensor(op, "x", x).dtype.kind == "bool":
        raise DTypeError(f"[{op}] expected a numeric tensor, got bool")
    return x


@named("astype")
def astype(x: Tensor, dtype: object, /, *, copy: bool = True, device: str | None = None) -> Tensor:
    """X converted to a dtype.

    To floating-point dtypes: rounded to nearest even. From these to integers: truncated, saturated, NaN gives 0.
    Between integers: low bits are kept. To bool: not zero.

    Args:
        x: Any dtype.
        dtype: The new one.
        copy: False returns x itself when it has the dtype (and device) already.
        device: Of the result, by default x's.

    Raises:
        DTypeError: No dtype, no name of a device, or `copy` that is no bool.
    """
    copy = flag("astype", "copy", copy)
    from .dtypes import as_dtype

    target = as_dtype(dtype)
    converted = _operators.astype(x, target) if copy or target is not x.dtype else x
    return converted if device is None else converted.to(device)
