"""Statuses of the native library as exceptions."""

from __future__ import annotations

from blublas import _native

__all__ = ["check"]

_EXCEPTIONS: dict[int, type[Exception]] = {
    1: ValueError,
    2: TypeError,
    3: MemoryError,
    4: NotImplementedError,
    5: RuntimeError,
}


def check(status: int) -> None:
    """Raise what a status of the native library stands for; 0 passes.

    Raises:
        ValueError: a size, stride, flag or overlap that the call cannot accept.
        TypeError: a dtype or a combination of dtypes that the call does not take.
        MemoryError: no host memory.
        NotImplementedError: this build or machine has no such device or kernel.
        RuntimeError: anything else.
    """
    if status != 0:
        message: bytes = _native.library.blublas_last_error()
        raise _EXCEPTIONS.get(status, RuntimeError)(message.decode(errors="replace"))
