"""Errors of blublas, each also one of Python's own kinds, and the way from a native status to one of them."""

from __future__ import annotations

from blublas import _native


class BlublasError(Exception):
    """Base of every error that blublas raises; the text reads ``[operation] expected ..., got ...``."""


class ArgumentValueError(BlublasError, ValueError):
    """A shape, stride, size, name or overlap that the call cannot take."""


class ArgumentTypeError(BlublasError, TypeError):
    """A dtype, a combination of dtypes or a kind of object that the call cannot take."""


class OutOfMemoryError(BlublasError, MemoryError):
    """The native library could not get memory."""


class UnsupportedError(BlublasError, NotImplementedError):
    """This build or this machine has no such device or kernel."""


class NativeError(BlublasError, RuntimeError):
    """The native library failed in a way that is not the caller's fault."""


_ERRORS: dict[int, type[BlublasError]] = {
    1: ArgumentValueError,
    2: ArgumentTypeError,
    3: OutOfMemoryError,
    4: UnsupportedError,
}


def check(operation: str, status: int) -> None:
    """Raises the error of a native ``status``; does nothing for 0."""
    if status == 0:
        return
    text = _native.library.blublas_last_error().decode("utf-8", "replace")
    if not text.startswith("["):
        text = f"[{operation}] {text}"
    raise _ERRORS.get(status, NativeError)(text)
