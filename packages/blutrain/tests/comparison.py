"""The rule by which results in float32 are judged."""

from __future__ import annotations

from typing import Any

import numpy as np

EPS = float(np.finfo(np.float32).eps)


def assert_as_good_as(ours: Any, theirs: Any, reference: Any, what: str) -> None:
    """Our error against a float64 reference is at most twice a float32 peer's, plus one rounding."""
    scale = np.abs(reference).max()
    own, other = np.abs(ours - reference).max(), np.abs(theirs - reference).max()
    assert own <= 2 * other + EPS * scale, f"{what}: error {own:.3e}, the peer's {other:.3e}, scale {scale:.3e}"
