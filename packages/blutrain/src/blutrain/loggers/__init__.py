"""Where the scalars of a run go besides ``metrics.jsonl``: TensorBoard, Weights & Biases, MLflow.

A logger is a convenience: whatever goes wrong in it is told once, and the run goes on without it.
"""

from __future__ import annotations

import difflib
import importlib.util
import os
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from blutrain.run_folder import RunPaths
from blutrain.tensorboard import EventWriter

LIBRARIES = {"tensorboard": None, "wandb": "wandb", "mlflow": "mlflow"}
"""Name of a logger -> the library that it needs, which is also the name of blutrain's extra."""


class RunLogger(Protocol):
    """Takes the scalars of a run. Any method may raise any exception."""

    name: str
    """For people."""

    @property
    def place(self) -> str:
        """Where a person finds the run, known after ``begin``; empty when there is no such place."""

    def begin(self, first_step: int) -> None:
        """Scalars of ``first_step`` and later follow; what was logged of those steps before is void."""

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """One value per name, such as ``train/loss``."""

    def end(self, status: str) -> None:
        """Nothing follows until the next ``begin``; the run has ``finished``, ``failed`` or was ``interrupted``."""


class TensorBoardLogger:
    """Event files in the run folder, made when the first scalar comes.

    Args:
        folder: where they go.
    """

    name = "tensorboard"

    def __init__(self, folder: RunPaths) -> None:
        self._folder = folder.tensorboard
        self._first_step = 0
        self._writer: EventWriter | None = None

    @property
    def place(self) -> str:
        """The folder."""
        return os.path.abspath(self._folder)

    def begin(self, first_step: int) -> None:
        """The next file tells TensorBoard what to forget of the earlier ones, which cannot be cut."""
        self.end("")
        self._first_step = first_step

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Appends one point per name."""
        if self._writer is None:
            self._writer = EventWriter(self._folder, self._first_step)
        self._writer.scalars(step, values)

    def end(self, status: str) -> None:
        """Closes the file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def make_loggers(
    names: Iterable[str], folder: RunPaths, *, name: str = "", project: str = "blutrain", config: Mapping[str, Any]
) -> list[RunLogger]:
    """The loggers of a run; nothing is opened yet.

    Args:
        names: keys of `LIBRARIES`.
        folder: of the run.
        name: of the run; empty takes the folder's.
        project: of Weights & Biases, or experiment of MLflow.
        config: the run's configuration as plain values, which trackers show.
    """
    made: list[RunLogger] = []
    name = name or folder.path.resolve().name
    for which in dict.fromkeys(names):
        if which == "tensorboard":
            made.append(TensorBoardLogger(folder))
            continue
        from blutrain.loggers.background import BackgroundLogger
        from blutrain.loggers.trackers import TRACKERS

        made.append(BackgroundLogger(TRACKERS[which](folder, name, project, config)))
    return made


def logger_problems(names: Iterable[str]) -> list[str]:
    """What is wrong with the names of loggers, library by library; nothing when all can be used."""
    problems = []
    for name in names:
        if name not in LIBRARIES:
            close = difflib.get_close_matches(name, LIBRARIES, n=1)
            hint = f", did you mean {close[0]!r}?" if close else ""
            problems.append(f"expected some of {', '.join(LIBRARIES)}, got {name!r}{hint}")
            continue
        library = LIBRARIES[name]
        if library is not None and importlib.util.find_spec(library) is None:
            problems.append(f"expected {library} to be installed for {name!r}: pip install 'blutrain[{library}]'")
    return problems
