"""layer_norm against float64, beside PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from layer_checks import (
    Array,
    assert_as_good_as,
    available_isas,
    check_norm,
    gradients,
    layouts,
    normal,
    parameter,
    require_torch,
    same_bits_for_any_threads,
    using_isa,
)

import blutensor as bt
from blutensor import _operators
from blutensor.gradcheck import gradcheck
from blutensor.nn import functional as F

# (rows, columns): around vectors (8, 16) and four of them, primes; one row, and more rows than blocks in backward.
SIZES = [
    (1, 1),
    (3, 2),
    (5, 7),
    (5, 15),
    (4, 16),
    (3, 17),
    (2, 63),
    (2, 64),
    (3, 65),
    (2, 127),
    (16, 128),
    (17, 131),
    (1100, 33),
    (7, 768),
    (0, 5),
]


def torch_layer_norm(x: Any, weight: Any, bias: Any) -> Any:
    torch = require_torch()
    return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias)


def ours(x: bt.Tensor, weight: bt.Tensor | None, bias: bt.Tensor | None) -> bt.Tensor:
    return F.layer_norm(x, x.shape[-1], weight, bias)


@pytest.mark.parametrize("isa", available_isas())
@pytest.mark.parametrize("affine", ["weight and bias", "weight", "none"])
@pytest.mark.parametrize(("rows", "cols"), SIZES)
def test_values_and_gradients(rows: int, cols: int, affine: str, isa: str) -> None:
    rng = np.random.default_rng(1)
    values = [
        normal(rng, rows, cols, scale=2.0) + np.float32(0.5),
        normal(rng, cols) if "weight" in affine else None,
        normal(rng, cols) if "bias" in affine else None,
    ]

    check_norm(ours, torch_layer_norm, values, normal(rng, rows, cols), isa)


@pytest.mark.parametrize("isa", available_isas())
def test_statistics_survive_a_large_mean(isa: str) -> None:
    torch = require_torch()
    x = normal(np.random.default_rng(2), 8, 384) + np.float32(1000)
    with using_isa(isa):
        y, mean, rstd = (t.numpy() for t in _operators.layer_norm(bt.asarray(x)))
    exact = x.astype(np.float64)
    np.testing.assert_allclose(mean, exact.mean(-1), rtol=2.0**-23)
    np.testing.assert_allclose(rstd, 1 / np.sqrt(exact.var(-1) + 1e-5), rtol=1e-5)
    true = (exact - exact.mean(-1, keepdims=True)) / np.sqrt(exact.var(-1, keepdims=True) + 1e-5)
    assert_as_good_as(y, torch_layer_norm(torch.tensor(x), None, None).numpy(), true)


def test_several_axes() -> None:
    torch = require_torch()
    rng = np.random.default_rng(3)
    x, w, b = (rng.standard_normal(s) for s in ((2, 3, 4, 5), (4, 5), (4, 5)))
    y = _operators.layer_norm(*(bt.asarray(v) for v in (x, w, b)), num_axes=2)
    np.testing.assert_allclose(
        y[0].numpy(),
        torch.nn.functional.layer_norm(torch.tensor(x), (4, 5), torch.tensor(w), torch.tensor(b)).numpy(),
        rtol=1e-12, atol=1e-12,
    )  # fmt: skip
    assert y[1].shape == y[2].shape == (2, 3)
    gradcheck(lambda *a: _operators.layer_norm(*a, num_axes=2)[0], [parameter(v) for v in (x, w, b)])


def test_every_layout_gives_the_same_bits() -> None:
    rng = np.random.default_rng(4)
    x, w, b = normal(rng, 3, 5, 20), normal(rng, 20), normal(rng, 20)
    upstream = normal(rng, 3, 5, 20)
    expected: list[bytes] | None = None
    for (_, xv), (_, wv), (_, bv), (_, gv) in zip(layouts(x), layouts(w), layouts(b), layouts(upstream), strict=True):
        for t in (xv, wv, bv):
            t.requires_grad = True
        y = ours(xv, wv, bv)
        got = [t.detach().contiguous().numpy().tobytes() for t in (y, *bt.grad([y], [xv, wv, bv], [gv]))]
        expected = expected or got
        assert got == expected


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bit_keeps_float32_statistics(dtype: str) -> None:
    rng = np.random.default_rng(5)
    x, w, b = (bt.asarray(normal(rng, *s)).astype(dtype) for s in ((6, 100), (100,), (100,)))
    y, mean, rstd = _operators.layer_norm(x, w, b)
    assert (y.dtype.name, mean.dtype.name, rstd.dtype.name) == (dtype, "float32", "float32")
    exact = _operators.layer_norm(*(t.astype("float64") for t in (x, w, b)))
    assert_as_good_as(y.astype("float32").numpy(), None, exact[0].numpy(), dtype)
    for t in (x, w, b):
        t.requires_grad = True
    _operators.layer_norm(x, w, b)[0].backward(bt.ones((6, 100), dtype=dtype))
    assert all(t.grad.dtype.name == dtype for t in (x, w, b))
    np.testing.assert_array_equal(b.grad.astype("float32").numpy(), np.full(100, 6, np.float32))


@pytest.mark.parametrize("isa", available_isas())
def test_special_values_stay_in_their_row(isa: str) -> None:
    x = normal(np.random.default_rng(6), 4, 33)
    clean = x.copy()
    x[1, 5], x[2, 7] = np.nan, np.inf
    with using_isa(isa):
        y, expected = (ours(bt.asarray(v), None, None).numpy() for v in (x, clean))
    assert np.isnan(y[1]).all()
    assert np.isnan(y[2]).all()
    np.testing.assert_array_equal(y[[0, 3]], expected[[0, 3]])


@pytest.mark.parametrize("isa", available_isas())
def test_constant_rows_are_zero(isa: str) -> None:
    x = np.full((2, 37), 3.3e5, np.float32)
    with using_isa(isa):
        y, _, rstd = _operators.layer_norm(bt.asarray(x))
    # One rounding of the mean is all that is left of a constant row, times rstd = eps^-1/2.
    assert np.abs(y.numpy()).max() <= 3.3e5 * 2.0**-24 * 317
    assert np.isfinite(rstd.numpy()).all()


def test_same_bits_for_any_number_of_threads() -> None:
    rng = np.random.default_rng(7)
    values = [normal(rng, 1500, 129), normal(rng, 129), normal(rng, 129)]
    upstream = normal(rng, 1500, 129)

    def compute() -> list[Array]:
        inputs = [parameter(v) for v in values]
        return [ours(*inputs).detach().numpy(), *gradients(ours, inputs, upstream)]

    same_bits_for_any_threads(compute)


def test_gradients_accumulate_in_their_buffers() -> None:
    rng = np.random.default_rng(8)
    w, b = parameter(normal(rng, 9)), parameter(normal(rng, 9))
    fresh = []
    for _ in range(2):
        x = bt.asarray(normal(rng, 4, 9))
        fresh.append([g.numpy() for g in bt.grad([ours(x, w, b).sum()], [w, b])])
        ours(x, w, b).sum().backward()
    np.testing.assert_array_equal(w.grad.numpy(), fresh[0][0] + fresh[1][0])
    np.testing.assert_array_equal(b.grad.numpy(), fresh[0][1] + fresh[1][1])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradient_is_added_to_that_of_the_residual_stream(dtype: str) -> None:
    rng = np.random.default_rng(9)
    x, w, b, upstream = (bt.asarray(normal(rng, *s)).astype(dtype) for s in ((70, 9), (9,), (9,), (70, 9)))
    _, mean, rstd = _operators.layer_norm(x, w, b)
    backward_ = _operators.private("layer_norm_backward_")
    alone = backward_(upstream, x, mean, rstd, weight=w)
    stream = bt.asarray(normal(rng, 70, 9)).astype(dtype)
    want = (stream + alone).astype("float32").numpy()
    assert backward_(upstream, x, mean, rstd, weight=w, x_grad=stream).shape == (0,)
    np.testing.assert_array_equal(stream.astype("float32").numpy(), want)
    with pytest.raises(ValueError, match="expected a contiguous x_grad like x"):
        backward_(upstream, x, mean, rstd, weight=w, x_grad=bt.zeros((9, 70), dtype=dtype).T)


def test_residual_stream_has_the_same_gradient_as_without_it() -> None:
    rng = np.random.default_rng(10)
    values = [normal(rng, 6, 9), normal(rng, 9), normal(rng, 9)]
    upstream = bt.asarray(normal(rng, 6, 9))

    def run(through: Callable[[bt.Tensor], bt.Tensor]) -> list[np.ndarray]:
        leaf, w, b = (parameter(v) for v in values)
        x = leaf * 2.0
        (x + ours(through(x), w, b)).backward(upstream)
        return [t.grad.numpy() for t in (leaf, w, b)]

    for got, want in zip(run(lambda x: x), run(lambda x: x * 1.0), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda: _operators.layer_norm(bt.ones((2, 3)), bt.ones((4,))),
            ValueError,
            r"\[layer_norm\] expected weight of shape \(3,\) for x \(2, 3\), got \(4,\)",
        ),
        (
            lambda: _operators.layer_norm(bt.ones((2, 3)), bt.ones((3,), dtype="float64")),
            TypeError,
            "expected weight of dtype float32",
        ),
        (lambda: _operators.layer_norm(bt.ones((2, 3), dtype="int32")), TypeError, "floating-point"),
        (lambda: _operators.layer_norm(bt.ones(())), ValueError, "trailing axes"),
        (lambda: _operators.layer_norm(bt.ones((2, 3)), num_axes=3), ValueError, "trailing axes"),
        (lambda: _operators.layer_norm(bt.ones((2, 3)), eps=-1.0), ValueError, "eps"),
    ],
)
def test_errors_name_what_is_wrong(call: Callable[[], object], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call()
