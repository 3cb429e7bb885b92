"""The errors of blublas, each also one of Python's own kinds, and the way from a native status to one of them."""

from __future__ import annotations

import operator

from blublas import _native

__all__ = [
    "BlublasError",
    "InvalidTypeError",
    "InvalidValueError",
    "NativeError",
    "OutOfMemoryError",
    "UnsupportedError",
    "check",
    "integer",
]


class BlublasError(Exception):
    """Base of all that blublas raises. The text reads ``[operation] expected ..., got ...``."""


class InvalidValueError(BlublasError, ValueError):
    """A shape, stride, size, name or overlap that the call cannot take."""


class InvalidTypeError(BlublasError, TypeError):
    """A dtype, a combination of dtypes, or a kind of object that the call cannot take."""


class OutOfMemoryError(BlublasError, MemoryError):
    """No host memory."""


class UnsupportedError(BlublasError, NotImplementedError):
    """This build or machine has no such device or kernel."""


class NativeError(BlublasError, RuntimeError):
    """The native library failed, and not by the caller's fault."""


_ERRORS: dict[int, type[BlublasError]] = {
    1: InvalidValueError,
    2: InvalidTypeError,
    3: OutOfMemoryError,
    4: UnsupportedError,
}


def integer(operation: str, name: str, value: object) -> int:
    """``value`` as an integer; a flag is none.

    Raises:
        InvalidTypeError: something else.
    """
    try:
        if not isinstance(value, bool):
            return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        pass
    raise InvalidTypeError(f"[{operation}] expected {name} as an integer, got {type(value).__name__}")


def check(status: int) -> None:
    """Raise what a status of the native library stands for; 0 passes."""
    if status != 0:
        text: bytes = _native.library.blublas_last_error()
        raise _ERRORS.get(status, NativeError)(text.decode(errors="replace"))
