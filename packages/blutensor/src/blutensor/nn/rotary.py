"""Rotary position embedding, with the frequency scalings by which models are stretched to longer contexts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from .. import _operators as ops
from .._arguments import number
from .._calls import arange_on, need_tensor
from .._naming import named
from ..dtypes import float64
from ..elementwise import clip
from ..errors import DTypeError, ShapeError
from ..manipulation import concat
from ..tensor import Tensor


@dataclass(frozen=True)
class RotaryScaling:
    """How the frequencies of a rotary embedding are lowered, so that a model sees farther than it was trained to.

    ``linear`` divides all of them by `factor` (position interpolation; Chen et al., 2023). ``llama3`` leaves those that
    turn more than `high_frequency_factor` times within `original_context` as they are, divides those that turn less
    than `low_frequency_factor` times by `factor`, and goes over from the one to the other between them (Llama 3.1).
    The names of Hugging Face's ``rope_scaling`` are given in brackets.

    Raises:
        ShapeError: An unknown kind, or numbers that are impossible.
        DTypeError: What is no number.
    """

    kind: Literal["linear", "llama3"]
    """Which (``rope_type``)."""
    factor: float
    """By how much, at least 1 (``factor``)."""
    low_frequency_factor: float = 1.0
    """Of ``llama3`` (``low_freq_factor``)."""
    high_frequency_factor: float = 4.0
    """Of ``llama3`` (``high_freq_factor``)."""
    original_context: int = 8192
    """Of ``llama3``: tokens that the model was trained on at once (``original_max_position_embeddings``)."""

    def __post_init__(self) -> None:
        if self.kind not in ("linear", "llama3"):
            raise ShapeError(f"[RotaryScaling] expected kind 'linear' or 'llama3', got {self.kind!r}")
        if not 1.0 <= number("RotaryScaling", "factor", self.factor) < math.inf:
            raise ShapeError(f"[RotaryScaling] expected a finite factor of at least 1, got {self.factor}")
        for name in ("low_frequency_factor", "high_frequency_factor", "original_context"):
            if not 0.0 < number("RotaryScaling", name, getattr(self, name)) < math.inf:
                raise ShapeError(f"[RotaryScaling] expected a finite {name} above 0, got {getattr(self, name)}")
        if self.low_frequency_factor >= self.high_frequency_factor:
            raise ShapeError(
                "[RotaryScaling] expected a low_frequency_factor below the high_frequency_factor, got "
                f"{self.low_frequency_factor} and {self.high_frequency_factor}"
            )

    def scaled(self, frequencies: Tensor) -> Tensor:
        """The frequencies to use in place of these, in radians per position."""
        if self.kind == "linear":
            return frequencies / self.factor
        low, high = self.low_frequency_factor, self.high_frequency_factor
        turns = frequencies * (self.original_context / (2.0 * math.pi))
        kept = clip((turns - low) / (high - low), 0.0, 1.0)
        return frequencies * kept + frequencies / self.factor * (1.0 - kept)


@named("rotary_embedding")
def rotary_embedding(
    x: Tensor, positions: Tensor | None = None, base: float = 10000.0, scaling: RotaryScaling | None = None
) -> Tensor:
    """Rotary position embedding (Su et al., 2021) with rotated halves, as in Llama.

    Channel i and channel i + D/2 of a head are turned by position * base^(-2 i / D), or a lower frequency by `scaling`.

    Args:
        x: [..., T, D], such as [B, H, T, D] or, with positions [T, 1], [B, T, H, D].
        positions: Integers that broadcast to [..., T]; by default 0, 1, ... along T. For the token at position p of a
            cache: a tensor of p.
        base: Of the wavelengths; 10000 in the paper, 500000 in Llama 3.
        scaling: Of the frequencies; None leaves them. With it the embedding is composed of several operators.

    Raises:
        ShapeError: D is odd or more than 512, or positions do not broadcast.
        DTypeError: `x` or `positions` are of another dtype, or `scaling` is something else.
    """
    if scaling is None:
        return ops.rotary_embedding(x, positions, base)
    if not isinstance(scaling, RotaryScaling):
        raise DTypeError(f"[rotary_embedding] expected a RotaryScaling for scaling, got {type(scaling).__name__}")
    need_tensor("rotary_embedding", "x", x)
    if not x.dtype.is_floating:
        raise DTypeError(f"[rotary_embedding] expected floating-point x, got {x.dtype.name}{x.shape}")
    if x.ndim < 2 or x.shape[-1] % 2:
        raise ShapeError(f"[rotary_embedding] expected x [..., T, D] with an even D, got {x.dtype.name}{x.shape}")
    half, device = x.shape[-1] // 2, x._fixed()[3]
    if positions is None:
        positions = arange_on(0, x.shape[-2], 1, "int64", device)
    # The table is computed in float64 and rounded once.
    exponents = arange_on(0, half, 1, float64, device) * (-1.0 / half)
    frequencies = scaling.scaled(ops.pow(number("rotary_embedding", "base", base), exponents))
    angles = ops.expand_dims(positions, -1).astype(float64) * frequencies
    dtype = x.dtype if x.dtype.itemsize >= 4 else "float32"
    cos, sin = ops.cos(angles).astype(dtype), ops.sin(angles).astype(dtype)
    first, second = (part.astype(dtype) for part in ops.split(x, 2, axis=-1))
    return concat([first * cos - second * sin, second * cos + first * sin], -1).astype(x.dtype)
