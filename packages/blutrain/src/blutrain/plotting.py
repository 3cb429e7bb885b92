"""Loss curves of runs as a picture, one run or several beside each other."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from blutrain.arguments import checked
from blutrain.checkpoint.files import OsFiles, write_small_file
from blutrain.comparison import AXES, Curve, RunCurves, compare, folder_of
from blutrain.errors import InvalidInputError
from blutrain.metrics import RunFolderAccessError, RunFolderError

PLOT = "loss.png"

_SMOOTH_FROM = 100
"""Training losses of at least this many steps are drawn faintly, with their running mean over them."""
_SMOOTH_SPAN = 0.02
"""Share of the points that the running mean looks back on."""
_FORMATS = (".png", ".svg")
_LABELS = {"step": "step", "tokens": "tokens", "time": "time (minutes)"}


@checked("plot")
def plot(
    runs: Sequence[str | os.PathLike[str]] | str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    *,
    x: Sequence[str] | str | None = None,
    report: Callable[[str], None] | None = None,
) -> Path:
    """Draws the training and validation losses of one or more runs.

    Args:
        runs: run folders, or files of metrics. A file without events gives an empty plot and no error.
        out: the picture, PNG or SVG by its name, which is replaced in one step; by default ``loss.png`` in the first
            run's folder.
        x: what losses are drawn over, a panel each: ``step``, ``tokens``, ``time``. By default steps for one run, and
            all three for several.
        report: told of files with damaged lines, which are passed over.

    Returns:
        The picture.

    Raises:
        RunFolderError: no run was named, one is not there or has no metrics, or ``out`` is no name of a picture.
        RunFolderAccessError: metrics cannot be read, or the picture cannot be written.
        InvalidInputError: ``x`` names something else.
    """
    suffix = Path(out).suffix.lower() if out is not None else ""
    if suffix not in ("", *_FORMATS):
        message = f"expected a file name that ends in {' or '.join(_FORMATS)}, got {Path(out or '').suffix!r}"
        raise RunFolderError(out or "", message)
    curves = compare(runs, report)
    axes = _axes(x, len(curves))
    first = runs if isinstance(runs, str | os.PathLike) else runs[0]
    target = Path(out) if out is not None else folder_of(Path(first)) / PLOT
    try:
        write_small_file(OsFiles(), target, draw(curves, axes, suffix.removeprefix(".") or "png"))
    except OSError as cause:
        raise RunFolderAccessError(target, cause) from cause
    return target


def draw(runs: Sequence[RunCurves], x: Sequence[str] = ("step",), file_format: str = "png") -> bytes:
    """Returns a picture of the curves; a panel without any points says so.

    Args:
        runs: what to draw.
        x: some of ``comparison.AXES``, a panel each.
        file_format: ``png`` or ``svg``.
    """
    figure = Figure(figsize=(8.0 if len(x) == 1 else 5.5 * len(x), 5.0), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(x), sharey=True, squeeze=False)[0]
    for axes, axis in zip(panels, x, strict=True):
        for number, run in enumerate(runs):
            _draw_run(axes, run, axis, f"C{number % 10}", prefix="" if len(runs) == 1 else f"{run.name}: ")
        axes.set_xlabel(_LABELS[axis])
        axes.grid(alpha=0.3)
        if not axes.lines:
            what = "no losses recorded yet" if axis == "step" else f"no {axis} recorded"
            axes.text(0.5, 0.5, what, transform=axes.transAxes, ha="center", va="center")
    panels[0].set_ylabel("loss (nats per token)")
    if panels[0].lines:
        panels[0].legend()
    if len(runs) == 1:
        figure.suptitle(runs[0].name)
    buffer = io.BytesIO()
    # Without its date an SVG of the same runs is the same file.
    figure.savefig(buffer, format=file_format, metadata={"Date": None} if file_format == "svg" else None)
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


def _axes(x: Sequence[str] | str | None, num_runs: int) -> Sequence[str]:
    if not x:
        return AXES if num_runs > 1 else AXES[:1]
    wanted = [x] if isinstance(x, str) else list(dict.fromkeys(x))
    for axis in wanted:
        if axis not in AXES:
            raise InvalidInputError(f"[plot] expected x to be of {', '.join(AXES)}, got {axis!r}")
    return wanted


def _places(curve: Curve, axis: str) -> tuple[list[float], list[float]]:
    """Where a curve's points lie; those whose place is not known are left out."""
    points = [pair for pair in zip(curve.over(axis), curve.losses, strict=True) if not math.isnan(pair[0])]
    scale = 1 / 60 if axis == "time" else 1
    return [scale * place for place, _ in points], [loss for _, loss in points]


def _draw_run(axes: Axes, run: RunCurves, axis: str, color: str, prefix: str) -> None:
    places, losses = _places(run.train, axis)
    if places:
        smooth = len(places) >= _SMOOTH_FROM
        # A single point has no length, so that it would be invisible without a marker.
        marker = "o" if len(places) == 1 else None
        label = f"{prefix}training"
        axes.plot(
            places,
            losses,
            color=color,
            alpha=0.25 if smooth else 1,
            marker=marker,
            label=None if smooth else label,
        )
        if smooth:
            span = len(places) * _SMOOTH_SPAN
            axes.plot(places, running_mean(losses, span), color=color, label=f"{label} (running mean)")
    places, losses = _places(run.validation, axis)
    if places:
        label = f"{prefix}validation"
        axes.plot(places, losses, color=color, linestyle="--", marker="s", markersize=4, label=label)
