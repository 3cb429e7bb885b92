"""A folder that appears complete or not at all: it is made under another name beside its place, and renamed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from blutrain.errors import InvalidInputError


class PlaceInUseError(InvalidInputError):
    """Another process writes the folder."""


def new_place(command: str, out: str | Path) -> Path:
    """Where a new folder is to be, with links followed, so that it is made on the disk that they lead to.

    Args:
        command: what errors begin with.
        out: as it was given.

    Returns:
        The place.

    Raises:
        InvalidInputError: no other folder can take its place: it is the current folder, or a mounted disk.
    """
    target = Path(os.path.realpath(out))
    found = ""
    if not str(out) or target == Path(os.path.realpath(os.curdir)):
        found = "the current folder"
    elif os.path.ismount(target):
        found = "the place where a disk is mounted"
    if found:
        message = f"[{command}] expected the name of a new folder as --out, got {found}, {target}"
        raise InvalidInputError(f"{message}: name one inside it, {target / 'NAME'} for example")
    return target


@contextlib.contextmanager
def locked_folder(command: str, path: Path, target: Path) -> Iterator[None]:
    """Make a folder, where it is not there, and hold it.

    Args:
        command: what errors begin with.
        path: the folder.
        target: for messages: the place of what is made in it.

    Raises:
        PlaceInUseError: another process holds it.
        OSError: the place is not writable.
    """
    path.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            message = f"[{command}] expected to write {target}, got a place that another process writes: wait for it"
            raise PlaceInUseError(message + " or choose another --out") from None
        except OSError:
            pass  # a file system without locks
        yield
    finally:
        os.close(descriptor)


def clear_folder(path: Path) -> None:
    """Remove everything in a folder."""
    for entry in path.iterdir():
        shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()


@contextlib.contextmanager
def new_folder(command: str, target: Path) -> Iterator[Path]:
    """A folder to fill, which takes its place when all went well, and is gone otherwise.

    What a process that was killed left of it is removed by the next one.

    Args:
        command: what errors begin with.
        target: the place, see ``new_place``; nothing or an empty folder may be there.

    Yields:
        The folder, beside its place.

    Raises:
        PlaceInUseError: another process makes a folder at the same place.
        OSError: the disk is full, or the place not writable.
    """
    path = target.parent / f".{target.name}.new"
    with locked_folder(command, path, target):
        try:
            clear_folder(path)
            yield path
            path.rename(target)
        finally:
            shutil.rmtree(path, ignore_errors=True)
