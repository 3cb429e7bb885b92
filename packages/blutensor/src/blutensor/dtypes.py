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
        numpy: The NumPy dtype of the same memory; NumPy has no bfloat16, which maps to uint16 (its bits).
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


def is_bfloat16(numpy: np.dtype[Any]) -> bool:
    """Whether a NumPy dtype is the bfloat16 of the package ml_dtypes, which JAX and TensorFlow use too."""
    return numpy.itemsize == 2 and numpy.name == "bfloat16"


def as_dtype(value: object, op: str | None = None) -> DType:
    """A DType from a DType, its name, or anything that NumPy takes for a dtype but None; `op` is named in the error.

    Raises:
        DTypeError: There is no such type here.
    """
    from .errors import DTypeError

    if isinstance(value, DType):
        return value
    if isinstance(value, str) and value in _BY_NAME:
        return _BY_NAME[value]
    found = None
    if value is not None and not isinstance(value, np.generic):  # NumPy's float64, and a value's own dtype
        try:
            numpy = np.dtype(value)  # type: ignore[call-overload]
            found = bfloat16 if is_bfloat16(numpy) else _BY_NUMPY.get(numpy)
        except (TypeError, ValueError, SyntaxError):
            pass
    if found is None:
        label = "" if op is None else f"[{op}] "
        raise DTypeError(f"{label}expected one of {', '.join(_BY_NAME)}, got {described(value)}")
    return found


@functools.cache
def integer_range(dtype: DType) -> tuple[int, int]:
    """Smallest and largest number of an integer dtype."""
    bits = 8 * dtype.itemsize
    return (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if dtype.is_signed else (0, 2**bits - 1)


def check_number(op: str, value: float, dtype: DType) -> None:
    """That a dtype, if it is of integers, holds a Python number but for its fraction, which is cut off.

    Raises:
        NumberRangeError: It is out of its range, infinite or NaN.
    """
    from .errors import NumberRangeError

    if dtype.kind != "integer":
        return
    low, high = integer_range(dtype)
    if not low - 1 < value < high + 1:  # Python compares integers and floats exactly
        raise NumberRangeError(f"[{op}] expected an integer from {low} to {high} for {dtype.name}, got {shown(value)}")


def nested_array(op: str, values: Any) -> np.ndarray[Any, Any]:
    """Nested sequences as an array of the dtype that NumPy finds for them.

    Raises:
        ShapeError: Sequences of different lengths, or nested too deeply.
    """
    from .errors import ShapeError

    try:
        return np.asarray(values)
    except ValueError as error:
        raise ShapeError(
            f"[{op}] expected nested sequences of equal lengths, got {described(values)}: {error}"
        ) from None


def check_real(op: str, array: np.ndarray[Any, Any]) -> None:
    """That an array holds real numbers: NumPy would convert others without the imaginary part, or read digits.

    Raises:
        DTypeError: It holds something else.
    """
    from .errors import DTypeError

    if array.dtype.kind in "cUSMm" or array.dtype.names is not None:
        raise DTypeError(f"[{op}] expected real numbers, got {array.dtype}; convert them first")


def numbers_array(op: str, numbers: Any, dtype: DType) -> np.ndarray[Any, Any]:
    """Python numbers, and nested sequences of them, as an array to be converted to a dtype, which has to hold them.

    Raises:
        NumberRangeError: One is out of the range of an integer dtype; it is named.
        DTypeError: One is no number.
        ShapeError: Sequences of different lengths.
    """
    array = nested_array(op, numbers)
    if dtype.kind == "integer" and array.dtype == np.float64 and (np.abs(array) >= 2**53).any():
        array = np.asarray(numbers, dtype=object)  # there may be integers among them that float64 does not hold
    _check_numbers(op, array, dtype)
    return array


def _check_numbers(op: str, values: np.ndarray[Any, Any], dtype: DType) -> None:
    """`check_number` for every element."""
    from .errors import DTypeError

    if values.dtype.kind == "O":
        for each in values.flat:
            value = each.item() if isinstance(each, np.generic) else each
            if not isinstance(value, (bool, int, float)):
                raise DTypeError(f"[{op}] expected numbers for {dtype.name}, got {described(value)}")
            check_number(op, value, dtype)
    elif dtype.kind != "integer" or values.size == 0:
        return
    elif values.dtype.kind in "iuf" and not np.can_cast(values.dtype, dtype.numpy):
        # The outermost ones are enough, and NaN is both.
        for extreme in (values.min(), values.max()):
            check_number(op, extreme.item(), dtype)


def shown(value: float) -> str:
    """A number for a message: very long integers, which Python refuses to write out, by their first digits."""
    if not isinstance(value, int) or value.bit_length() <= 256:
        return str(value)
    return f"{hex(value)[:24]}... of {value.bit_length()} bits"


def described(value: object) -> str:
    """Any value for a message, cut off where it is long."""
    try:
        text = repr(value)
    except ValueError:  # a very long integer, or one within a list
        text = shown(value) if isinstance(value, int) else f"something of type {type(value).__name__}"
    return text if len(text) <= 200 else f"{text[:200]}..."


_RANK = {"bool": 0, "integer": 1, "floating": 2}


def scalar_dtype(number: float, beside: DType | None) -> DType:
    """The dtype that a Python number takes beside a tensor's: that one, unless it cannot hold its kind of number."""
    own = bool_ if isinstance(number, bool) else int64 if isinstance(number, int) else float32
    return own if beside is None or _RANK[own.kind] > _RANK[beside.kind] else beside
