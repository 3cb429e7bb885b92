"""Initialisers: they write a tensor in place, from blutensor's own generator, and return it.

Names follow `torch.nn.init`.
"""

from __future__ import annotations

import math
from typing import TypeVar

from .. import random
from .._arguments import number
from .._naming import named
from ..autograd import no_grad
from ..errors import ShapeError
from ..tensor import Tensor

T = TypeVar("T", bound=Tensor)


@named("constant_")
def constant_(tensor: T, value: float) -> T:
    """Every element becomes `value`."""
    with no_grad():
        tensor.fill_(value)
    return tensor


@named("zeros_")
def zeros_(tensor: T) -> T:
    """Every element becomes 0."""
    return constant_(tensor, 0.0)


@named("ones_")
def ones_(tensor: T) -> T:
    """Every element becomes 1."""
    return constant_(tensor, 1.0)


@named("normal_")
def normal_(tensor: T, mean: float = 0.0, std: float = 1.0) -> T:
    """Normal distribution."""
    with no_grad():
        tensor.copy_(random.normal(tensor.shape, mean, std, dtype=tensor.dtype))
    return tensor


@named("uniform_")
def uniform_(tensor: T, low: float = 0.0, high: float = 1.0) -> T:
    """Uniform distribution on [low, high)."""
    with no_grad():
        tensor.copy_(random.uniform(tensor.shape, low, high, dtype=tensor.dtype))
    return tensor


def _fans(tensor: Tensor) -> tuple[int, int]:
    if tensor.ndim < 2:
        raise ShapeError(f"[init] expected at least 2 axes to count fan in and fan out, got shape {tensor.shape}")
    receptive = math.prod(tensor.shape[2:])
    return tensor.shape[1] * receptive, tensor.shape[0] * receptive


@named("xavier_uniform_")
def xavier_uniform_(tensor: T, gain: float = 1.0) -> T:
    """Glorot and Bengio (2010): uniform with bound gain * sqrt(6 / (fan_in + fan_out))."""
    fan_in, fan_out = _fans(tensor)
    bound = number("xavier_uniform_", "gain", gain) * math.sqrt(6.0 / (fan_in + fan_out))
    return uniform_(tensor, -bound, bound)


@named("kaiming_uniform_")
def kaiming_uniform_(tensor: T, a: float = 0.0) -> T:
    """He et al. (2015): uniform with bound sqrt(6 / ((1 + a^2) fan_in)), for leaky ReLU of slope a."""
    slope = number("kaiming_uniform_", "a", a)
    bound = math.sqrt(6.0 / ((1.0 + slope * slope) * _fans(tensor)[0]))
    return uniform_(tensor, -bound, bound)
