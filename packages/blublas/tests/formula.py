"""The product and its epilogues, written down once and evaluated in float64 and by the peer.

``exact`` is NumPy in float64. ``peer`` is PyTorch in the tested precision, or NumPy in float32 (float64) where PyTorch
is not installed. ``assert_as_good_as`` is the rule that compares the two with ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

# Half the distance from 1 to the next number.
ROUNDOFF = {"float32": 2.0**-24, "float64": 2.0**-53, "bfloat16": 2.0**-8}


@dataclass
class Case:
    """Operands as NumPy arrays, before any layout or dtype is given to them."""

    a: Array
    b: Array
    c: Array | None = None
    alpha: float = 1.0
    beta: float = 0.0
    bias: Array | None = None
    activation: str | None = None
    gradient_of: Array | None = None
    approximate: str = "tanh"
    residual: Array | None = None
    accumulate: bool = False


@dataclass
class Result:
    out: Array
    preactivation: Array
    column_sum: Array
    row_sum_a: Array


class NumpyOps:
    """The formula's functions in NumPy, in one dtype."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype

    def load(self, x: Array) -> Any:
        return np.asarray(x, self.dtype)

    def store(self, x: Any) -> Array:
        return np.asarray(x)

    def erf(self, x: Array) -> Array:
        return np.vectorize(math.erf, otypes=[np.float64])(x.astype(np.float64)).astype(self.dtype)

    def gelu(self, x: Any, approximate: str) -> Any:
        if approximate == "tanh":
            return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))
        return 0.5 * x * (1 + self.erf(x * math.sqrt(0.5)))

    def gelu_gradient(self, x: Any, approximate: str) -> Any:
        if approximate == "tanh":
            slope = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x * x)
            tanh = np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x))
            return 0.5 * (1 + tanh) + 0.5 * x * (1 - tanh * tanh) * slope
        return 0.5 * (1 + self.erf(x * math.sqrt(0.5))) + x * np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)

    def sum(self, x: Any, axis: int) -> Any:
        return x.sum(axis)


class TorchOps:
    """The formula's functions in PyTorch, in one dtype."""

    def __init__(self, torch: Any, dtype: str) -> None:
        self.torch = torch
        self.dtype = getattr(torch, dtype)

    def load(self, x: Array) -> Any:
        return self.torch.from_numpy(np.array(x)).to(self.dtype)

    def store(self, x: Any) -> Array:
        return np.asarray(x.double().numpy())

    def gelu(self, x: Any, approximate: str) -> Any:
        return self.torch.nn.functional.gelu(x, approximate=approximate)

    def gelu_gradient(self, x: Any, approximate: str) -> Any:
        return self.torch.ops.aten.gelu_backward(self.torch.ones_like(x), x, approximate=approximate)

    def sum(self, x: Any, axis: int) -> Any:
        return x.sum(axis)


def evaluate(case: Case, ops: NumpyOps | TorchOps) -> Result:
    a, b = ops.load(case.a), ops.load(case.b)
    v = a @ b
    if case.alpha != 1:
        v = case.alpha * v
    if case.beta != 0:
        v = v + case.beta * ops.load(case.c)
    if case.bias is not None:
        v = v + ops.load(case.bias)[..., None, :]
    preactivation = v
    if case.activation is not None:
        v = ops.gelu(v, "tanh" if case.activation == "gelu_tanh" else "none")
    if case.gradient_of is not None:
        v = v * ops.gelu_gradient(ops.load(case.gradient_of), case.approximate)
    if case.residual is not None:
        v = v + ops.load(case.residual)
    if case.accumulate:
        v = v + ops.load(case.c)
    sums = ops.sum(v, -2), ops.sum(a, -1)
    return Result(*(ops.store(x) for x in (v, preactivation, *sums)))


def exact(case: Case) -> Result:
    return evaluate(case, NumpyOps("float64"))


def peer(case: Case, torch: Any, dtype: str) -> Result:
    return evaluate(case, NumpyOps(dtype) if torch is None else TorchOps(torch, dtype))


def assert_as_good_as(ours: Array, theirs: Array, truth: Array, dtype: str, what: str = "") -> None:
    """Our largest error is at most twice the peer's, plus one rounding of the largest result."""
    truth = np.asarray(truth, np.float64)
    assert ours.shape == truth.shape, (what, ours.shape, truth.shape)
    if truth.size == 0:
        return
    error = np.abs(np.asarray(ours, np.float64) - truth).max()
    allowed = 2 * np.abs(np.asarray(theirs, np.float64) - truth).max() + ROUNDOFF[dtype] * np.abs(truth).max()
    assert error <= allowed, f"{what}: error {error}, allowed {allowed}"


class SumErrors:
    """The rule for sums, over many cases: the largest error of a few sums is a matter of luck, ours and the peer's.

    Errors count relative to the largest sum of their case.
    """

    def __init__(self) -> None:
        self.ours, self.theirs = 0.0, 0.0

    def add(self, ours: Array, theirs: list[Array], truth: Array) -> None:
        assert ours.shape == truth.shape
        largest = np.abs(truth).max(initial=0)
        if largest > 0:
            self.ours = max(self.ours, np.abs(ours - truth).max() / largest)
            self.theirs = max(self.theirs, *(np.abs(x - truth).max() / largest for x in theirs))

    def check(self, dtype: str) -> None:
        assert self.theirs > 0
        assert self.ours <= 2 * self.theirs + ROUNDOFF[dtype], f"error {self.ours}, the peer's {self.theirs}"


def sum_chain(x: Array, axis: int) -> Array:
    """The sum as one chain of additions, which is how the reference kernels add."""
    if x.shape[axis] == 0:
        return x.sum(axis)
    return np.take(np.add.accumulate(x, axis=axis), -1, axis=axis)


def bfloat16_values(x: Array) -> Array:
    """Values rounded to nearest even to what bfloat16 holds, as float32."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return rounded.astype(np.uint32).view(np.float32).reshape(x.shape)


def chain(a: Array, b: Array) -> Array:
    """The product with one chain of additions per element, which is how the reference kernels add."""
    out = np.zeros((*a.shape[:-1], b.shape[-1]), a.dtype)
    for k in range(a.shape[-1]):
        out += a[..., :, k, None] * b[..., None, k, :]
    return out
