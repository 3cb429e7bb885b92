"""What the tests of the matrix and neural-network operators share: random operands, layouts, the error rule, peers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import blutensor as bt
from blutensor.process import isa, set_isa

Array = npt.NDArray[Any]

# Unit roundoff: half the distance from 1 to the next number.
ROUNDOFF = {"float32": 2.0**-24, "float64": 2.0**-53, "bfloat16": 2.0**-8, "float16": 2.0**-11}


def require_torch() -> Any:
    """PyTorch; without it the calling test is skipped, or fails where BLU_REQUIRE_TORCH=1 asks for it."""
    if os.environ.get("BLU_REQUIRE_TORCH") == "1":
        import torch

        return torch
    return pytest.importorskip("torch", reason="PyTorch is not installed: no comparison with it")


def normal(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> Array:
    """Normal float32 numbers."""
    return (rng.standard_normal(shape) * scale).astype(np.float32)


def parameter(values: Array) -> bt.Tensor:
    """A leaf that requires a gradient, over a copy of the values."""
    tensor = bt.asarray(np.array(values))
    tensor.requires_grad = True
    return tensor


def layouts(values: Array) -> Iterator[tuple[str, bt.Tensor]]:
    """The same values in memory in several ways (at least one axis)."""
    yield "contiguous", bt.asarray(np.array(values))
    yield "axes reversed", bt.asarray(np.ascontiguousarray(values.T)).permute_dims(*reversed(range(values.ndim)))
    wide = np.repeat(np.repeat(values, 2, axis=-1), 3, axis=0)
    yield (
        "every second column of every third row",
        bt.asarray(wide)[::3, ..., ::2] if values.ndim > 1 else bt.asarray(wide)[::6],
    )
    yield "backwards", bt.asarray(np.ascontiguousarray(np.flip(values)))[(slice(None, None, -1),) * values.ndim]


def poison(*sizes: int) -> None:
    """Leaves NaN in memory that the next allocations of these sizes (in float32 elements) are likely to get."""
    for size in sizes:
        bt.full((max(size, 1),), float("nan"))


def assert_as_good_as(ours: Array, peer: Array | None, exact: Array, dtype: str = "float32") -> None:
    """STYLE 26: error against float64 at most twice the peer's, plus one rounding of the result, on maximum and mean.

    Without a peer only the two roundings are allowed: for results in 16 bits of sums in float32.
    """
    exact = np.asarray(exact, np.float64)
    error = np.abs(np.asarray(ours, np.float64) - exact)
    peer_error = np.zeros_like(error) if peer is None else np.abs(np.asarray(peer, np.float64) - exact)
    rounding = ROUNDOFF[dtype] * np.abs(exact)
    if error.size == 0:
        return
    # One rounding: of the largest result for the largest error, of a typical one for the mean.
    assert error.max() <= 2 * peer_error.max() + 2 * rounding.max(), (error.max(), peer_error.max(), rounding.max())
    assert error.mean() <= 2 * peer_error.mean() + 2 * rounding.mean(), (
        error.mean(),
        peer_error.mean(),
        rounding.mean(),
    )


def gradients(function: Callable[..., bt.Tensor], inputs: list[bt.Tensor], upstream: Array) -> list[Array]:
    """Gradients of sum(function * upstream)."""
    wanted = [t for t in inputs if t is not None and t.requires_grad]
    return [g.numpy() for g in bt.grad([function(*inputs)], wanted, [bt.asarray(upstream)])]


def first_gradients(loss: Callable[..., bt.Tensor]) -> Callable[..., list[bt.Tensor]]:
    """The gradient of a loss as a function, for gradcheck: its gradients are second derivatives."""

    def first(*inputs: bt.Tensor) -> list[bt.Tensor]:
        outer = bt.is_grad_enabled()
        with bt.enable_grad():
            grads = bt.grad([loss(*inputs)], list(inputs), create_graph=True)
        return list(grads) if outer else [g.detach() for g in grads]

    return first


def torch_gradients(function: Callable[..., Any], inputs: list[Any], upstream: Any) -> list[Array]:
    """The same by PyTorch."""
    torch = require_torch()
    wanted = [t for t in inputs if t is not None and t.requires_grad]
    return [g.numpy() for g in torch.autograd.grad(function(*inputs), wanted, upstream)]


def available_isas() -> list[str]:
    """Instruction sets that this machine and build have."""
    before, found = isa(), []
    for name in ("reference", "avx2", "avx512"):
        try:
            set_isa(name)
        except NotImplementedError:
            continue
        found.append(name)
    set_isa(before)
    return found


@contextmanager
def using_isa(name: str) -> Iterator[None]:
    """Runs the body with the kernels of one instruction set."""
    before = isa()
    set_isa(name)
    try:
        yield
    finally:
        set_isa(before)


def same_bits_for_any_threads(compute: Callable[[], list[Array]]) -> None:
    """Asserts that 1, 2 and 3 threads give the same bits."""
    before = bt.num_threads()
    results = []
    try:
        for threads in (1, 2, 3):
            bt.set_num_threads(threads)
            results.append([np.array(a) for a in compute()])
    finally:
        bt.set_num_threads(before)
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            assert a.tobytes() == b.tobytes()


def check_norm(
    ours: Callable[..., Any], theirs: Callable[..., Any], values: list[Array | None], upstream: Array, isa: str
) -> None:
    """A normalisation over the last axis of x [M, C] and its gradients, by the error rule.

    Args:
        ours: function of x and the parameters.
        theirs: the same in PyTorch.
        values: x and the parameters, which may be missing.
        upstream: gradient of the result.
        isa: instruction set of ours.
    """
    torch = require_torch()

    def leaves(dtype: Any) -> list[Any]:
        return [None if v is None else torch.tensor(v, dtype=dtype, requires_grad=True) for v in values]

    poison(upstream.size, *upstream.shape)
    own = [None if v is None else parameter(v) for v in values]
    with using_isa(isa):
        got, got_gradients = ours(*own).detach().numpy(), gradients(ours, own, upstream)
    exact = theirs(*leaves(torch.float64)).detach().numpy()
    assert_as_good_as(got, theirs(*leaves(torch.float32)).detach().numpy(), exact)
    peer = torch_gradients(theirs, leaves(torch.float32), torch.tensor(upstream))
    true = torch_gradients(theirs, leaves(torch.float64), torch.tensor(upstream).double())
    for a, b, c in zip(got_gradients, peer, true, strict=True):
        assert a.shape == c.shape
        assert_as_good_as(a, b, c)
