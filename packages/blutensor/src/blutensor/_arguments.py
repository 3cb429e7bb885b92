"""Checks of Python numbers given as arguments: one typed error that names argument and value."""

from __future__ import annotations

import math
import operator
from typing import Any

from .errors import DTypeError, ShapeError


def integer(op: str, name: str, value: Any, least: int | None = None) -> int:
    """`value` as an integer.

    Raises:
        DTypeError: No integer.
        ShapeError: Below `least`.
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise DTypeError(f"[{op}] expected an integer for {name}, got {value!r}") from None
    if least is not None and number < least:
        raise ShapeError(f"[{op}] expected {name} of at least {least}, got {number}")
    return number


def number(op: str, name: str, value: Any) -> float:
    """`value` as a float; text is none.

    Raises:
        DTypeError: No number.
    """
    if not isinstance(value, (str, bytes)):
        try:
            return float(value)
        except (TypeError, ValueError):
            pass
    raise DTypeError(f"[{op}] expected a number for {name}, got {value!r}")


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
