"""Errors of the operating system while data are read, as one of ours."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from blutrain.errors import DataAccessError


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Translate what the system says of a file or folder.

    Args:
        path: for the message.

    Raises:
        DataAccessError: in the place of an `OSError` of the body.
    """
    try:
        yield
    except OSError as error:
        raise DataAccessError(f"[data] expected to read {path}, got '{error.strerror or error}'") from error
