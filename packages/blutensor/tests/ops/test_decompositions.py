"""Composite operators of the neural-network folders in their decomposed form: the same mathematics from primitives."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import blutensor as bt
from blutensor import _operators
from blutensor.nn import functional as F

rng = np.random.default_rng(1)


def doubles(*shape: int) -> bt.Tensor:
    return bt.asarray(rng.standard_normal(shape))


X, W, B, R, W2, B2 = doubles(2, 3, 5), doubles(7, 5), doubles(7), doubles(2, 3, 7), doubles(5, 7), doubles(5)
TARGETS = bt.asarray(np.array([0, 6, -100, 2, 1, 3]))

CASES: dict[str, tuple[str, Callable[..., bt.Tensor], list[bt.Tensor]]] = {
    "linear": ("linear", F.linear, [X, W]),
    "linear with bias and residual": ("linear", F.linear, [X, W, B, R]),
    "mlp": ("mlp", lambda x, w1, b1, w2, b2, r: F.mlp(x, w1, b1, w2, b2, r), [X, W, B, W2, B2, X]),
    "layer_norm": ("layer_norm", lambda x, w, b: F.layer_norm(x, 5, w, b), [X, B2, doubles(5)]),
    "layer_norm over two axes": ("layer_norm", lambda x: _operators.layer_norm(x, num_axes=2)[0], [X]),
    "linear_cross_entropy": (
        "linear_cross_entropy",
        lambda x, w, t: F.linear_cross_entropy(x, w, t),
        [doubles(6, 5), W, TARGETS],
    ),
    "linear_cross_entropy of padded classes": (
        "linear_cross_entropy",
        lambda x, w, t: F.linear_cross_entropy(x, w, t, num_classes=7),
        [doubles(6, 5), doubles(9, 5), TARGETS],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_decomposed_form_computes_the_same(case: str) -> None:
    name, function, inputs = CASES[case]
    expected = function(*inputs).numpy()
    decomposed = bt.capture(function, level="primitive")
    for _ in range(3):  # recorded twice, then replayed
        np.testing.assert_allclose(decomposed(*inputs).numpy(), expected, rtol=1e-12, atol=1e-12)
    assert f" {name}(" not in str(decomposed.program)
    assert f"= {name}" not in str(decomposed.program)


@pytest.mark.parametrize("case", CASES)
def test_captured_form_gives_the_same_bits(case: str) -> None:
    name, function, inputs = CASES[case]
    expected = function(*inputs).numpy()
    captured = bt.capture(function)
    for _ in range(3):
        np.testing.assert_array_equal(captured(*inputs).numpy(), expected)
    assert name in str(captured.program)
