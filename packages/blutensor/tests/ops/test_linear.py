"""linear and mlp against NumPy and PyTorch in float64, beside PyTorch in float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from layer_checks import (
    Array,
    assert_as_good_as,
    available_isas,
    first_gradients,
    gradients,
    layouts,
    normal,
    parameter,
    poison,
    require_torch,
    same_bits_for_any_threads,
    torch_gradients,
    using_isa,
)

import blutensor as bt
from blutensor import _operators
from blutensor.gradcheck import gradcheck
from blutensor.nn import functional as F

# (leading axes, K, N): around the tiles of the GEMM kernels, primes, empty.
SIZES = [
    ((), 5, 3),
    ((1,), 1, 1),
    ((13,), 31, 33),
    ((14,), 32, 32),
    ((2, 8), 63, 65),
    ((2, 3, 5), 97, 101),
    ((128,), 384, 96),
    ((0,), 4, 3),
    ((3, 0), 4, 3),
    ((3,), 0, 4),
    ((3,), 4, 0),
]


def torch_linear(x: Any, weight: Any, bias: Any = None, residual: Any = None) -> Any:
    torch = require_torch()
    y = torch.nn.functional.linear(x, weight, bias)
    return y if residual is None else y + residual


def torch_mlp(approximate: str) -> Callable[..., Any]:
    torch = require_torch()

    def mlp(x: Any, w1: Any, b1: Any, w2: Any, b2: Any, residual: Any) -> Any:
        hidden = torch.nn.functional.gelu(torch_linear(x, w1, b1), approximate=approximate)
        return torch_linear(hidden, w2, b2, residual)

    return mlp


def compare(ours: Callable[..., bt.Tensor], theirs: Callable[..., Any], values: list[Array | None]) -> None:
    """Result and all gradients by the error rule."""
    torch = require_torch()

    def leaves(dtype: Any) -> list[Any]:
        return [None if v is None else torch.tensor(v, dtype=dtype, requires_grad=True) for v in values]

    exact = theirs(*leaves(torch.float64)).detach()
    poison(exact.numel(), *(v.size for v in values if v is not None))
    own = [None if v is None else parameter(v) for v in values]
    got = ours(*own).detach().numpy()
    assert got.shape == tuple(exact.shape)
    assert_as_good_as(got, theirs(*leaves(torch.float32)).detach().numpy(), exact.numpy())
    upstream = normal(np.random.default_rng(9), *exact.shape)
    peer = torch_gradients(theirs, leaves(torch.float32), torch.tensor(upstream))
    true = torch_gradients(theirs, leaves(torch.float64), torch.tensor(upstream).double())
    for a, b, c in zip(gradients(ours, own, upstream), peer, true, strict=True):
        assert a.shape == c.shape
        assert_as_good_as(a, b, c)


@pytest.mark.parametrize("isa", available_isas())
@pytest.mark.parametrize("extras", ["plain", "bias", "bias and residual", "residual"])
@pytest.mark.parametrize(("leading", "k", "n"), SIZES)
def test_linear(leading: tuple[int, ...], k: int, n: int, extras: str, isa: str) -> None:
    rng = np.random.default_rng(1)
    bias = normal(rng, n) if "bias" in extras else None
    residual = normal(rng, *leading, n) if "residual" in extras else None
    with using_isa(isa):
        compare(F.linear, torch_linear, [normal(rng, *leading, k), normal(rng, n, k), bias, residual])


@pytest.mark.parametrize("approximate", ["tanh", "none"])
@pytest.mark.parametrize("extras", [True, False])
@pytest.mark.parametrize(("leading", "k", "n"), [s for s in SIZES if s[1]])
def test_mlp(leading: tuple[int, ...], k: int, n: int, extras: bool, approximate: str) -> None:
    rng = np.random.default_rng(2)
    hidden = 2 * k + 1
    values = [
        normal(rng, *leading, k),
        normal(rng, hidden, k, scale=k**-0.5),
        normal(rng, hidden) if extras else None,
        normal(rng, n, hidden, scale=hidden**-0.5),
        normal(rng, n) if extras else None,
        normal(rng, *leading, n) if extras else None,
    ]
    compare(lambda *a: F.mlp(*a, approximate=approximate), torch_mlp(approximate), values)


def test_mlp_is_linear_gelu_linear() -> None:
    rng = np.random.default_rng(3)
    x, w1, b1, w2, b2, r = (bt.asarray(normal(rng, *s)) for s in ((2, 5, 6), (7, 6), (7,), (4, 7), (4,), (2, 5, 4)))
    y, preactivation = _operators.mlp(x, w1, w2, b1, b2, r, "tanh")
    pre = F.linear(x, w1, b1)
    np.testing.assert_array_equal(preactivation.numpy(), pre.numpy())
    np.testing.assert_allclose(y.numpy(), F.linear(F.gelu(pre, "tanh"), w2, b2, r).numpy(), rtol=1e-5, atol=1e-5)


def test_a_gradient_through_the_preactivation_is_added() -> None:
    rng = np.random.default_rng(4)
    values = [rng.standard_normal(s) for s in ((3, 4), (5, 4), (2, 5))]
    gradcheck(lambda x, w1, w2: _operators.mlp(x, w1, w2), [parameter(v) for v in values])


def test_linear_has_second_derivatives() -> None:
    rng = np.random.default_rng(5)
    x, w, b = (parameter(rng.standard_normal(s)) for s in ((2, 3, 4), (5, 4), (5,)))

    def loss(x: bt.Tensor, w: bt.Tensor, b: bt.Tensor) -> bt.Tensor:
        y = F.linear(x, w, b)
        return (y * y * y).sum()

    gradcheck(first_gradients(loss), [x, w, b])


def test_mlp_refuses_second_derivatives() -> None:
    rng = np.random.default_rng(6)
    x, w1, w2 = (parameter(rng.standard_normal(s)) for s in ((3, 4), (5, 4), (2, 5)))
    (first,) = bt.grad([_operators.mlp(x, w1, w2)[0].sum()], [x], create_graph=True)
    with pytest.raises(NotImplementedError, match=r"\[mlp\] has no second derivative"):
        bt.grad([first.sum()], [x])


def test_every_layout_gives_the_same_values() -> None:
    rng = np.random.default_rng(7)
    x, w, r = normal(rng, 2, 9, 17), normal(rng, 5, 17), normal(rng, 2, 9, 5)
    bias = normal(rng, 5)
    exact = x.astype(np.float64) @ w.T + bias + r
    for x_name, x_view in layouts(x):
        for w_name, w_view in layouts(w):
            for r_name, r_view in layouts(r):
                for b_name, b_view in layouts(bias):
                    got = F.linear(x_view, w_view, b_view, r_view).numpy()
                    # 19 roundings of sums below 64
                    np.testing.assert_allclose(
                        got, exact, rtol=0, atol=19 * 64 * 2.0**-24, err_msg=f"{x_name}, {w_name}, {r_name}, {b_name}"
                    )


def test_gradients_take_upstream_gradients_of_any_layout() -> None:
    rng = np.random.default_rng(8)
    x, w, b = (parameter(rng.standard_normal(s)) for s in ((2, 3, 4), (5, 4), (5,)))
    upstream = rng.standard_normal((2, 3, 5))
    expected = None
    for _, view in layouts(upstream):
        got = [g.numpy() for g in bt.grad([F.linear(x, w, b)], [x, w, b], [view])]
        expected = expected or got
        for a, e in zip(got, expected, strict=True):
            np.testing.assert_allclose(a, e, rtol=1e-13, atol=1e-13)
    ones = bt.broadcast_to(bt.ones((), dtype="float64"), (2, 3, 5))
    (bias_grad,) = bt.grad([F.linear(x, w, b)], [b], [ones])
    np.testing.assert_array_equal(bias_grad.numpy(), np.full(5, 6.0))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bit(dtype: str) -> None:
    rng = np.random.default_rng(10)
    x, w, b, r = (bt.asarray(normal(rng, *s)).astype(dtype) for s in ((5, 200), (9, 200), (9,), (5, 9)))
    for t in (x, w, b, r):
        t.requires_grad = True
    exact_inputs = [parameter(t.detach().astype("float64").numpy()) for t in (x, w, b, r)]
    got, exact = F.linear(x, w, b, r), F.linear(*exact_inputs)
    assert_as_good_as(got.detach().astype("float32").numpy(), None, exact.detach().numpy(), dtype)
    got.backward(bt.ones((5, 9), dtype=dtype))
    exact.backward(bt.ones((5, 9), dtype="float64"))
    for ours, true in zip((x, w, b, r), exact_inputs, strict=True):
        assert ours.grad.dtype.name == dtype
        assert_as_good_as(ours.grad.astype("float32").numpy(), None, true.grad.numpy(), dtype)
    hidden = _operators.mlp(x.detach(), w.detach(), r.detach())
    true = _operators.mlp(*(t.detach() for t in (exact_inputs[0], exact_inputs[1], exact_inputs[3])))
    # The hidden activation is rounded on its way to the second product: two roundings relative to sums of about 100.
    np.testing.assert_allclose(hidden[0].astype("float64").numpy(), true[0].numpy(), rtol=0.02, atol=0.5)


def test_weight_gradients_accumulate_in_their_buffers() -> None:
    rng = np.random.default_rng(11)
    x1, x2 = normal(rng, 6, 4), normal(rng, 6, 4)
    w, b = parameter(normal(rng, 3, 4)), parameter(normal(rng, 3))
    for x in (x1, x2):
        F.linear(bt.asarray(x), w, b).sum().backward()
    np.testing.assert_allclose(w.grad.numpy(), np.tile((x1 + x2).sum(0), (3, 1)), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(b.grad.numpy(), np.full(3, 12, np.float32))


def test_a_weight_that_is_used_twice() -> None:
    rng = np.random.default_rng(12)
    x, w, b = (parameter(rng.standard_normal(s)) for s in ((3, 4), (4, 4), (4,)))
    gradcheck(lambda x, w, b: F.linear(F.linear(x, w, b), w, b), [x, w, b])


def test_frozen_weight_or_bias() -> None:
    rng = np.random.default_rng(13)
    x, w, b = (rng.standard_normal(s) for s in ((3, 4), (5, 4), (5,)))
    for wanted in range(1, 8):
        inputs = [parameter(v) if wanted >> i & 1 else bt.asarray(v) for i, v in enumerate((x, w, b))]
        gradcheck(F.linear, inputs)


def test_special_values_propagate() -> None:
    x = np.ones((2, 3), np.float32)
    x[0, 1] = np.nan
    x[1, 2] = np.inf
    y = F.linear(bt.asarray(x), bt.ones((4, 3)), bt.zeros((4,))).numpy()
    assert np.isnan(y[0]).all()
    assert np.isposinf(y[1]).all()


def test_same_bits_for_any_number_of_threads() -> None:
    rng = np.random.default_rng(14)
    values = [normal(rng, *s) for s in ((301, 130), (517, 130), (517,), (131, 517), (131,), (301, 131))]
    upstream = normal(rng, 301, 131)

    def compute() -> list[Array]:
        inputs = [parameter(v) for v in values]
        return [F.mlp(*inputs).detach().numpy(), *gradients(F.mlp, inputs, upstream)]

    same_bits_for_any_threads(compute)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda: F.linear(bt.ones((2, 3)), bt.ones((4, 5))),
            ValueError,
            r"\[linear\] expected weight of shape \(N, 3\) for x \(2, 3\), got \(4, 5\)",
        ),
        (
            lambda: F.linear(bt.ones((2, 3)), bt.ones((4, 3)), bt.ones((3,))),
            ValueError,
            r"expected bias of shape \(4,\), got \(3,\)",
        ),
        (
            lambda: F.linear(bt.ones((2, 3)), bt.ones((4, 3)), None, bt.ones((4,))),
            ValueError,
            r"expected residual of shape \(2, 4\)",
        ),
        (
            lambda: F.linear(bt.ones((2, 3)), bt.ones((4, 3), dtype="float64")),
            TypeError,
            "expected 'weight' of dtype float32",
        ),
        (
            lambda: F.linear(bt.ones((2, 3), dtype="int32"), bt.ones((4, 3), dtype="int32")),
            TypeError,
            "floating-point 'x'",
        ),
        (lambda: F.linear(bt.ones(()), bt.ones((4, 3))), ValueError, "got a 0-d tensor"),
        (
            lambda: F.mlp(bt.ones((2, 3)), bt.ones((4, 3)), None, bt.ones((4, 5)), None),
            ValueError,
            r"expected w2 of shape \(N, 4\)",
        ),
        (
            lambda: _operators.mlp(bt.ones((2, 3)), bt.ones((4, 3)), bt.ones((4, 4)), approximate="fast"),
            ValueError,
            "approximate",
        ),
    ],
)
def test_errors_name_what_is_wrong(call: Callable[[], object], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call()
