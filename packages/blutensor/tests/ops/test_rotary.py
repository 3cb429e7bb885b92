"""rotary_embedding against float64, beside the formula in float32 as PyTorch computes it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from layer_checks import (
    ROUNDOFF,
    Array,
    assert_as_good_as,
    available_isas,
    gradients,
    layouts,
    normal,
    parameter,
    poison,
    require_torch,
    same_bits_for_any_threads,
    using_isa,
)

import blutensor as bt
from blutensor import _operators
from blutensor.nn import functional as F

# (leading axes, T, D): odd numbers of pairs, around vectors, no rows.
SIZES = [
    ((), 1, 2),
    ((2,), 3, 6),
    ((2, 3), 5, 14),
    ((1, 2), 7, 16),
    ((2,), 17, 34),
    ((1, 3), 33, 64),
    ((2,), 0, 8),
    ((), 4, 0),
]


def rotated(x: Array, positions: Array | None = None, base: float = 10000.0) -> Array:
    """In x's dtype, as `transformers` has it: frequencies and angles rounded too."""
    half = x.shape[-1] // 2
    kind = x.dtype.type
    if positions is None:
        positions = np.arange(x.shape[-2])
    frequency = (1.0 / base ** (np.arange(half) * 2.0 / max(x.shape[-1], 1))).astype(kind)
    angle = positions[..., None].astype(kind) * frequency
    cos, sin = np.cos(angle), np.sin(angle)
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


@pytest.mark.parametrize("isa", available_isas())
@pytest.mark.parametrize(("leading", "steps", "width"), SIZES)
def test_values_and_gradients(leading: tuple[int, ...], steps: int, width: int, isa: str) -> None:
    rng = np.random.default_rng(1)
    x, upstream = normal(rng, *leading, steps, width), normal(rng, *leading, steps, width)
    poison(x.size)
    with using_isa(isa):
        got = F.rotary_embedding(bt.asarray(x)).numpy()
        gradient = gradients(F.rotary_embedding, [parameter(x)], upstream)[0]
    exact = rotated(x.astype(np.float64))
    assert_as_good_as(got, rotated(x), exact)
    # The gradient turns back: by minus the positions.
    true = rotated(upstream.astype(np.float64), -np.arange(steps))
    assert_as_good_as(gradient, rotated(upstream, -np.arange(steps)), true)


@pytest.mark.parametrize("isa", available_isas())
@pytest.mark.parametrize("far", [0, 1000, 131072, 2**31 - 5])
def test_far_positions_keep_float32_accuracy(far: int, isa: str) -> None:
    """Angles are formed in double: unlike the float32 formula, errors do not grow with the position."""
    x = normal(np.random.default_rng(2), 3, 5, 128)
    positions = np.arange(far, far + 5)
    with using_isa(isa):
        got = F.rotary_embedding(bt.asarray(x), bt.asarray(positions)).numpy()
    exact = rotated(x.astype(np.float64), positions)
    # Two products and a sum, each rounded, of values up to 4 or so; cosines are off by half a rounding and 2e-9.
    assert np.abs(got - exact).max() <= 4 * ROUNDOFF["float32"] * np.abs(x).max()


def test_positions_broadcast() -> None:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((2, 3, 4, 8))
    for shape, kind in (
        ((4,), np.int64),
        ((2, 1, 4), np.int32),
        ((3, 1), np.int64),
        ((), np.int32),
        ((2, 3, 4), np.int64),
    ):
        positions = rng.integers(-50, 50, shape).astype(kind)
        got = F.rotary_embedding(bt.asarray(x), bt.asarray(positions), 500.0)
        np.testing.assert_allclose(got.numpy(), rotated(x, positions, 500.0), rtol=1e-12, atol=1e-13)
    strided = bt.asarray(np.arange(8))[::2]
    got = F.rotary_embedding(bt.asarray(x), strided).numpy()
    np.testing.assert_allclose(got, rotated(x, np.arange(0, 8, 2)), rtol=1e-12, atol=1e-13)


def test_heads_inside_are_the_same_as_heads_outside() -> None:
    x = normal(np.random.default_rng(4), 2, 5, 3, 16)  # [B, T, H, D]
    inside = F.rotary_embedding(bt.asarray(x), bt.arange(5).reshape(5, 1))
    outside = F.rotary_embedding(bt.asarray(x).permute_dims(0, 2, 1, 3))
    np.testing.assert_array_equal(inside.numpy(), outside.numpy().transpose(0, 2, 1, 3))


