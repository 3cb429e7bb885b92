"""Functions about dtypes, by the Python array API standard: what they hold, and in which two of them meet."""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass
from typing import Any

from . import _native, dtypes
from ._naming import named
from .dtypes import DType, as_dtype, integer_range, scalar_dtype
from .errors import DTypeError
from .tensor import Scalar, Tensor

KINDS = ("bool", "signed integer", "unsigned integer", "integral", "real floating", "complex floating", "numeric")


@dataclass(frozen=True, slots=True)
class FloatInfo:
    """What a floating-point dtype holds.

    Attributes:
        bits: Bits of an element.
        eps: Distance from 1 to the next larger number.
        max: Largest finite number.
        min: Smallest (most negative) finite number.
        smallest_normal: Smallest positive number with all its digits.
        dtype: The dtype.
    """

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: DType


@dataclass(frozen=True, slots=True)
class IntegerInfo:
    """What an integer dtype holds.

    Attributes:
        bits: Bits of an element.
        max: Largest number.
        min: Smallest number.
        dtype: The dtype.
    """

    bits: int
    max: int
    min: int
    dtype: DType


# Binary digits and largest exponent: IEEE 754 and bfloat16.
_FORMATS = {"float64": (53, 1023), "float32": (24, 127), "float16": (11, 15), "bfloat16": (8, 127)}


def _dtype_of(value: Any) -> DType:
    return value.dtype if isinstance(value, Tensor) else as_dtype(value)


@named("finfo")
def finfo(type: DType | str | Tensor, /) -> FloatInfo:
    """Limits of a floating-point dtype, or of a tensor's.

    Raises:
        DTypeError: Another dtype.
    """
    dtype = _dtype_of(type)
    if dtype.name not in _FORMATS:
        raise DTypeError(f"[finfo] expected a floating-point dtype, got {dtype.name}")
    digits, exponent = _FORMATS[dtype.name]
    largest = (2.0 - 2.0 ** (1 - digits)) * 2.0**exponent
    return FloatInfo(8 * dtype.itemsize, 2.0 ** (1 - digits), largest, -largest, 2.0 ** (1 - exponent), dtype)


@named("iinfo")
def iinfo(type: DType | str | Tensor, /) -> IntegerInfo:
    """Limits of an integer dtype, or of a tensor's.

    Raises:
        DTypeError: Another dtype.
    """
    dtype = _dtype_of(type)
    if dtype.kind != "integer":
        raise DTypeError(f"[iinfo] expected an integer dtype, got {dtype.name}")
    low, high = integer_range(dtype)
    return IntegerInfo(8 * dtype.itemsize, high, low, dtype)


@named("isdtype")
def isdtype(dtype: DType, kind: DType | str | tuple[DType | str, ...]) -> bool:
    """Whether a dtype is one, or of a kind, or any of several.

    Args:
        dtype: The dtype.
        kind: A dtype, or "bool", "signed integer", "unsigned integer", "integral", "real floating", "complex floating"
            or "numeric"; or a tuple of these.

    Raises:
        DTypeError: Another kind.
    """
    if isinstance(kind, tuple):
        return any(isdtype(dtype, k) for k in kind)
    if isinstance(kind, DType):
        return dtype is kind
    if not isinstance(kind, str) or kind not in KINDS:
        raise DTypeError(f"[isdtype] expected a dtype or one of {', '.join(KINDS)}, got {dtypes.described(kind)}")
    integer = dtype.kind == "integer"
    return {
        "bool": dtype.kind == "bool",
        "signed integer": integer and dtype.is_signed,
        "unsigned integer": integer and not dtype.is_signed,
        "integral": integer,
        "real floating": dtype.is_floating,
        "complex floating": False,
        "numeric": integer or dtype.is_floating,
    }[kind]


@functools.cache
def promoted(first: DType, second: DType) -> DType:
    """The dtype in which two meet.

    Raises:
        DTypeError: None holds both (uint64 with a signed integer).
    """
    number = ctypes.c_int32()
    _native.check(_native.lib.blutensor_promote(first.number, second.number, ctypes.byref(number)))
    return dtypes.ALL[number.value]


@named("result_type")
def result_type(*arrays_and_dtypes: Tensor | DType | str | Scalar) -> DType:
    """The dtype of an operation on these: tensors and dtypes promote, Python numbers take the dtype of the rest.

    A float beside integers gives float32, an integer beside bool int64.

    Raises:
        DTypeError: No tensor and no dtype among them, or dtypes that do not meet.
    """
    numbers = [v for v in arrays_and_dtypes if isinstance(v, (bool, int, float))]
    given = [_dtype_of(v) for v in arrays_and_dtypes if not isinstance(v, (bool, int, float))]
    if not given:
        raise DTypeError(
            f"[result_type] expected at least one tensor or dtype, got {dtypes.described(arrays_and_dtypes)}"
        )
    dtype = functools.reduce(promoted, given)
    for number in numbers:
        dtype = scalar_dtype(number, dtype)
    return dtype


@named("can_cast")
def can_cast(from_: DType | str | Tensor, to: DType | str, /) -> bool:
    """Whether `to` holds every number of `from_`, by the promotion of dtypes of one kind."""
    source, target = _dtype_of(from_), as_dtype(to)
    if source.kind != target.kind:
        return False
    try:
        return promoted(source, target) is target
    except DTypeError:
        return False
