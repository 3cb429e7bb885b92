"""Loss curves of runs as a PNG."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from blutrain.checkpoint.files import OsFiles, write_small_file
from blutrain.metrics import Event, RunFolderAccessError, RunFolderError, read_metrics
from blutrain.run_folder import RunPaths

PLOT = "loss.png"

_SMOOTH_FROM = 100
"""Training losses of at least this many steps are drawn faintly, with their running mean over them."""
_SMOOTH_SPAN = 0.02
"""Share of the points that the running mean looks back on."""


@dataclass(frozen=True)
class Curve:
    """Points of one line; steps without a finite value are left out."""

    steps: tuple[float, ...]
    losses: tuple[float, ...]


@dataclass(frozen=True)
class RunCurves:
    """What is drawn of a run."""

    name: str
    train: Curve
    validation: Curve


def plot(
    runs: Sequence[str | os.PathLike[str]] | str | os.PathLike[str], out: str | os.PathLike[str] | None = None
) -> Path:
    """Draws the training and validation losses of one or more runs.

    Args:
        runs: run folders, or files of metrics. A file without events gives an empty plot and no error.
        out: the PNG, which is replaced in one step; by default ``loss.png`` in the first run's folder.

    Returns:
        The PNG.

    Raises:
        RunFolderError: no run was named, one is not there or has no metrics, or ``out`` is no name of a PNG.
        RunFolderAccessError: metrics cannot be read, or the PNG cannot be written.
    """
    given = [runs] if isinstance(runs, str | os.PathLike) else list(runs)
    paths = [Path(run) for run in given]
    if not paths:
        raise RunFolderError("", "expected at least one run to plot, got none")
    if out is not None and Path(out).suffix.lower() not in ("", ".png"):
        raise RunFolderError(out, f"expected a file name that ends in .png, got {Path(out).suffix!r}: plots are PNGs")
    curves = [_curves_of(path, name) for path, name in zip(paths, _names(paths), strict=True)]
    target = Path(out) if out is not None else _folder_of(paths[0]) / PLOT
    try:
        write_small_file(OsFiles(), target, draw(curves))
    except OSError as cause:
        raise RunFolderAccessError(target, cause) from cause
    return target


def draw(runs: Sequence[RunCurves]) -> bytes:
    """Returns a PNG of the curves; without any points it says so."""
    figure = Figure(figsize=(8.0, 5.0), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for number, run in enumerate(runs):
        _draw_run(axes, run, f"C{number % 10}", prefix="" if len(runs) == 1 else f"{run.name}: ")
    axes.set_xlabel("step")
    axes.set_ylabel("loss (nats per token)")
    axes.grid(alpha=0.3)
    if len(runs) == 1:
        axes.set_title(runs[0].name)
    if axes.lines:
        axes.legend()
    else:
        axes.text(0.5, 0.5, "no losses recorded yet", transform=axes.transAxes, ha="center", va="center")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def running_mean(values: Sequence[float], span: float) -> list[float]:
    """Returns the exponential running mean over about ``span`` values, corrected for its start."""
    keep = 1 - 1 / max(span, 1.0)
    means, total, weight = [], 0.0, 0.0
    for value in values:
        total = keep * total + value
        weight = keep * weight + 1
        means.append(total / weight)
    return means


def _draw_run(axes: Axes, run: RunCurves, color: str, prefix: str) -> None:
    train, validation = run.train, run.validation
    if train.steps:
        smooth = len(train.steps) >= _SMOOTH_FROM
        # A single point has no length, so that it would be invisible without a marker.
        marker = "o" if len(train.steps) == 1 else None
        label = f"{prefix}training"
        axes.plot(
            train.steps,
            train.losses,
            color=color,
            alpha=0.25 if smooth else 1,
            marker=marker,
            label=None if smooth else label,
        )
        if smooth:
            span = len(train.steps) * _SMOOTH_SPAN
            axes.plot(train.steps, running_mean(train.losses, span), color=color, label=f"{label} (running mean)")
    if validation.steps:
        axes.plot(
            validation.steps,
            validation.losses,
            color=color,
            linestyle="--",
            marker="s",
            markersize=4,
            label=f"{prefix}validation",
        )


def _curves_of(path: Path, name: str) -> RunCurves:
    if not path.exists():
        raise RunFolderError(path, "expected a run folder or a file of metrics, got nothing: check the path")
    if path.is_dir() and not RunPaths(path).metrics.exists():
        raise RunFolderError(path, "expected the folder of a run, got one without metrics.jsonl: train a run first")
    events = read_metrics(path)
    return RunCurves(name, _curve(events, "train"), _curve(events, "validation"))


def _curve(events: Sequence[Event], kind: str) -> Curve:
    points = [
        (event["step"], event["loss"])
        for event in events
        if event.get("event") == kind and _is_finite(event.get("step")) and _is_finite(event.get("loss"))
    ]
    return Curve(tuple(step for step, _ in points), tuple(loss for _, loss in points))


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _folder_of(path: Path) -> Path:
    return path if path.is_dir() else path.parent


def _names(paths: Sequence[Path]) -> list[str]:
    """Returns the names of the runs' folders, or their paths where two have the same name."""
    short = [_folder_of(path).resolve().name for path in paths]
    return [name if short.count(name) == 1 else str(path) for name, path in zip(short, paths, strict=True)]
