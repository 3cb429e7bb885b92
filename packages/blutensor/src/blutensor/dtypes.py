"""Element types. Names follow the Python array API standard; bfloat16 and float16 are ours beside it."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class DType:
    """An element type.

    Attributes:
        name: Its name, as in the array API standard.
        number: Its number in the C interface.
        itemsize: Bytes per element.
        numpy: The NumPy dtype of the same memory; bfloat16 has none and maps to uint16 (its bits).
        kind: "floating", "integer" or "bool".
    """

    name: str
    number: int
    itemsize: int
    numpy: np.dtype[Any]
    kind: str

    def __repr__(self) -> str:
        return f"blutensor.{self.name}"

    @property
    def is_floating(self) -> bool:
        """Whether it holds floating-point numbers."""
        return self.kind == "floating"

    @property
    def is_signed(self) -> bool:
        """Whether it holds negative numbers."""
        return self.is_floating or self.name.startswith("int")


float32 = DType("float32", 0, 4, np.dtype(np.float32), "floating")
bfloat16 = DType("bfloat16", 1, 2, np.dtype(np.uint16), "floating")
float16 = DType("float16", 2, 2, np.dtype(np.float16), "floating")
float64 = DType("float64", 3, 8, np.dtype(np.float64), "floating")
int64 = DType("int64", 4, 8, np.dtype(np.int64), "integer")
int32 = DType("int32", 5, 4, np.dtype(np.int32), "integer")
uint8 = DType("uint8", 6, 1, np.dtype(np.uint8), "integer")
uint16 = DType("uint16", 7, 2, np.dtype(np.uint16), "integer")
bool_ = DType("bool", 8, 1, np.dtype(np.bool_), "bool")
int8 = DType("int8", 9, 1, np.dtype(np.int8), "integer")
int16 = DType("int16", 10, 2, np.dtype(np.int16), "integer")
uint32 = DType("uint32", 11, 4, np.dtype(np.uint32), "integer")
uint64 = DType("uint64", 12, 8, np.dtype(np.uint64), "integer")

# By their numbers.
ALL = (float32, bfloat16, float16, float64, int64, int32, uint8, uint16, bool_, int8, int16, uint32, uint64)
_BY_NAME = {d.name: d for d in ALL} | {"bool_": bool_}
_BY_NUMPY = {d.numpy: d for d in ALL if d.name != "bfloat16"}


def as_dtype(value: object) -> DType:
    """A DType from a DType, its name, or anything that NumPy takes for a dtype.

    Raises:
        DTypeError: There is no such type here.
    """
    from .errors import DTypeError

    if isinstance(value, DType):
        return value
    if isinstance(value, str) and value in _BY_NAME:
        return _BY_NAME[value]
    try:
        found = _BY_NUMPY.get(np.dtype(value))  # type: ignore[call-overload]
    except TypeError:
        found = None
    if found is None:
        raise DTypeError(f"expected one of {', '.join(_BY_NAME)}, got {value!r}")
    return found


@functools.cache
def integer_range(dtype: DType) -> tuple[int, int]:
    """Smallest and largest number of an integer dtype."""
    bits = 8 * dtype.itemsize
    return (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if dtype.is_signed else (0, 2**bits - 1)


def check_integer(op: str, value: int, dtype: DType) -> None:
    """That an integer dtype holds a Python integer.

    Raises:
        ShapeError: It is out of its range.
    """
    from .errors import ShapeError

    low, high = integer_range(dtype)
    if not low <= value <= high:
        raise ShapeError(f"[{op}] expected an integer from {low} to {high} for {dtype.name}, got {value}")


_RANK = {"bool": 0, "integer": 1, "floating": 2}


def scalar_dtype(number: float, beside: DType | None) -> DType:
    """The dtype that a Python number takes beside a tensor's: that one, unless it cannot hold its kind of number."""
    own = bool_ if isinstance(number, bool) else int64 if isinstance(number, int) else float32
    return own if beside is None or _RANK[own.kind] > _RANK[beside.kind] else beside
