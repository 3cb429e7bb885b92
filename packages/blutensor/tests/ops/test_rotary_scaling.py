"""Scaled frequencies of rotary_embedding: against float64, and against what transformers has for its models."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from layer_checks import Array, assert_as_good_as, normal

import blutensor as bt
from blutensor.nn import RotaryScaling
from blutensor.nn import functional as F

LINEAR = RotaryScaling("linear", 4.0)
LLAMA3 = RotaryScaling("llama3", 8.0, original_context=64)  # short, so that few channels meet all three cases
SCALINGS = {
    "linear": LINEAR,
    "llama3": LLAMA3,
    "llama 3.1": RotaryScaling("llama3", 8.0, 1.0, 4.0, 8192),
    "llama 3.2": RotaryScaling("llama3", 32.0, 1.0, 4.0, 8192),
}
WIDTH, BASE = 64, 500000.0


def frequencies(scaling: RotaryScaling, width: int = WIDTH, base: float = BASE) -> Array:
    """In float64, case by case, as the papers have it."""
    plain = base ** (-np.arange(0, width, 2) / width)
    if scaling.kind == "linear":
        return plain / scaling.factor
    found = []
    for frequency in plain:
        length = 2 * math.pi / frequency
        if length < scaling.original_context / scaling.high_frequency_factor:
            found.append(frequency)
        elif length > scaling.original_context / scaling.low_frequency_factor:
            found.append(frequency / scaling.factor)
        else:
            low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
            smooth = (scaling.original_context / length - low) / (high - low)
            found.append((1 - smooth) * frequency / scaling.factor + smooth * frequency)
    return np.array(found)


def rotated(x: Array, positions: Array, frequency: Array) -> Array:
    """In the dtype of x and the frequencies."""
    angle = positions[..., None].astype(frequency.dtype) * frequency
    cos, sin = np.cos(angle).astype(x.dtype), np.sin(angle).astype(x.dtype)
    a, b = np.split(x, 2, -1)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


@pytest.mark.parametrize("name", SCALINGS)
def test_values_and_gradients(name: str) -> None:
    scaling, rng = SCALINGS[name], np.random.default_rng(1)
    x, upstream = normal(rng, 2, 3, 17, WIDTH), normal(rng, 2, 3, 17, WIDTH)
    positions = rng.integers(0, 9000, 17)
    tensor = bt.asarray(x).requires_grad_()
    ours = F.rotary_embedding(tensor, bt.asarray(positions), BASE, scaling)
    (ours * bt.asarray(upstream)).sum().backward()
    exact = frequencies(scaling)
    wide, narrow = rotated(x.astype(np.float64), positions, exact), rotated(x, positions, exact.astype(np.float32))
    assert ours.dtype is bt.float32
    assert_as_good_as(ours.detach().numpy(), narrow, wide)
    back = rotated(upstream.astype(np.float64), -positions, exact)  # a rotation's transpose turns back
    peer = rotated(upstream, -positions, exact.astype(np.float32))
    assert tensor.grad is not None
    assert_as_good_as(tensor.grad.numpy(), peer, back)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
def test_other_dtypes(dtype: str) -> None:
    x = bt.asarray(normal(np.random.default_rng(2), 5, WIDTH)).astype(dtype)
    ours = F.rotary_embedding(x, None, BASE, LLAMA3)
    exact = rotated(np.asarray(x, dtype=np.float64), np.arange(5), frequencies(LLAMA3))
    assert ours.dtype is x.dtype
    # One rounding of the result, beside which those of float32 inside are small.
    bound = {"float64": 2.0**-50, "bfloat16": 2.0**-8, "float16": 2.0**-10}[dtype]
    assert np.abs(np.asarray(ours, dtype=np.float64) - exact).max() <= bound * np.abs(exact).max()


def test_a_factor_of_one_changes_nothing() -> None:
    x = bt.asarray(normal(np.random.default_rng(3), 2, 9, WIDTH))
    plain = F.rotary_embedding(x, None, BASE).numpy()
    for scaling in (RotaryScaling("linear", 1.0), RotaryScaling("llama3", 1.0)):
        # The fused operator's table is off by less than two roundings of a sine.
        np.testing.assert_allclose(F.rotary_embedding(x, None, BASE, scaling).numpy(), plain, rtol=0, atol=2e-6)


def test_gradcheck_layouts_and_capture() -> None:
    x = bt.asarray(np.random.default_rng(4).standard_normal((2, 3, 4))).requires_grad_()
    bt.gradcheck(lambda t: F.rotary_embedding(t, None, 100.0, LLAMA3), [x])
    turned = bt.asarray(normal(np.random.default_rng(5), 6, 3, 8)).permute_dims(1, 0, 2)
    assert np.array_equal(
        F.rotary_embedding(turned, None, BASE, LINEAR).numpy(),
        F.rotary_embedding(turned.contiguous(), None, BASE, LINEAR).numpy(),
    )
    step = bt.capture(lambda t, position: F.rotary_embedding(t, position, BASE, LLAMA3))
    for position in range(4):
        given = bt.asarray(normal(np.random.default_rng(position), 2, 1, 8)), bt.asarray(np.int64(position))
        assert np.array_equal(step(*given).numpy(), F.rotary_embedding(*given, BASE, LLAMA3).numpy())
    assert step.state == "replaying"


@pytest.mark.torch
@pytest.mark.parametrize("name", SCALINGS)
def test_transformers_turns_by_the_same_frequencies(torch: Any, name: str) -> None:
    modeling = pytest.importorskip("transformers.models.llama.modeling_llama", reason="transformers is not installed")
    scaling = SCALINGS[name]
    parameters = {"rope_type": scaling.kind, "rope_theta": BASE, "factor": scaling.factor}
    if scaling.kind == "llama3":
        parameters |= {
            "low_freq_factor": scaling.low_frequency_factor,
            "high_freq_factor": scaling.high_frequency_factor,
            "original_max_position_embeddings": scaling.original_context,
        }
    config = modeling.LlamaConfig(
        hidden_size=4 * WIDTH, num_attention_heads=4, max_position_embeddings=16384, rope_parameters=parameters
    )
    theirs = modeling.LlamaRotaryEmbedding(config)
    np.testing.assert_allclose(theirs.inv_freq.numpy(), frequencies(scaling), rtol=2e-6)
    rng = np.random.default_rng(6)
    x, positions = normal(rng, 2, 4, 12, WIDTH), np.sort(rng.integers(0, 9000, 12))
    cos, sin = theirs(torch.tensor(x), torch.tensor(positions)[None])
    expected, _ = modeling.apply_rotary_pos_emb(torch.tensor(x), torch.tensor(x), cos, sin)
    ours = F.rotary_embedding(bt.asarray(x), bt.asarray(positions), BASE, scaling)
    wide = rotated(x.astype(np.float64), positions, frequencies(scaling))
    assert_as_good_as(ours.numpy(), expected.numpy(), wide)


@pytest.mark.parametrize(
    ("attempt", "error", "message"),
    [
        (lambda: RotaryScaling("yarn", 2.0), bt.ShapeError, "expected kind 'linear' or 'llama3', got 'yarn'"),  # type: ignore[arg-type]
        (lambda: RotaryScaling("linear", 0.5), bt.ShapeError, "expected a finite factor of at least 1, got 0.5"),
        (lambda: RotaryScaling("linear", math.inf), bt.ShapeError, "expected a finite factor of at least 1, got inf"),
        (lambda: RotaryScaling("linear", "2"), bt.DTypeError, "expected a number for factor, got '2'"),  # type: ignore[arg-type]
        (lambda: RotaryScaling("llama3", 8.0, 4.0, 1.0), bt.ShapeError, "low_frequency_factor below the high"),
        (lambda: RotaryScaling("llama3", 8.0, original_context=0), bt.ShapeError, "original_context above 0, got 0"),
        (lambda: F.rotary_embedding(bt.ones((2, 4)), scaling={"factor": 2}), bt.DTypeError, "expected a RotaryScaling"),  # type: ignore[arg-type]
        (lambda: F.rotary_embedding(bt.ones((2, 3)), scaling=LINEAR), bt.ShapeError, "an even D, got float32"),
        (lambda: F.rotary_embedding(bt.ones((2, 4), dtype="int64"), scaling=LINEAR), bt.DTypeError, "floating-point x"),
    ],
)
def test_mistakes(attempt: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        attempt()
