"""rms_norm against float64, beside PyTorch."""

from __future__ import annotations

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
from blutensor import _operators, nn
from blutensor.nn import functional as F

# (rows, columns): around vectors and four of them, primes; one row, and more rows than blocks in backward.
SIZES = [(1, 1), (3, 2), (5, 7), (5, 15), (4, 16), (3, 17), (2, 63), (3, 65), (16, 128), (1100, 33), (7, 768), (0, 5)]


def torch_rms_norm(x: Any, weight: Any) -> Any:
    return require_torch().nn.functional.rms_norm(x, x.shape[-1:], weight, 1e-6)


def ours(x: bt.Tensor, weight: bt.Tensor | None) -> bt.Tensor:
    return F.rms_norm(x, x.shape[-1], weight, 1e-6)


@pytest.mark.parametrize("isa", available_isas())
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize(("rows", "cols"), SIZES)
def test_values_and_gradients(rows: int, cols: int, weighted: bool, isa: str) -> None:
    rng = np.random.default_rng(1)
    values = [normal(rng, rows, cols, scale=2.0) + np.float32(0.5), normal(rng, cols) if weighted else None]

    check_norm(ours, torch_rms_norm, values, normal(rng, rows, cols), isa)


def test_every_layout_gives_the_same_bits() -> None:
    rng = np.random.default_rng(4)
    x, w, upstream = normal(rng, 3, 5, 20), normal(rng, 20), normal(rng, 3, 5, 20)
    expected: list[bytes] | None = None
    for (_, xv), (_, wv), (_, gv) in zip(layouts(x), layouts(w), layouts(upstream), strict=True):
        for t in (xv, wv):
            t.requires_grad = True
        y = ours(xv, wv)
        got = [t.detach().contiguous().numpy().tobytes() for t in (y, *bt.grad([y], [xv, wv], [gv]))]
        expected = expected or got
        assert got == expected


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bit_keeps_float32_statistics(dtype: str) -> None:
    rng = np.random.default_rng(5)
    x, w = (bt.asarray(normal(rng, *s)).astype(dtype) for s in ((6, 100), (100,)))
    y, rstd = _operators.rms_norm(x, w)
    assert (y.dtype.name, rstd.dtype.name) == (dtype, "float32")
    exact = _operators.rms_norm(x.astype("float64"), w.astype("float64"))[0].numpy()
    assert_as_good_as(y.astype("float32").numpy(), None, exact, dtype)
    for t in (x, w):
        t.requires_grad = True
    _operators.rms_norm(x, w)[0].backward(bt.ones((6, 100), dtype=dtype))
    assert all(t.grad is not None and t.grad.dtype.name == dtype for t in (x, w))


@pytest.mark.parametrize("isa", available_isas())
def test_special_values_stay_in_their_row(isa: str) -> None:
    x = normal(np.random.default_rng(6), 4, 33)
    clean = x.copy()
    x[1, 5], x[2, 7], x[3, 4] = np.nan, np.inf, -0.0
    with using_isa(isa):
        y, expected = (ours(bt.asarray(v), None).numpy() for v in (x, clean))
    assert np.isnan(y[1]).all()
    assert np.isnan(y[2, 7])
    assert (np.delete(y[2], 7) == 0).all()
    assert np.signbit(y[3, 4])
    np.testing.assert_array_equal(y[0], expected[0])


def test_same_bits_for_any_number_of_threads() -> None:
    rng = np.random.default_rng(7)
    values, upstream = [normal(rng, 1500, 129), normal(rng, 129)], normal(rng, 1500, 129)

    def compute() -> list[Array]:
        inputs = [parameter(v) for v in values]
        return [ours(*inputs).detach().numpy(), *gradients(ours, inputs, upstream)]

    same_bits_for_any_threads(compute)


def test_gradients_accumulate_in_their_buffers() -> None:
    rng = np.random.default_rng(8)
    w = parameter(normal(rng, 9))
    fresh = []
    for _ in range(2):
        x = bt.asarray(normal(rng, 4, 9))
        fresh.append(bt.grad([ours(x, w).sum()], [w])[0].numpy())
        ours(x, w).sum().backward()
    assert w.grad is not None
    np.testing.assert_array_equal(w.grad.numpy(), fresh[0] + fresh[1])


def test_gradient_joins_the_residual_stream() -> None:
    """The gradient that already reached x is added to in the pass that computes its own: the same sum."""
    rng = np.random.default_rng(9)
    values, w = normal(rng, 6, 24), parameter(normal(rng, 24))
    x = parameter(values)
    stream = x * 1.0
    (stream * 3.0 + ours(stream, w)).sum().backward()
    alone = parameter(values)
    ours(alone, w.detach()).sum().backward()
    assert x.grad is not None
    assert alone.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), alone.grad.numpy() + 3, rtol=2.0**-22)


def test_several_axes_and_the_default_of_eps() -> None:
    torch = require_torch()
    rng = np.random.default_rng(3)
    x, w = rng.standard_normal((2, 3, 4, 5)), rng.standard_normal((4, 5))
    theirs = torch.nn.functional.rms_norm(torch.tensor(x), (4, 5), torch.tensor(w))
    np.testing.assert_allclose(
        F.rms_norm(bt.asarray(x), (4, 5), bt.asarray(w)).numpy(), theirs.numpy(), rtol=1e-12, atol=1e-12
    )
    tiny = np.full((1, 8), 1e-5, np.float32)
    ours_tiny = F.rms_norm(bt.asarray(tiny), 8).numpy()
    np.testing.assert_allclose(ours_tiny, torch.nn.functional.rms_norm(torch.tensor(tiny), (8,)).numpy(), rtol=1e-6)


def test_the_layer() -> None:
    torch = require_torch()
    layer, twin = nn.RMSNorm(12, eps=1e-5), torch.nn.RMSNorm(12, eps=1e-5)
    x = normal(np.random.default_rng(10), 3, 12)
    np.testing.assert_allclose(
        layer(bt.asarray(x)).detach().numpy(), twin(torch.tensor(x)).detach().numpy(), rtol=2.0**-21
    )
    assert list(layer.state_dict()) == list(twin.state_dict()) == ["weight"]
    assert repr(layer) == "RMSNorm((12,), eps=1e-05, elementwise_affine=True)"
    assert list(nn.RMSNorm((2, 3), elementwise_affine=False).parameters()) == []


def test_bad_input() -> None:
    x = bt.zeros((2, 4))
    with pytest.raises(bt.ShapeError, match=r"\[rms_norm\] expected a shape that ends in \(3,\), got \(2, 4\)"):
        F.rms_norm(x, 3)
    with pytest.raises(bt.ShapeError, match=r"\[rms_norm\] expected weight of shape \(4,\)"):
        F.rms_norm(x, 4, bt.zeros(3))
    with pytest.raises(bt.DTypeError, match=r"\[rms_norm\] expected weight of dtype float32"):
        F.rms_norm(x, 4, bt.zeros(4, dtype="float64"))
    with pytest.raises(bt.DTypeError, match=r"\[rms_norm\] expected floating-point x"):
        F.rms_norm(bt.zeros((2, 4), dtype="int64"), 4)
    with pytest.raises(bt.ShapeError, match=r"\[rms_norm\] expected eps of at least 0"):
        F.rms_norm(x, 4, eps=-1.0)
    with pytest.raises(bt.ShapeError, match=r"\[RMSNorm\]"):
        nn.RMSNorm(0)
