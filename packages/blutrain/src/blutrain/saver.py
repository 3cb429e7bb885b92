"""Saving checkpoints at once, or behind the training loop.

Behind the loop, the state is copied (that is the stall), and a thread writes and verifies the copy while training goes
on. At most one save is under way: the next one waits for it. What goes wrong in the thread is raised at the next save,
or at the end.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blutrain.checkpoint import CheckpointStore


class Saver:
    """Writes a run's checkpoints.

    Args:
        store: where they go.
        background: whether to write behind the training loop; takes memory for a copy of the state.
    """

    def __init__(self, store: CheckpointStore, *, background: bool = False) -> None:
        self._store = store
        self._background = background
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._newest: Path | None = None

    @property
    def newest(self) -> Path | None:
        """The newest checkpoint that is complete; None before the first."""
        return self._newest

    def found(self, path: Path) -> None:
        """Take note of a good checkpoint that was there before."""
        self._newest = path

    def save(self, step: int, arrays: Mapping[str, NDArray[Any]], meta: Mapping[str, Any]) -> Path:
        """Save a checkpoint, or begin to.

        Args:
            step: optimizer steps done.
            arrays: by name; they may change as soon as this returns.
            meta: JSON values.

        Returns:
            The file, which is complete after ``wait`` at the latest.

        Raises:
            CheckpointError: this save failed, or the one before it did behind the loop; earlier ones are intact.
        """
        self.wait()
        if not self._background:
            self._newest = self._store.save(step, arrays, meta)
            return self._newest
        snapshot = {name: np.array(array) for name, array in arrays.items()}
        self._thread = threading.Thread(target=self._write, args=(step, snapshot, dict(meta)), name="checkpoint")
        self._thread.start()
        return self._store.path_of(step)

    def wait(self) -> None:
        """Return when nothing is under way.

        Raises:
            CheckpointError: the save that was under way failed.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _write(self, step: int, snapshot: Mapping[str, NDArray[Any]], meta: Mapping[str, Any]) -> None:
        try:
            self._newest = self._store.save(step, snapshot, meta)
        except BaseException as error:
            self._error = error
