"""Errors of the checkpoint package: each names the file, what is wrong with it, and what to do about it."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

from blutrain.errors import BlutrainError


class CheckpointError(BlutrainError):
    """Base of everything that saving or loading a checkpoint can report.

    Attributes:
        path: the file or folder that the message is about.
    """

    def __init__(self, path: str | os.PathLike[str], message: str) -> None:
        self.path = Path(path)
        super().__init__(f"[checkpoint] {self.path}: {message}")


class CheckpointValueError(CheckpointError, ValueError):
    """What is to be saved cannot be: a name, a step or a setting is impossible."""


class CheckpointTypeError(CheckpointError, TypeError):
    """What is to be saved cannot be: a tensor's dtype or a metadata value has no place in the file format."""


class CheckpointFormatError(CheckpointError, ValueError):
    """The file is not a usable checkpoint: foreign, truncated, contradictory or damaged."""


class CheckpointDigestError(CheckpointFormatError):
    """The file has the right shape, but its bytes are not those that were saved."""


class CheckpointNotFoundError(CheckpointError, FileNotFoundError):
    """There is no checkpoint at the given place."""


class CheckpointReadError(CheckpointError, OSError):
    """The operating system refused to open or read a checkpoint."""


class CheckpointWriteError(CheckpointError, OSError):
    """The operating system refused to write a checkpoint; earlier checkpoints are as they were."""


class CheckpointDiskFullError(CheckpointWriteError):
    """The disk, or the user's quota, is full."""


class CheckpointReadOnlyError(CheckpointWriteError):
    """The folder may not be written to."""


def listed(paths: Sequence[Path]) -> str:
    """Names of files for a message: the newest few, newest first."""
    names = [path.name for path in reversed(paths)]
    return ", ".join(names[:_LISTED]) + (f" and {len(names) - _LISTED} older ones" if len(names) > _LISTED else "")


_LISTED = 3
_KEPT = "earlier checkpoints are untouched"


def write_error(path: Path, cause: OSError, num_bytes: int = 0) -> CheckpointWriteError:
    """Translates an ``OSError`` met while saving ``path`` (``num_bytes`` long) into the error that names the fix."""
    error: CheckpointWriteError
    if cause.errno in (errno.ENOSPC, errno.EDQUOT):
        error = CheckpointDiskFullError(
            path,
            f"expected {_megabytes(num_bytes)} of free space, got {_free_space(path.parent)}: free some, keep fewer "
            f"checkpoints (train.keep_checkpoints), or move the run to another disk; {_KEPT}",
        )
    elif cause.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        error = CheckpointReadOnlyError(
            path,
            f"expected a folder that can be written to, got '{_reason(cause)}': make it writable for this user or "
            f"choose another run folder; {_KEPT}",
        )
    elif cause.errno in (errno.ENOENT, errno.ENOTDIR):
        error = CheckpointWriteError(
            path,
            f"expected the folder {path.parent} to exist, got '{_reason(cause)}': it was removed while training",
        )
    else:
        error = CheckpointWriteError(
            path, f"saving failed with '{_reason(cause)}': check the disk, then train again with --resume; {_KEPT}"
        )
    error.errno = cause.errno
    return error


def read_error(path: Path, cause: OSError) -> CheckpointError:
    """Translates an ``OSError`` met while reading ``path`` into the error that names the fix."""
    if cause.errno in (errno.ENOENT, errno.ENOTDIR):
        return CheckpointNotFoundError(path, "expected a checkpoint, got no such file: check the path")
    if cause.errno == errno.EISDIR:
        return CheckpointFormatError(path, "expected a checkpoint file, got a folder: name a file inside it")
    error = CheckpointReadError(
        path, f"expected a readable file, got '{_reason(cause)}': check its permissions and the disk"
    )
    error.errno = cause.errno
    return error


def _reason(cause: OSError) -> str:
    return cause.strerror or str(cause)


def _megabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:.1f} MB"


def _free_space(folder: Path) -> str:
    try:
        status = os.statvfs(folder)
    except OSError:
        return "too little"
    return _megabytes(status.f_bavail * status.f_frsize)
