"""Number of threads, and what the library found and chose on this machine."""

from __future__ import annotations

import operator

from blublas import _native
from blublas._errors import ArgumentTypeError, ArgumentValueError, check


def num_threads() -> int:
    """Returns how many threads a call uses, the calling one included (at the start: the physical cores of the process)."""
    return int(_native.library.blublas_num_threads())


def set_num_threads(count: int) -> None:
    """Sets how many threads the process's pool uses. Results do not depend on it.

    Args:
        count: Threads, the calling one included; 0 restores the number that the process started with.

    Raises:
        ArgumentValueError: ``count`` is negative or beyond the pool's limit, or a task of the pool is calling.
        ArgumentTypeError: ``count`` is not an integer.
    """
    limit = int(_native.library.blublas_max_threads())
    try:
        number = operator.index(count)
    except TypeError:
        message = f"[set_num_threads] expected an integer, got {type(count).__name__}"
        raise ArgumentTypeError(message) from None
    if not 0 <= number <= limit:
        message = f"[set_num_threads] expected 0 (default) to {limit} threads, got {number}"
        raise ArgumentValueError(message)
    check("set_num_threads", _native.library.blublas_set_num_threads(number))
