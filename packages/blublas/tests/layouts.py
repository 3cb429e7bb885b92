"""The same matrix in memory in every way, each as (name, array)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def rows(x: Array) -> Array:
    return np.ascontiguousarray(x)


def columns(x: Array) -> Array:
    return np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2)


def padded_rows(x: Array) -> Array:
    wide = np.full((*x.shape[:-1], x.shape[-1] + 5), np.nan, x.dtype)
    wide[..., 2 : x.shape[-1] + 2] = x
    return wide[..., 2 : x.shape[-1] + 2]


def spread(x: Array) -> Array:
    """No stride is 1."""
    wide = np.full((*x.shape[:-2], 2 * x.shape[-2], 3 * x.shape[-1]), np.nan, x.dtype)
    wide[..., ::2, ::3] = x
    return wide[..., ::2, ::3]


def backwards(x: Array) -> Array:
    return np.ascontiguousarray(x[..., ::-1, ::-1])[..., ::-1, ::-1]


LAYOUTS: dict[str, Callable[[Array], Array]] = {f.__name__: f for f in (rows, columns, padded_rows, spread, backwards)}
