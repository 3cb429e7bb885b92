"""Saving checkpoints at once, or behind the training loop.

Behind the loop, the state is copied (that is the stall), and a thread writes and verifies the copy while training goes
on. What lies on a GPU is copied into pinned memory, which is made once and kept.

At most one save is under way: the next one waits for it. What goes wrong in the thread is raised at the next save,
or at the end.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

import blutensor as bt
from blutrain.checkpoint import CheckpointStore

State = Mapping[str, "bt.Tensor | NDArray[Any]"]
"""By name: tensors on any device, and arrays."""


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
        self._pinned: dict[str, bt.Tensor] = {}

    def prepare(self, state: State) -> None:
        """Make the pinned memory for what lies on a GPU now, so that the first save need not."""
        wanted = {name: value for name, value in state.items() if self._is_on_gpu(value) and name not in self._pinned}
        for dtype in {value.dtype for value in wanted.values()}:
            group = {name: value for name, value in wanted.items() if value.dtype is dtype}
            together = bt.cuda.empty_pinned(sum(value.size for value in group.values()), dtype=dtype)
            begin = 0
            for name, value in group.items():
                self._pinned[name] = together[begin : begin + value.size].reshape(value.shape)
                begin += value.size

    @property
    def is_busy(self) -> bool:
        """Whether a save is under way."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def newest(self) -> Path | None:
        """The newest checkpoint that is complete; None before the first."""
        return self._newest

    def found(self, path: Path) -> None:
        """Take note of a good checkpoint that was there before."""
        self._newest = path

    def save(self, step: int, state: State, meta: Mapping[str, Any]) -> Path:
        """Save a checkpoint, or begin to.

        Args:
            step: optimizer steps done.
            state: it may change as soon as this returns.
            meta: JSON values.

        Returns:
            The file, which is complete after ``wait`` at the latest.

        Raises:
            CheckpointError: this save failed, or the one before it did behind the loop; earlier ones are intact.
        """
        self.wait()
        if not self._background:
            self._newest = self._store.save(step, self._on_host(state), meta)
            return self._newest
        snapshot = {
            name: array if self._is_on_gpu(state[name]) else np.array(array)
            for name, array in self._on_host(state).items()
        }
        self._thread = threading.Thread(target=self._write, args=(step, snapshot, dict(meta)), name="checkpoint")
        self._thread.start()
        return self._store.path_of(step)

    @staticmethod
    def _is_on_gpu(value: object) -> TypeGuard[bt.Tensor]:
        return isinstance(value, bt.Tensor) and value.device != "cpu"

    def _on_host(self, state: State) -> dict[str, NDArray[Any]]:
        """The state's arrays on the host: shared with the run where they are there already, else in pinned memory."""
        self.prepare(state)
        arrays: dict[str, NDArray[Any]] = {}
        devices = set()
        for name, value in state.items():
            if not isinstance(value, bt.Tensor):
                arrays[name] = np.asarray(value)
            elif not self._is_on_gpu(value):
                arrays[name] = value.detach().numpy()
            else:
                self._pinned[name].copy_(value.detach())  # only begins
                devices.add(value.device)
                arrays[name] = self._pinned[name].numpy()
        for device in devices:
            bt.cuda.synchronize(device)
        return arrays

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
