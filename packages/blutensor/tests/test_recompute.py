"""Recompute: the bits of the plain computation, with less memory held."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import blualloc
import blutensor as bt
from blutensor import nn


def block(x: bt.Tensor, model: nn.Module) -> bt.Tensor:
    y = nn.functional.dropout(bt.tanh(model(x)), 0.5)
    return nn.functional.dropout(y * y, 0.3) + x


@pytest.mark.parametrize("first_requires_grad", [True, False])
def test_recompute_gives_the_same_bits(first_requires_grad: bool) -> None:
    """Dropout included: the second pass draws the bits of the first, and what comes after it draws its own."""
    model = nn.Linear(16, 16)
    values = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)

    def run(recomputed: bool) -> list[bytes]:
        bt.manual_seed(3)
        model.zero_grad(set_to_none=True)
        x = bt.asarray(values.copy())
        x.requires_grad = first_requires_grad
        y = x
        for _ in range(3):
            y = bt.recompute(block, y, model) if recomputed else block(y, model)
        y = nn.functional.dropout(y, 0.1)
        y.sum().backward()
        after = bt.normal((4,))
        found = [y.detach(), after, *(p.grad for p in model.parameters())]
        if first_requires_grad:
            found.append(x.grad)
        return [t.numpy().tobytes() for t in found if t is not None]

    assert run(True) == run(False)


def test_recompute_keeps_less() -> None:
    def peak(recomputed: bool) -> int:
        x = bt.ones((64, 1024)).requires_grad_()

        def part(x: bt.Tensor) -> bt.Tensor:
            for _ in range(8):
                x = bt.tanh(x)
            return x

        gc.collect()
        before = blualloc.stats().live_bytes
        y = x
        for _ in range(4):
            y = bt.recompute(part, y) if recomputed else part(y)
        held = blualloc.stats().live_bytes - before
        y.sum().backward()
        return held

    assert peak(True) <= 4 * 64 * 1024 * 4 + 4096
    assert peak(False) == 32 * 64 * 1024 * 4


def test_recompute_without_gradients() -> None:
    x = bt.ones(1).requires_grad_()
    with bt.no_grad():
        assert not bt.recompute(lambda t: t * 2, x).requires_grad
    a, b = bt.recompute(lambda t: (t * 2, t), x)
    assert a.requires_grad
    assert b.requires_grad
    (a + b * 0.5).backward()


def test_an_exception_in_the_second_pass_leaves_the_random_numbers_where_they_were() -> None:
    calls: list[int] = []

    def fails_again(x: bt.Tensor) -> bt.Tensor:
        calls.append(1)
        if len(calls) == 2:
            raise ZeroDivisionError("second pass")
        return nn.functional.dropout(x, 0.5)

    y = bt.recompute(fails_again, bt.ones(3).requires_grad_())
    nn.functional.dropout(bt.ones(3), 0.5)
    op_id = bt.default_generator.op_id
    with pytest.raises(ZeroDivisionError, match="second pass"):
        y.sum().backward()
    assert bt.default_generator.op_id == op_id == 2
