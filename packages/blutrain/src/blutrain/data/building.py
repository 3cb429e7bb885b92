"""The folder in which a data set grows until it is complete, and what a killed process left in it.

It is ``.<name>.partial`` beside the place of the data set, locked while a process writes it. ``journal.json`` in it
says of what the data set is made, and up to where everything is on the disk.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from blutrain.checkpoint.files import OsFiles, write_small_file
from blutrain.data.dataset import MANIFEST
from blutrain.errors import DataError
from blutrain.new_folder import clear_folder, locked_folder

_JOURNAL = "journal.json"


class Building:
    """The folder while this process holds it; use ``open_building``.

    Args:
        path: the folder.
        job: what decides about the data set, as JSON.
    """

    def __init__(self, path: Path, job: Mapping[str, Any]) -> None:
        self.path = path
        """The folder."""
        self._job = json.loads(json.dumps(job))
        self._journal = path / _JOURNAL

    def load(self) -> dict[str, Any] | None:
        """What ``save`` was given last for this very job, also by an earlier process; None when there is nothing."""
        try:
            content = json.loads(self._journal.read_text(encoding="utf-8"))
            return dict(content["state"]) if content["job"] == self._job else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def save(self, state: Mapping[str, Any]) -> None:
        """Remember up to where everything is on the disk.

        Raises:
            OSError: the disk is full, or the folder not writable.
        """
        write_small_file(OsFiles(), self._journal, json.dumps({"job": self._job, "state": state}).encode())

    def clear(self) -> None:
        """Remove everything in the folder."""
        clear_folder(self.path)

    def place(self, target: Path) -> None:
        """Give the finished folder its place, from which a data set that was there before makes room.

        Raises:
            OSError: the place is not writable; what was there is still there.
        """
        self._journal.unlink(missing_ok=True)
        if not target.exists() or not any(target.iterdir()):
            self.path.rename(target)
            return
        replaced = target.parent / f".{target.name}.replaced"
        target.rename(replaced)
        try:
            self.path.rename(target)
        except OSError:
            replaced.rename(target)
            raise
        shutil.rmtree(replaced)


@contextlib.contextmanager
def open_building(target: Path, job: Mapping[str, Any]) -> Iterator[Building]:
    """Take the folder beside ``target``.

    When the process is killed or interrupted, it stays, and the same job goes on from there. After an error nothing
    stays.

    Args:
        target: place of the data set.
        job: what decides about it, as JSON.

    Yields:
        The folder.

    Raises:
        PlaceInUseError: another process prepares the same place.
        OSError: the place is not writable.
    """
    path = target.parent / f".{target.name}.partial"
    with locked_folder("prepare", path, target):
        _put_back(target)
        building = Building(path, job)
        try:
            yield building
        except Exception:
            shutil.rmtree(path, ignore_errors=True)
            raise
        except BaseException:  # Ctrl-C and its like: what is on the disk is good
            if building.load() is None:
                shutil.rmtree(path, ignore_errors=True)
            raise
        shutil.rmtree(path, ignore_errors=True)


def existing_manifest(target: Path) -> bytes | None:
    """The manifest of a data set that is already there, None when the place is free.

    Raises:
        DataError: something else is there.
    """
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return None
    if not target.is_dir() or not (target / MANIFEST).exists():
        raise DataError(
            f"[prepare] expected a new folder, got {target}, which holds something else; choose another --out"
        )
    return (target / MANIFEST).read_bytes()


def _put_back(target: Path) -> None:
    """A data set that had made room comes back when the process was killed before the new one had its place."""
    replaced = target.parent / f".{target.name}.replaced"
    if not replaced.is_dir():
        return
    if target.exists():
        shutil.rmtree(replaced)
    else:
        replaced.rename(target)
