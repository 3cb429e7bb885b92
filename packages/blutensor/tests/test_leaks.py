"""Nothing grows: a thousand captures, and thousands of eager steps, take what the first ones took."""

from __future__ import annotations

import gc
import resource
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from models import MLP

import blualloc
import blutensor as bt
from blutensor import optim

RESIDENT_BYTES = 2 << 20
"""So much the process may grow by itself: the heap's fragments. A leak of 2 KiB for each of 1000 rounds is more."""


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def measured() -> tuple[int, int, int]:
    """What tensors hold, live nodes of the graph, and memory of the process."""
    gc.collect()
    return blualloc.stats().live_bytes, bt.graph_stats()["live_nodes"], resident_bytes()


def check_flat(work: Callable[[], None], warm_up: int, rounds: int) -> None:
    """``work`` is done ``rounds`` times after the first ``warm_up``, without growth."""
    for _ in range(warm_up):
        work()
    live, nodes, resident = measured()
    for _ in range(rounds):
        work()
    after = measured()
    assert after[:2] == (live, nodes)
    assert after[2] - resident <= RESIDENT_BYTES


@pytest.mark.slow
def test_a_thousand_captures() -> None:
    x = bt.ones((8, 13))
    model = MLP(p=0.0)
    optimizer = optim.AdamW(model.parameters(), lr=0.01)
    targets = bt.asarray(np.arange(8) % 7)

    def step(t: bt.Tensor) -> bt.Tensor:
        loss = model.loss(t, targets)
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()
        return loss

    def work() -> None:
        captured = bt.capture(step)
        for _ in range(3):
            captured(x)

    check_flat(work, 100, 1000)


@pytest.mark.slow
def test_captures_anew_for_new_shapes() -> None:
    captured = bt.capture(lambda t: (t * 2.0).sum(), max_programs=4)
    size = 0

    def work() -> None:
        nonlocal size
        size += 1
        for _ in range(3):
            captured(bt.ones((1 + size % 50,)))

    with pytest.warns(UserWarning, match="captured anew"):
        check_flat(work, 150, 500)


def test_captures_that_fail() -> None:
    x = bt.ones(1000)

    def step(t: bt.Tensor) -> bt.Tensor:
        (t * 2.0).tolist()
        return t

    captured = bt.capture(step)

    def work() -> None:
        with pytest.raises(bt.CaptureError):
            captured(x)

    check_flat(work, 50, 300)


@pytest.mark.slow
def test_eager_steps() -> None:
    model = MLP(p=0.1)
    optimizer = optim.AdamW(model.parameters(), lr=0.01)
    x, targets = bt.ones((8, 13)), bt.asarray(np.arange(8) % 7)

    def work() -> None:
        loss = model.loss(x, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        bt.default_generator.advance()

    check_flat(work, 200, 4096)


def test_errors() -> None:
    x = bt.ones((1000,)).requires_grad_()

    def work() -> None:
        with pytest.raises(ValueError, match=r"\[add\]"):
            x + bt.ones((3,))
        y = (x * 2.0).sum()
        y.backward()
        with pytest.raises(bt.AutogradError):
            y.backward()
        x.grad = None

    check_flat(work, 50, 500)
