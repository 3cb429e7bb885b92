"""Whole training steps of a small GPT on the device, in every precision, beside the same steps on the cpu."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))
from models import Transformer, batches, bits, train_step

import blutensor as bt
from blutensor import optim

STEPS = 12
PRECISIONS = {"fp32": ("float32", "ieee"), "tf32": ("float32", "tf32"), "bf16": ("bfloat16", "ieee")}


def run(
    precision: str, device: str, wrap: Callable[[Any], Any] = lambda step: step, dropout: float = 0.1
) -> tuple[list[float], dict[str, bytes]]:
    """Losses of steps over different batches, and the bits of parameters and optimizer after them."""
    dtype, math = PRECISIONS[precision]
    bt.set_float32_math(math)
    bt.manual_seed(7)
    model = Transformer(p=dropout).to(device=device)
    masters = {name: p.detach() for name, p in model.named_parameters()} if dtype == "bfloat16" else None
    model.to(dtype)
    optimizer = optim.AdamW(model.named_parameters(), lr=3e-3, weight_decay=0.01, masters=masters)
    step = wrap(train_step(model, optimizer))
    losses = [step(*(t.to(device) for t in batch)).item() for batch in batches("transformer", STEPS, size=8)]
    state = model.state_dict() | optimizer.state_dict()
    return losses, {name: bits(t.cpu()) for name, t in state.items()}


@pytest.mark.parametrize("precision", PRECISIONS)
def test_losses_are_the_cpus(precision: str) -> None:
    """The same weights, batches and dropout masks; the gap is what the precision rounds, as Adam amplifies it."""
    losses, _ = run(precision, "cuda")
    expected, _ = run(precision, "cpu")
    assert losses[-1] < losses[0]
    np.testing.assert_allclose(losses, expected, rtol={"fp32": 1e-4, "tf32": 3e-3, "bf16": 1e-2}[precision])


@pytest.mark.parametrize("precision", PRECISIONS)
def test_captured_steps_have_the_bits_of_eager_ones(precision: str) -> None:
    assert run(precision, "cuda", bt.capture) == run(precision, "cuda")


def test_bfloat16_parameters_are_their_rounded_masters() -> None:
    _, state = run("bf16", "cuda")
    masters = {name.removeprefix("master."): value for name, value in state.items() if name.startswith("master.")}
    assert masters
    for name, value in masters.items():
        exact = bt.asarray(np.frombuffer(value, np.float32).copy())
        assert bits(exact.astype("bfloat16")) == state[name]
