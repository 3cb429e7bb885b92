"""Records what happens in a run: ``metrics.jsonl``, ``samples.txt`` and TensorBoard's events, in step."""

from __future__ import annotations

import math
import os
from typing import Any

from blutrain.checkpoint.files import Files
from blutrain.metrics import LineFile, RunFolderAccessError, read_metrics, truncate_metrics
from blutrain.run_folder import RunPaths
from blutrain.tensorboard import EventWriter

_CURVES = ("loss", "lr", "grad_norm", "tokens_per_second", "mfu", "memory_mib")


class Recorder:
    """Appends the events of a run to its files. Nothing is buffered in this process, so a kill loses nothing.

    Args:
        folder: the run folder; it must exist when the first event comes.
        tensorboard: whether TensorBoard's events are written too.
        files: operations on the disk when resuming; tests inject faults here.

    All methods raise `RunFolderAccessError` when the disk is full or a file may not be written to.
    """

    def __init__(
        self, folder: RunPaths | str | os.PathLike[str], *, tensorboard: bool = True, files: Files | None = None
    ) -> None:
        self._paths = folder if isinstance(folder, RunPaths) else RunPaths(folder)
        self._with_tensorboard = tensorboard
        self._files = files
        self._metrics = LineFile(self._paths.metrics)
        self._samples = LineFile(self._paths.samples)
        self._events: EventWriter | None = None
        self._first_step = 0

    def resume_at(self, step: int) -> None:
        """Removes what was recorded after ``step``, so that training on from there records no step twice.

        A crash at any moment of this is repaired by doing it again. TensorBoard's files cannot be cut; the next one
        tells it from which step on to forget them.
        """
        self.close()
        self._truncate_samples(step)
        truncate_metrics(self._paths.metrics, step, self._files)
        self._first_step = step + 1

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
            skipped: whether the step changed no weight, because the loss or the gradient was not finite.
        """
        event: dict[str, Any] = {"event": "train", "step": step, "loss": loss, "lr": lr, "grad_norm": grad_norm}
        event |= {"tokens_per_second": tokens_per_second, "mfu": mfu, "memory_mib": memory_mib}
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

    def close(self) -> None:
        """Closes the files; the next event opens them again."""
        self._metrics.close()
        self._samples.close()
        if self._events is not None:
            self._events.close()
            self._events = None

    def _record(self, event: dict[str, Any]) -> None:
        self._metrics.append(event)
        first_step = self._first_step
        self._first_step = max(self._first_step, event["step"] + 1)
        if not self._with_tensorboard:
            return
        values = {
            f"{event['event']}/{key}": float(event[key])
            for key in _CURVES
            if isinstance(event.get(key), int | float) and math.isfinite(event[key])
        }
        if values:
            if self._events is None:
                self._events = EventWriter(self._paths.tensorboard, first_step)
            self._events.scalars(event["step"], values)

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
