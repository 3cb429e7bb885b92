"""A multilayer perceptron and a small recurrent network train eagerly and captured: nothing assumes a transformer."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import blutensor as bt
from blutensor import nn
from blutensor.nn import functional as F

STEPS = 40


class Perceptron(nn.Module):
    """Two inputs to the exclusive or of their signs."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 16)
        self.second = nn.Linear(16, 2)

    def forward(self, x: bt.Tensor) -> bt.Tensor:
        """[B, 2] to logits [B, 2]."""
        return self.second(F.gelu(self.first(x)))


class Recurrent(nn.Module):
    """An Elman network that says after every bit whether the number of ones so far is odd."""

    def __init__(self, channels: int = 16) -> None:
        super().__init__()
        self.channels = channels
        self.input = nn.Embedding(2, channels)
        self.state = nn.Linear(channels, channels)
        self.output = nn.Linear(channels, 2)

    def forward(self, bits: bt.Tensor) -> bt.Tensor:
        """int32 [B, T] to logits [B, T, 2]."""
        batch, length = bits.shape
        state = bt.zeros((batch, self.channels), dtype=bt.float32)
        steps = []
        for position in range(length):
            state = bt.tanh(self.input(bits[:, position]) + self.state(state))
            steps.append(self.output(state).reshape((batch, 1, 2)))
        return bt.concat(steps, axis=1)


def perceptron_batch(step: int) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(step).standard_normal((64, 2)).astype(np.float32)
    return x, (x[:, 0] * x[:, 1] > 0).astype(np.int32)


def recurrent_batch(step: int) -> tuple[np.ndarray, np.ndarray]:
    bits = np.random.default_rng(step).integers(0, 2, (64, 4)).astype(np.int32)
    return bits, (np.cumsum(bits, axis=1) % 2).astype(np.int32)


def losses(make: Callable[[], nn.Module], batch: Callable[[int], tuple], *, captured: bool, adam: bool) -> list[float]:
    bt.manual_seed(5)
    model = make()
    named = list(model.named_parameters())
    optimizer = bt.optim.AdamW(named, lr=0.03) if adam else bt.optim.SGD(named, lr=0.3, momentum=0.9)

    def step(x: bt.Tensor, y: bt.Tensor) -> bt.Tensor:
        optimizer.zero_grad()
        logits = model(x)
        loss = F.cross_entropy(logits.reshape((-1, 2)), y.reshape((-1,)))
        loss.backward()
        optimizer.step()
        return loss.detach()

    function = bt.ProgramFamily().capture(step, name="step") if captured else step
    found = []
    for number in range(STEPS):
        x, y = batch(number)
        found.append(function(bt.asarray(x), bt.asarray(y)).item())
    if captured:
        assert function.state == "replaying"
    return found


@pytest.mark.parametrize("adam", [True, False])
@pytest.mark.parametrize(("make", "batch"), [(Perceptron, perceptron_batch), (Recurrent, recurrent_batch)])
def test_trains_eagerly_and_captured_with_the_same_bits(
    make: Callable[[], nn.Module], batch: Callable[[int], tuple], adam: bool
) -> None:
    eager = losses(make, batch, captured=False, adam=adam)
    assert losses(make, batch, captured=True, adam=adam) == eager
    assert np.mean(eager[-5:]) < 0.8 * np.mean(eager[:5])
