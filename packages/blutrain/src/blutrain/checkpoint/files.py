"""The seam between checkpoints and the operating system.

Every operation by which a save changes the disk goes through `Files`, and so does reading back. Tests put an
implementation in its place that fails, stops or loses power at any one of them.
"""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from typing import Protocol


class Files(Protocol):
    """File operations that checkpoints are made of. Every method raises ``OSError`` as the system call does."""

    def make_folder(self, path: Path) -> None:
        """Makes ``path`` and its missing parents, durably; an existing folder is left as it is."""

    def create(self, path: Path) -> int:
        """Opens ``path`` for writing, empty, and returns its descriptor."""

    def open(self, path: Path) -> int:
        """Opens ``path`` for reading and returns its descriptor."""

    def write(self, descriptor: int, data: memoryview, offset: int) -> int:
        """Writes ``data`` (bytes) at ``offset``; returns how many bytes were taken, which may be fewer."""

    def read(self, descriptor: int, buffer: memoryview, offset: int) -> int:
        """Fills ``buffer`` (bytes) from ``offset``; returns how many bytes came, 0 at the end of the file."""

    def fsync(self, descriptor: int) -> None:
        """Returns when the file's contents are on the disk; may then forget its cached copy."""

    def close(self, descriptor: int) -> None:
        """Closes a descriptor."""

    def rename(self, source: Path, target: Path) -> None:
        """Gives ``source`` the name ``target``, replacing what had it, in one step."""

    def unlink(self, path: Path) -> None:
        """Removes a name; one that is gone already is no error."""

    def fsync_dir(self, path: Path) -> None:
        """Returns when the names in folder ``path`` are on the disk."""


_WRITE_BYTES = 16 << 20


class OsFiles:
    """`Files` by the system's calls."""

    def make_folder(self, path: Path) -> None:
        """``mkdir`` and ``fsync`` of the parent, for every missing level."""
        if path.is_dir():
            return
        self.make_folder(path.parent)
        with contextlib.suppress(FileExistsError):
            os.mkdir(path)
        self.fsync_dir(path.parent)

    def create(self, path: Path) -> int:
        """``open`` for writing, truncated."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)

    def open(self, path: Path) -> int:
        """``open`` for reading."""
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def write(self, descriptor: int, data: memoryview, offset: int) -> int:
        """``pwrite``, then ``posix_fadvise``."""
        written = os.pwrite(descriptor, data[:_WRITE_BYTES], offset)
        # Linux answers by starting to write the range to the disk while we hash and copy the next: fsync then finds
        # little left to do (of 1.5 GB, 0.05 s instead of 0.7 s).
        _drop_from_cache(descriptor, offset, written)
        return written

    def read(self, descriptor: int, buffer: memoryview, offset: int) -> int:
        """``preadv``."""
        return os.preadv(descriptor, [buffer], offset)

    def fsync(self, descriptor: int) -> None:
        """``fsync``, then ``posix_fadvise``."""
        os.fsync(descriptor)
        # Dropped from the cache, so that reading back reads what the disk holds and not what we wrote into memory.
        _drop_from_cache(descriptor, 0, 0)

    def close(self, descriptor: int) -> None:
        """``close``."""
        os.close(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        """``rename``."""
        os.replace(source, target)

    def unlink(self, path: Path) -> None:
        """``unlink``."""
        path.unlink(missing_ok=True)

    def fsync_dir(self, path: Path) -> None:
        """``fsync`` of a folder."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        except OSError as cause:
            # Some network file systems have no such operation: their names are durable when the call returns.
            if cause.errno not in (errno.EINVAL, errno.ENOTSUP):
                raise
        finally:
            os.close(descriptor)


def _drop_from_cache(descriptor: int, offset: int, length: int) -> None:
    with contextlib.suppress(OSError):  # a hint, which some file systems do not take
        os.posix_fadvise(descriptor, offset, length, os.POSIX_FADV_DONTNEED)


def write_all(files: Files, descriptor: int, data: memoryview, offset: int) -> None:
    """Writes all of ``data`` (bytes, contiguous) at ``offset``, however few bytes the system takes at a time."""
    while data.nbytes:
        written = files.write(descriptor, data, offset)
        if written <= 0:
            raise OSError(errno.EIO, "the system took no bytes of a write")
        data = data[written:]
        offset += written


def write_small_file(files: Files, path: Path, content: bytes) -> None:
    """Replaces the file ``path`` by ``content`` in one step: after a crash it is the old one or the new one."""
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    try:
        descriptor = files.create(temporary)
        try:
            write_all(files, descriptor, memoryview(content), 0)
            files.fsync(descriptor)
        finally:
            files.close(descriptor)
        files.rename(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            files.unlink(temporary)
        raise
    files.fsync_dir(path.parent)


TEMPORARY_SUFFIX = ".tmp"
"""Ends the name of every file that is being written; whatever bears it at start-up is a leftover of a crash."""
