"""Checks of Python numbers and flags given as arguments: one typed error that names argument and value."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np

from .dtypes import described, shown
from .errors import DTypeError, ShapeError


def flag(op: str, name: str, value: Any) -> bool:
    """`value` if it is True or False, NumPy's included: numbers and text are none.

    Raises:
        DTypeError: Something else.
    """
    if value is True or value is False:
        return bool(value)
    if isinstance(value, np.bool_):
        return bool(value)
    raise DTypeError(f"[{op}] expected True or False for {name}, got {described(value)}")


def flag_or_none(op: str, name: str, value: Any) -> bool | None:
    """`flag`, or None.

    Raises:
        DTypeError: Something else.
    """
    if value is None or value is True or value is False or isinstance(value, np.bool_):
        return None if value is None else bool(value)
    raise DTypeError(f"[{op}] expected True, False or None for {name}, got {described(value)}")


def integer(op: str, name: str, value: Any, least: int | None = None) -> int:
    """`value` as an integer; a count if there is a least one.

    Raises:
        DTypeError: No integer.
        ShapeError: A count below `least`, or beyond 64 bits.
    """
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError("a flag counts nothing")
        number = operator.index(value)
    except TypeError:
        raise DTypeError(f"[{op}] expected an integer for {name}, got {described(value)}") from None
    if least is not None and number >= 2**63:
        raise ShapeError(f"[{op}] expected {name} below 2^63, got {shown(number)}")
    if least is not None and number < least:
        raise ShapeError(f"[{op}] expected {name} of at least {least}, got {shown(number)}")
    return number


def function(op: str, name: str, value: Any) -> None:
    """That `value` can be called.

    Raises:
        DTypeError: It cannot.
    """
    if not callable(value):
        raise DTypeError(f"[{op}] expected a function for {name}, got {described(value)}")


def text(op: str, name: str, value: Any) -> str:
    """`value`, if it is a string.

    Raises:
        DTypeError: It is something else.
    """
    if not isinstance(value, str):
        raise DTypeError(f"[{op}] expected a string for {name}, got {described(value)}")
    return value


def number(op: str, name: str, value: Any) -> float:
    """`value` as a float; text is none.

    Raises:
        DTypeError: No number.
        ShapeError: An integer beyond float64.
    """
    if not isinstance(value, (str, bytes)):
        try:
            return float(value)
        except (TypeError, ValueError):
            pass
        except OverflowError:
            raise ShapeError(f"[{op}] expected a number that float64 holds for {name}, got {shown(value)}") from None
    raise DTypeError(f"[{op}] expected a number for {name}, got {described(value)}")


def not_negative(op: str, name: str, value: Any) -> float:
    """`value` as a finite float of at least 0.

    Raises:
        DTypeError: No number.
        ShapeError: Negative, infinite or NaN.
    """
    checked = number(op, name, value)
    if not 0.0 <= checked < math.inf:
        raise ShapeError(f"[{op}] expected a finite {name} of at least 0, got {checked}")
    return checked


def probability(op: str, value: Any) -> float:
    """`value` as a float from 0 to 1.

    Raises:
        DTypeError: No number.
        ShapeError: Outside [0, 1].
    """
    checked = number(op, "p", value)
    if not 0.0 <= checked <= 1.0:
        raise ShapeError(f"[{op}] expected a probability from 0 to 1, got {checked}")
    return checked