def test_every_layout_gives_the_same_bits() -> None:
    x = normal(np.random.default_rng(5), 3, 5, 12)
    results = {F.rotary_embedding(t).numpy().tobytes() for _, t in layouts(x)}
    assert len(results) == 1


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bit_is_rounded_once(dtype: str) -> None:
    x = bt.asarray(normal(np.random.default_rng(6), 2, 9, 32)).astype(dtype)
    got = F.rotary_embedding(x)
    assert got.dtype.name == dtype
    exact = rotated(x.astype("float64").numpy())
    # The float32 result of two products is rounded once more.
    error = np.abs(got.astype("float64").numpy() - exact)
    assert error.max() <= (ROUNDOFF[dtype] + 4 * ROUNDOFF["float32"]) * np.abs(exact).max()


def test_special_values_stay_in_their_pair() -> None:
    x = np.ones((3, 4), np.float32)
    x[1, 0], x[2, 3] = np.nan, np.inf
    y = F.rotary_embedding(bt.asarray(x)).numpy()
    assert np.isnan(y[1, [0, 2]]).all()
    assert np.isfinite(y[1, [1, 3]]).all()
    assert not np.isfinite(y[2, [1, 3]]).any()
    np.testing.assert_array_equal(y[0], x[0])  # position 0 turns nothing


def test_it_turns_back() -> None:
    x = np.random.default_rng(7).standard_normal((4, 6))
    there = _operators.rotary_embedding(bt.asarray(x), base=50.0)
    back = _operators.rotary_embedding(there, base=50.0, inverse=True)
    np.testing.assert_allclose(back.numpy(), x, rtol=1e-14, atol=1e-15)


def test_scores_depend_on_distance_alone() -> None:
    q, k = np.random.default_rng(8).standard_normal((2, 1, 64))

    def score(i: int, j: int) -> Any:
        turned = [F.rotary_embedding(bt.asarray(v), bt.asarray([p])).numpy() for v, p in ((q, i), (k, j))]
        return (turned[0] * turned[1]).sum()

    np.testing.assert_allclose(score(7, 3), score(1007, 1003), rtol=1e-9)


def test_same_bits_for_any_number_of_threads() -> None:
    x = normal(np.random.default_rng(9), 4, 300, 66)
    same_bits_for_any_threads(lambda: [F.rotary_embedding(bt.asarray(x)).numpy()])


def test_transformers_formula() -> None:
    torch = require_torch()
    x = normal(np.random.default_rng(10), 1, 2, 6, 8)
    t = torch.tensor(x)
    frequency = 1.0 / (10000.0 ** (torch.arange(0, 8, 2, dtype=torch.float32) / 8))
    angle = torch.arange(6, dtype=torch.float32)[:, None] * frequency
    cos, sin = (torch.cat([f(angle)] * 2, -1) for f in (torch.cos, torch.sin))
    theirs = t * cos + torch.cat([-t[..., 4:], t[..., :4]], -1) * sin
    np.testing.assert_allclose(F.rotary_embedding(bt.asarray(x)).numpy(), theirs.numpy(), rtol=1e-5, atol=1e-6)


def test_bad_input() -> None:
    for x, error, message in (
        (bt.zeros((2, 3)), bt.ShapeError, r"expected an even D of at most 512, got shape \(2, 3\)"),
        (bt.zeros((2, 514)), bt.ShapeError, "even D of at most 512"),
        (bt.zeros(4), bt.ShapeError, r"expected x \[\.\.\., T, D\]"),
        (bt.zeros((2, 4), dtype="int64"), bt.DTypeError, "floating-point x"),
    ):
        with pytest.raises(error, match=message):
            F.rotary_embedding(x)
    x = bt.zeros((2, 3, 4))
    with pytest.raises(bt.ShapeError, match=r"positions that broadcast to \(2, 3\)"):
        F.rotary_embedding(x, bt.arange(2))
    with pytest.raises(bt.DTypeError, match="positions of dtype int32 or int64"):
        F.rotary_embedding(x, bt.zeros(3))
    with pytest.raises(bt.ShapeError, match="positive base"):
        F.rotary_embedding(x, base=0.0)
