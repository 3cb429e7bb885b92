"""Gradients that the operator table cannot draw inputs for, second derivatives, and decompositions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import blutensor as bt


def leaf(*shape: int, seed: int = 1) -> bt.Tensor:
    t = bt.asarray(np.random.default_rng(seed).standard_normal(shape))
    t.requires_grad = True
    return t


def test_where() -> None:
    condition = bt.asarray(np.random.default_rng(2).integers(0, 2, (3, 1)).astype(bool))
    bt.gradcheck(lambda a, b: bt.where(condition, a, b), [leaf(3, 4), leaf(4, seed=3)])


def test_concat_and_split() -> None:
    bt.gradcheck(lambda a, b: bt.concat([a, bt.broadcast_to(b, (2, 4)), a], 0), [leaf(3, 4), leaf(4, seed=3)])
    bt.gradcheck(lambda a: bt.split(a, (1, 3), 1), [leaf(3, 4)])


def test_dropout() -> None:
    def seeded(x: bt.Tensor) -> bt.Tensor:
        bt.manual_seed(4)
        return bt.dropout(x, 0.3)

    bt.gradcheck(seeded, [leaf(5, 7)])


def test_indexing() -> None:
    bt.gradcheck(lambda x: x[1:, ::-2, None] * x[0, 1], [leaf(4, 5)])


SECOND: dict[str, Callable[[bt.Tensor], bt.Tensor]] = {
    "tanh": bt.tanh,
    "erf": bt.erf,
    "exp times square": lambda x: bt.exp(x) * bt.square(x),
    "sqrt": lambda x: bt.sqrt(bt.square(x) + 1.0),
    "rsqrt": lambda x: bt.rsqrt(bt.square(x) + 1.0),
    "log of a quotient": lambda x: bt.log((bt.square(x) + 2.0) / (bt.abs(x) + 1.0)),
    "pow of a view": lambda x: x.T[1:, ::2].reshape(-1) ** 3.0,
    "max": lambda x: bt.max(x, 0) * x,
    "mean and broadcast": lambda x: bt.square(x - bt.mean(x, 1, True)),
    "reciprocal": lambda x: bt.reciprocal(bt.square(x) + 1.0),
}


@pytest.mark.parametrize("name", SECOND)
def test_second_derivatives(name: str) -> None:
    function = SECOND[name]

    def gradient(x: bt.Tensor) -> bt.Tensor:
        with bt.enable_grad():
            (result,) = bt.grad([bt.sum(function(x))], [x], create_graph=True)
        return result if bt.is_grad_enabled() else result.detach()

    # Central differences of a gradient, not of a value: an error of 1e-16 / 1e-6 in each term, and sums of a dozen of
    # them.
    bt.gradcheck(gradient, [leaf(3, 4)], atol=1e-6)


DECOMPOSED: dict[str, Callable[[bt.Tensor], bt.Tensor]] = {
    "gelu": bt.gelu,
    "gelu tanh": lambda x: bt.gelu(x, "tanh"),
    "mean": lambda x: bt.mean(x, (0, -1), True),
}


@pytest.mark.parametrize("name", DECOMPOSED)
def test_decomposed_form_computes_the_same(name: str) -> None:
    function, x = DECOMPOSED[name], leaf(4, 5, 6).detach()
    expected = function(x).numpy()
    decomposed = bt.capture(function, level="primitive")
    for _ in range(3):  # recorded twice, then replayed
        np.testing.assert_allclose(decomposed(x).numpy(), expected, rtol=1e-13, atol=1e-14)
    assert f"= {name.split()[0]}(" not in str(decomposed.program)


def test_decomposed_dropout_draws_the_same_mask() -> None:
    x = leaf(40, 50).detach().astype("float32")
    bt.manual_seed(3)
    expected = bt.dropout(x, 0.3).numpy().copy()
    decomposed = bt.capture(lambda t: bt.dropout(t, 0.3), level="primitive")
    for _ in range(3):
        bt.manual_seed(3)
        np.testing.assert_array_equal(decomposed(x).numpy(), expected)
