"""Learning rate of every step, as one array that is fed to the captured step."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from blutrain.config import ScheduleConfig
from blutrain.errors import InvalidInputError

SCHEDULE_KINDS = ("cosine", "linear", "constant", "trapezoidal")
"""Known values of ``schedule.kind``."""


def learning_rates(
    schedule: ScheduleConfig, steps: int, first: int = 0, count: int | None = None
) -> NDArray[np.float64]:
    """Learning rates of a run, or of a part of it; a step's is the same in any part.

    All kinds warm up linearly to the peak (step i gets ``(i + 1) / warmup_steps`` of it). Then, with x going from 0 at
    the last step of the warm-up to 1 at the last step of the run, and f the final fraction:

    - ``cosine``: ``f + (1 - f) * (1 + cos(pi x)) / 2`` (Loshchilov and Hutter 2017);
    - ``linear``: ``1 - (1 - f) x``;
    - ``constant``: 1;
    - ``trapezoidal``: 1, then linear to f over the last ``decay_fraction`` of the run (Hu et al. 2024, Hagele et al.
    2024).

    Args:
        schedule: kind, peak and fractions.
        steps: optimizer steps of the run.
        first: step that the part begins with, from 0.
        count: steps of the part; by default to the end of the run.

    Returns:
        float64 array of shape [count].

    Raises:
        InvalidInputError: the kind is unknown or ``steps`` is negative.
    """
    if schedule.kind not in SCHEDULE_KINDS:
        raise InvalidInputError(f"[schedule] expected one of {', '.join(SCHEDULE_KINDS)}, got {schedule.kind!r}")
    if steps < 0:
        raise InvalidInputError(f"[schedule] expected at least 0 steps, got {steps}")
    warmup = schedule.warmup_steps
    stop = steps if count is None else min(first + count, steps)
    step = np.arange(first, stop, dtype=np.float64)
    # x: 0 at the last step of the warm-up (or at step 0 without one), 1 at the last step of the run
    begin = max(warmup - 1, 0)
    x = np.clip((step - begin) / max(steps - 1 - begin, 1), 0.0, 1.0)
    final = schedule.final_fraction
    if schedule.kind == "cosine":
        # Not NumPy's cosine, which may round differently by the place in a vector.
        cosine = np.array([math.cos(math.pi * value) for value in x])
        factor = final + (1 - final) * 0.5 * (1 + cosine)
    elif schedule.kind == "linear":
        factor = 1 - (1 - final) * x
    elif schedule.kind == "constant":
        factor = np.ones(len(step))
    else:
        decay_steps = round(schedule.decay_fraction * steps)
        remaining = np.clip((steps - 1 - step) / decay_steps, 0.0, 1.0) if decay_steps else np.ones(len(step))
        factor = final + (1 - final) * remaining
    if warmup:
        factor = np.where(step < warmup, (step + 1) / warmup, factor)
    return schedule.learning_rate * factor
