"""Runs side by side: their curves over steps, tokens and time, a summary of each, and both as JSON or CSV."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from blutrain.arguments import checked
from blutrain.config_io import load_config
from blutrain.console import format_duration
from blutrain.errors import BlutrainError
from blutrain.metrics import Event, RunFolderError, read_metrics
from blutrain.run_folder import RunPaths

AXES = ("step", "tokens", "time")
"""What losses can be drawn over."""


@dataclass(frozen=True)
class Curve:
    """Points of one line; events without a finite loss are left out. All fields are of the same length."""

    steps: tuple[float, ...] = ()
    losses: tuple[float, ...] = ()
    """Nats per token."""
    tokens: tuple[float, ...] = ()
    """Tokens trained on until then; NaN where that was not recorded."""
    seconds: tuple[float, ...] = ()
    """Time of training until then; likewise."""

    def over(self, axis: str) -> tuple[float, ...]:
        """The places along one of `AXES`."""
        return {"step": self.steps, "tokens": self.tokens, "time": self.seconds}[axis]


@dataclass(frozen=True)
class RunCurves:
    """What is known of a run."""

    name: str
    train: Curve
    validation: Curve
    path: str = ""
    tokens_per_second: float | None = None
    """Median of what was recorded."""

    def summary(self) -> dict[str, Any]:
        """One value per fact; None where it is not known."""
        train, validation = self.train, self.validation
        best = min(range(len(validation.losses)), key=validation.losses.__getitem__, default=None)
        return {
            "name": self.name,
            "path": self.path,
            "steps": _last(train.steps),
            "tokens": _last(train.tokens),
            "seconds": _last(train.seconds),
            "loss": _last(train.losses),
            "val_loss": _last(validation.losses),
            "best_val_loss": None if best is None else validation.losses[best],
            "best_val_step": None if best is None else validation.steps[best],
            "tokens_per_second": self.tokens_per_second,
        }


@checked("plot")
def compare(
    runs: Sequence[str | os.PathLike[str]] | str | os.PathLike[str], report: Callable[[str], None] | None = None
) -> list[RunCurves]:
    """Read the curves of one or more runs.

    Args:
        runs: run folders, or files of metrics. A file without events gives empty curves and no error.
        report: told of every file with damaged lines, which are passed over.

    Returns:
        One element per run, in their order; names are those of the folders, or paths where two have the same name.

    Raises:
        RunFolderError: no run was named, or one is not there or has no metrics.
        RunFolderAccessError: metrics cannot be read.
    """
    given = [runs] if isinstance(runs, str | os.PathLike) else list(runs)
    paths = [Path(run) for run in given]
    if not paths:
        raise RunFolderError("", "expected at least one run, got none")
    return [_curves_of(path, name, report) for path, name in zip(paths, _names(paths), strict=True)]


def folder_of(path: Path) -> Path:
    """The run folder of what stands for a run."""
    return path if path.is_dir() else path.parent


def table_rows(runs: Sequence[RunCurves]) -> list[dict[str, str]]:
    """The summaries for people, narrow enough for a terminal: texts by the headings of their columns."""
    rows = []
    for run in runs:
        told = run.summary()
        rows.append(
            {
                "run": run.name,
                "steps": _text(told["steps"], ",.0f"),
                "tokens": _text(told["tokens"], ",.0f"),
                "time": "-" if told["seconds"] is None else format_duration(told["seconds"]),
                "loss": _text(told["loss"], ".4f"),
                "validation": _text(told["val_loss"], ".4f"),
                "best": _text(told["best_val_loss"], ".4f"),
                "tokens/s": _text(told["tokens_per_second"], ",.0f"),
            }
        )
    return rows


def _text(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def to_json(runs: Sequence[RunCurves]) -> str:
    """A list with an object per run: its summary, and its points as ``[step, tokens, seconds, loss]``."""
    told = [
        {**run.summary(), "train": _points(run.train), "validation": _points(run.validation)}  # NaN is no JSON
        for run in runs
    ]
    return json.dumps(told, indent=1, allow_nan=False)


def to_csv(runs: Sequence[RunCurves]) -> str:
    """A line per point: run, kind, step, tokens, seconds, loss; empty where something was not recorded."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["run", "kind", "step", "tokens", "seconds", "loss"])
    for run in runs:
        for kind, curve in (("train", run.train), ("validation", run.validation)):
            writer.writerows([run.name, kind, *point] for point in _points(curve))
    return text.getvalue()


def _curves_of(path: Path, name: str, report: Callable[[str], None] | None) -> RunCurves:
    if not path.exists():
        raise RunFolderError(path, "expected a run folder or a file of metrics, got nothing: check the path")
    if path.is_dir() and not RunPaths(path).metrics.exists():
        raise RunFolderError(path, "expected the folder of a run, got one without metrics.jsonl: train a run first")
    events = read_metrics(path, report)
    batch = _batch_of(folder_of(path))
    train = [event for event in events if event.get("event") == "train" and _is_finite(event.get("step"))]
    speeds = [event["tokens_per_second"] for event in train if _is_finite(event.get("tokens_per_second"))]
    return RunCurves(
        name,
        _curve(events, "train", train, batch),
        _curve(events, "validation", train, batch),
        str(path),
        float(np.median(speeds)) if speeds else None,
    )


def _curve(events: Sequence[Event], kind: str, train: Sequence[Event], batch: int | None) -> Curve:
    points = [
        (event["step"], event["loss"])
        for event in events
        if event.get("event") == kind and _is_finite(event.get("step")) and _is_finite(event.get("loss"))
    ]
    steps = [step for step, _ in points]
    tokens = _along(steps, train, "tokens_seen")
    if batch is not None:  # of a run that is older than the count
        tokens = [step * batch if math.isnan(known) else known for step, known in zip(steps, tokens, strict=True)]
    return Curve(tuple(steps), tuple(loss for _, loss in points), tuple(tokens), tuple(_along(steps, train, "seconds")))


def _along(steps: Sequence[float], train: Sequence[Event], key: str) -> list[float]:
    """What training had reached at some steps, by the steps that recorded it; NaN beyond them."""
    known = [(event["step"], event[key]) for event in train if _is_finite(event.get(key))]
    if not known or not steps:
        return [math.nan] * len(steps)
    at, values = zip(*sorted(known), strict=True)
    return [float(value) for value in np.interp(steps, at, values, left=math.nan, right=math.nan)]


def _batch_of(folder: Path) -> int | None:
    """Tokens of a step by the run's configuration; None where there is none that can be read."""
    try:
        return load_config(RunPaths(folder).config).train.global_batch_tokens
    except BlutrainError:
        return None


def _points(curve: Curve) -> list[list[float | None]]:
    rows = zip(curve.steps, curve.tokens, curve.seconds, curve.losses, strict=True)
    return [[None if math.isnan(value) else value for value in row] for row in rows]


def _last(values: Sequence[float]) -> float | None:
    return None if not values or math.isnan(values[-1]) else values[-1]


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _names(paths: Sequence[Path]) -> list[str]:
    """Returns the names of the runs' folders, or their paths where two have the same name."""
    short = [folder_of(path).resolve().name for path in paths]
    return [name if short.count(name) == 1 else str(path) for name, path in zip(short, paths, strict=True)]
