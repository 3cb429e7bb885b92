"""Outputs that are made anew in backward instead of kept: layer_norm's."""

from __future__ import annotations

import numpy as np
import pytest

import blualloc
import blutensor as bt
from blutensor.nn import functional as F

ROWS, CHANNELS, OUTPUTS = 256, 128, 32


def leaves() -> list[bt.Tensor]:
    rng = np.random.default_rng(3)
    shapes = ((ROWS, CHANNELS), (CHANNELS,), (CHANNELS,), (OUTPUTS, CHANNELS))
    tensors = [bt.asarray(rng.standard_normal(shape, np.float32)) for shape in shapes]
    for tensor in tensors:
        tensor.requires_grad = True
    return tensors


def normalised(x: bt.Tensor, gain: bt.Tensor, bias: bt.Tensor) -> bt.Tensor:
    return F.layer_norm(x, (CHANNELS,), gain, bias)


def test_the_output_is_not_kept_for_backward() -> None:
    x, gain, bias, weight = leaves()
    before = blualloc.stats().live_bytes
    y = F.linear(normalised(x, gain, bias), weight)
    kept = blualloc.stats().live_bytes - before - y.nbytes
    assert kept < x.nbytes / 2  # mean and rstd, and the nodes
    held = F.linear(bt.expand_dims(normalised(x, gain, bias), 0), weight)  # a view's consumer keeps its memory
    assert blualloc.stats().live_bytes - before - y.nbytes - kept - held.nbytes >= x.nbytes


def test_gradients_have_the_bits_of_a_kept_output() -> None:
    results = []
    for keep in (False, True):
        x, gain, bias, weight = leaves()
        y = normalised(x, gain, bias)
        if keep:
            y = bt.expand_dims(y, 0)
        bt.sum(bt.square(F.linear(y, weight))).backward()
        results.append([t.grad.numpy().tobytes() for t in (x, gain, bias, weight)])
    assert results[0] == results[1]


def test_a_captured_step_calls_it_again() -> None:
    x, gain, bias, weight = leaves()
    optimizer = bt.optim.SGD([x, gain, bias, weight], lr=0.1)

    def step(scale: bt.Tensor) -> bt.Tensor:
        optimizer.zero_grad()
        loss = bt.sum(F.linear(normalised(x, gain, bias), weight) * scale)
        loss.backward()
        return loss.detach()

    captured = bt.capture(step)
    for _ in range(3):
        captured(bt.asarray(np.float32(2)))
    assert str(captured.program).count(" layer_norm(") == 2


def test_the_graph_can_be_kept_and_says_when_it_is_gone() -> None:
    x, gain, bias, weight = leaves()
    loss = bt.sum(F.linear(normalised(x, gain, bias), weight))
    loss.backward(retain_graph=True)
    first = weight.grad.numpy().copy()
    loss.backward()
    assert np.array_equal(weight.grad.numpy(), 2 * first)
    with pytest.raises(RuntimeError, match="already used and freed"):
        loss.backward()
