"""Records what happens in a run: ``metrics.jsonl`` and ``samples.txt``, and the scalars in loggers."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from typing import Any

from blutrain.checkpoint.files import Files
from blutrain.loggers import RunLogger, TensorBoardLogger
from blutrain.metrics import LineFile, RunFolderAccessError, read_metrics, truncate_metrics
from blutrain.run_folder import RunPaths

_CURVES = ("loss", "lr", "grad_norm", "tokens_per_second", "mfu", "memory_mib", "tokens_seen", "seconds")


class Recorder:
    """Appends the events of a run to its files. Nothing is buffered in this process, so a kill loses nothing.

    Args:
        folder: the run folder; it must exist when the first event comes.
        loggers: get the scalars too; by default TensorBoard's event files are written. One that fails is told of and
            left out from then on.
        warn: told what went wrong with a logger.
        files: operations on the disk when resuming; tests inject faults here.

    All methods raise `RunFolderAccessError` when the disk is full or a file may not be written to.
    """

    def __init__(
        self,
        folder: RunPaths | str | os.PathLike[str],
        *,
        loggers: Iterable[RunLogger] | None = None,
        warn: Callable[[str], None] | None = None,
        files: Files | None = None,
    ) -> None:
        self._paths = folder if isinstance(folder, RunPaths) else RunPaths(folder)
        self._loggers: list[RunLogger] = [TensorBoardLogger(self._paths)] if loggers is None else list(loggers)
        self._begun = False
        self._warn = warn
        self._files = files
        self._metrics = LineFile(self._paths.metrics)
        self._samples = LineFile(self._paths.samples)
        self._first_step = 0

    def begin(self) -> None:
        """Opens the loggers, which the first event does otherwise."""
        if not self._begun:
            self._begun = True
            self._each(lambda logger: logger.begin(self._first_step))

    def resume_at(self, step: int) -> float:
        """Removes what was recorded after ``step``, so that training on from there records no step twice.

        A crash at any moment of this is repaired by doing it again. TensorBoard's files cannot be cut; the next one
        tells it from which step on to forget them.

        Returns:
            Seconds that the run had taken until then, as far as they were recorded.
        """
        self.close()
        self._truncate_samples(step)
        kept = truncate_metrics(self._paths.metrics, step, self._files)
        self._first_step = step + 1
        taken = (event["seconds"] for event in reversed(kept) if isinstance(event.get("seconds"), int | float))
        return float(next(taken, 0.0))

    def train(
        self,
        *,
        step: int,
        loss: float,
        lr: float,
        grad_norm: float,
        tokens_per_second: float,
        mfu: float | None,
        memory_mib: float,
        tokens_seen: int | None = None,
        seconds: float | None = None,
        skipped: bool = False,
    ) -> None:
        """Records an optimizer step.

        Args:
            step: number of optimizer steps done, this one included.
            loss: mean training loss of the step's tokens, in nats.
            lr: learning rate of the step.
            grad_norm: global norm of the mean gradient before clipping.
            tokens_per_second: speed.
            mfu: model FLOP utilisation as a share of 1, None when it is not known.
            memory_mib: peak resident memory so far.
            tokens_seen: tokens that the run has trained on so far.
            seconds: time that it has taken so far, over all its processes.
            skipped: whether the step changed no weight, because the loss or the gradient was not finite.
        """
        event: dict[str, Any] = {"event": "train", "step": step, "loss": loss, "lr": lr, "grad_norm": grad_norm}
        event |= {"tokens_per_second": tokens_per_second, "mfu": mfu, "memory_mib": memory_mib}
        progress = {"tokens_seen": tokens_seen, "seconds": seconds}
        event |= {key: value for key, value in progress.items() if value is not None}
        self._record(event | ({"skipped": True} if skipped else {}))

    def validation(self, *, step: int, loss: float, tokens: int) -> None:
        """Records a validation.

        Args:
            step: number of optimizer steps done.
            loss: mean validation loss in nats.
            tokens: targets measured.
        """
        self._record({"event": "validation", "step": step, "loss": loss, "tokens": tokens})

    def sample(self, *, step: int, text: str) -> None:
        """Records a generated text."""
        begin, end = self._samples.append_text(f"=== step {step} ===\n{text}\n\n")
        # The place is recorded, because the text may itself contain what looks like the line of a step.
        self._record({"event": "sample", "step": step, "begin": begin, "end": end})

    def flush(self) -> None:
        """Returns when everything recorded is on the disk; called before a checkpoint that continues from here."""
        self._samples.sync()
        self._metrics.sync()

    def check(self) -> None:
        """Looks whether the run folder and what is written to it are still there; deleted files are put back.

        Raises:
            RunFolderLostError: the folder was deleted, moved or replaced.
            RunFolderAccessError: a file was deleted and cannot be put back.
        """
        self._paths.check()
        self.put_back()

    def put_back(self) -> None:
        """Puts deleted files back, where the folder lies now, and tells of it."""
        for file, path in ((self._metrics, self._paths.metrics), (self._samples, self._paths.samples)):
            if file.keep(path) and self._warn is not None:
                self._warn(f"warning: {path} was deleted while the run wrote to it, and was put back")

    def close(self, status: str = "finished") -> None:
        """Closes files and loggers; the next event opens them again.

        Args:
            status: what has become of the run: ``finished``, ``failed`` or ``interrupted``.
        """
        self._metrics.close()
        self._samples.close()
        if self._begun:
            self._begun = False
            self._each(lambda logger: logger.end(status))

    def _record(self, event: dict[str, Any]) -> None:
        self._metrics.append(event)
        self.begin()
        self._first_step = max(self._first_step, event["step"] + 1)
        values = {
            f"{event['event']}/{key}": float(event[key])
            for key in _CURVES
            if isinstance(event.get(key), int | float) and math.isfinite(event[key])
        }
        if values:
            self._each(lambda logger: logger.scalars(event["step"], values))

    def places(self) -> tuple[tuple[str, str], ...]:
        """Name and place of every logger that has one, for people."""
        return tuple((logger.name, logger.place) for logger in self._loggers if self._begun and logger.place)

    def _each(self, action: Callable[[RunLogger], None]) -> None:
        """Does something with every logger; one that fails is left out from then on."""
        for logger in list(self._loggers):
            try:
                action(logger)
            except Exception as error:  # libraries of others raise what they like, and the run is worth more
                self._loggers.remove(logger)
                if self._warn is not None:
                    what = " ".join(f"{type(error).__name__}: {error}".split())
                    self._warn(f"warning: the logger {logger.name} failed and is left out from here on: {what}")

    def _truncate_samples(self, step: int) -> None:
        ends = [
            event["end"]
            for event in read_metrics(self._paths.metrics)
            if event.get("event") == "sample" and isinstance(event.get("end"), int) and event["step"] <= step
        ]
        kept = max(ends, default=0)
        try:
            if self._paths.samples.exists() and self._paths.samples.stat().st_size > kept:
                os.truncate(self._paths.samples, kept)
        except OSError as cause:
            raise RunFolderAccessError(self._paths.samples, cause) from cause
