"""The Llama-style model on the GPU: the CPU's losses, captured and eager with the same bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from llama import Llama
from models import same_bits, train_step, weights
from test_llama import text

import blutensor as bt
from blutensor import optim


def run(device: str, captured: bool, dtype: str = "float32", steps: int = 12) -> tuple[list[float], dict[str, Any]]:
    bt.manual_seed(7)
    model = Llama(channels=128, heads=4, key_heads=2, hidden=256, dtype=dtype).to(device=device)
    step: Any = train_step(model, optim.AdamW(model.named_parameters(), lr=1e-2))
    if captured:
        step = bt.capture(step)
    losses = [step(*(t.to(device) for t in text(s))).item() for s in range(steps)]
    return losses, weights(model)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_captured_and_eager_have_the_same_bits(dtype: str) -> None:
    eager, captured = run("cuda", False, dtype), run("cuda", True, dtype)
    assert eager[0] == captured[0]
    if dtype == "float32":
        same_bits(eager[1], captured[1])
    assert captured[0][-1] < captured[0][0]


def test_losses_of_the_cpu() -> None:
    device, host = run("cuda", True)[0], run("cpu", False)[0]
    # Rounding errors of one step, some 1e-6, grow as training goes on: twelve steps at a rate of 1e-2.
    np.testing.assert_allclose(device[:3], host[:3], rtol=1e-5)
    np.testing.assert_allclose(device, host, rtol=2e-2)
