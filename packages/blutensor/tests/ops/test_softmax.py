"""softmax and log_softmax against float64, beside NumPy and PyTorch in float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from layer_checks import (
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
from peers import both_peers, by_numpy, torch_leaves

import blutensor as bt

# (shape, axis): rows around one and four vectors of 8 and 16 lanes, columns around strips of 64, primes, one element.
CASES = [
    ((3, 1), -1),
    ((5, 7), -1),
    ((4, 15), -1),
    ((4, 16), -1),
    ((4, 17), -1),
    ((3, 31), -1),
    ((3, 33), -1),
    ((3, 63), -1),
    ((3, 65), -1),
    ((2, 127), -1),
    ((2, 1009), -1),
    ((2, 3, 50304), -1),
    ((7,), 0),
    ((33, 4), 0),
    ((2, 37, 15), 1),
    ((2, 37, 16), 1),
    ((3, 11, 65), 1),
    ((2, 5, 3, 130), -3),
]
FUNCTIONS = {"softmax": bt.softmax, "log_softmax": bt.log_softmax}


def formula(name: str, x: Array, axis: int) -> Array:
    shifted = x - x.max(axis=axis, keepdims=True)
    total = np.exp(shifted).sum(axis=axis, keepdims=True)
    return np.asarray(shifted - np.log(total) if name == "log_softmax" else np.exp(shifted) / total)


def gradient_formula(name: str, x: Array, upstream: Array, axis: int) -> Array:
    y = formula(name, x, axis)
    if name == "log_softmax":
        return np.asarray(upstream - np.exp(y) * upstream.sum(axis=axis, keepdims=True))
    return np.asarray(y * (upstream - (upstream * y).sum(axis=axis, keepdims=True)))


@both_peers
@pytest.mark.parametrize("isa", available_isas())
@pytest.mark.parametrize("scale", [1.0, 30.0])
@pytest.mark.parametrize(("shape", "axis"), CASES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_gradients(name: str, shape: tuple[int, ...], axis: int, scale: float, isa: str, peer: str) -> None:
    rng = np.random.default_rng(1)
    x, upstream = normal(rng, *shape, scale=scale), normal(rng, *shape)
    if peer == "torch":
        torch = require_torch()
        (leaf,) = torch_leaves(x)
        result = getattr(torch, name)(leaf, axis)
        result.backward(torch.tensor(upstream))
        theirs, their_gradient = result.detach().numpy(), leaf.grad.numpy()
    else:
        theirs = by_numpy(lambda a: formula(name, a, axis), x)
        their_gradient = by_numpy(lambda a, g: gradient_formula(name, a, g, axis), x, upstream)
    poison(x.size, x.size)
    with using_isa(isa):
        leaf = parameter(x)
        got = FUNCTIONS[name](leaf, axis).detach().numpy()
        (gradient,) = gradients(lambda t: FUNCTIONS[name](t, axis), [leaf], upstream)
    assert_as_good_as(got, theirs, by_numpy(lambda a: formula(name, a, axis), x, dtype=np.float64))
    exact_gradient = by_numpy(lambda a, g: gradient_formula(name, a, g, axis), x, upstream, dtype=np.float64)
    # Terms up to max |upstream * y| cancel in the gradient: two roundings of those are the least of any float32 run.
    y = (
        np.exp(formula(name, x.astype(np.float64), axis))
        if name == "log_softmax"
        else formula(name, x.astype(np.float64), axis)
    )
    magnitude = np.abs(y) * np.abs(upstream).max()
    error, their_error = np.abs(gradient - exact_gradient), np.abs(their_gradient - exact_gradient)
    assert error.max() <= 2 * their_error.max() + 2 * 2.0**-24 * (magnitude.max() + np.abs(exact_gradient).max())
    assert error.mean() <= 2 * their_error.mean() + 2 * 2.0**-24 * (magnitude.mean() + np.abs(exact_gradient).mean())


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("shape", [(0,), (0, 4), (4, 0), (2, 0, 3)])
def test_empty(name: str, shape: tuple[int, ...]) -> None:
    for axis in range(len(shape)):
        x = parameter(np.zeros(shape, np.float32))
        y = FUNCTIONS[name](x, axis)
        y.backward(bt.ones(shape))
        assert y.shape == shape
        assert x.grad is not None
        assert x.grad.shape == shape


@pytest.mark.parametrize("name", FUNCTIONS)
def test_zero_dimensions(name: str) -> None:
    for axis in (0, -1):
        assert FUNCTIONS[name](bt.asarray(np.float32(3)), axis).item() == (1.0 if name == "softmax" else 0.0)


@pytest.mark.parametrize("isa", available_isas())
@pytest.mark.parametrize("name", FUNCTIONS)
def test_special_values(name: str, isa: str) -> None:
    """Rows of -inf, with NaN and with +inf are NaN throughout, as in PyTorch; -inf elsewhere has weight 0."""
    inf, nan = np.inf, np.nan
    rows = np.array(
        [[-inf, -inf, -inf], [1, inf, 2], [1, nan, 2], [1, -inf, 2], [-0.0, 1e-45, 0.0], [3e38, 3e38, -3e38]],
        np.float32,
    )
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        expected = formula(name, rows.astype(np.float64), -1)
    expected[1:3] = nan
    with using_isa(isa):
        for values, axis in ((rows, -1), (np.ascontiguousarray(rows.T), 0), (np.repeat(rows, 12, axis=-1), -1)):
            got = FUNCTIONS[name](bt.asarray(values), axis).numpy()
            got = got.T if axis == 0 else got
            reference = expected if got.shape == expected.shape else formula_of_repeated(name, expected, 12)
            with np.errstate(over="ignore"):
                np.testing.assert_allclose(got, reference.astype(np.float32), rtol=2.0**-21)


def formula_of_repeated(name: str, row_results: Array, times: int) -> Array:
    repeated = np.repeat(row_results, times, axis=-1)
    return np.asarray(repeated - np.log(times) if name == "log_softmax" else repeated / times)


@pytest.mark.parametrize("isa", available_isas())
@pytest.mark.parametrize("name", FUNCTIONS)
def test_layouts(name: str, isa: str) -> None:
    rng = np.random.default_rng(2)
    x, upstream = normal(rng, 6, 5, 34), normal(rng, 6, 5, 34)
    for axis in (0, 1, 2):
        exact = formula(name, x.astype(np.float64), axis)
        exact_gradient = gradient_formula(name, x.astype(np.float64), upstream.astype(np.float64), axis)
        with using_isa(isa):
            for (_, view), (_, up) in zip(layouts(x), layouts(upstream), strict=True):
                view.requires_grad = True
                y = FUNCTIONS[name](view, axis)
                assert y.is_contiguous()
                (gradient,) = bt.grad([y], [view], [up])
                # Two roundings of a result, and of what cancels in a gradient: sums differ in order between layouts.
                np.testing.assert_allclose(y.detach().numpy(), exact, rtol=2.0**-21, atol=2.0**-22)
                np.testing.assert_allclose(gradient.numpy(), exact_gradient, rtol=2.0**-20, atol=2.0**-20)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_broadcast_operand(name: str) -> None:
    """Strides of 0, along the axis and across it."""
    x = normal(np.random.default_rng(3), 1, 20)
    expected = np.broadcast_to(formula(name, x.astype(np.float64), -1), (7, 20))
    np.testing.assert_allclose(
        FUNCTIONS[name](bt.broadcast_to(bt.asarray(x), (7, 20)), -1).numpy(), expected, rtol=2.0**-21
    )
    flat = FUNCTIONS[name](bt.broadcast_to(bt.asarray(x), (7, 20)), 0).numpy()
    np.testing.assert_allclose(flat, np.full((7, 20), 1 / 7 if name == "softmax" else -np.log(7)), rtol=2.0**-22)


@pytest.mark.parametrize("isa", available_isas())
def test_same_bits_for_any_threads(isa: str) -> None:
    x, upstream = normal(np.random.default_rng(4), 129, 257), normal(np.random.default_rng(5), 129, 257)

    def compute() -> list[Array]:
        results = []
        for function in FUNCTIONS.values():
            for axis in (0, 1):
                leaf = parameter(x)
                y = function(leaf, axis)
                results += [y.detach().numpy(), bt.grad([y], [leaf], [bt.asarray(upstream)])[0].numpy()]
        return results

    with using_isa(isa):
        same_bits_for_any_threads(compute)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_16_bit(name: str, dtype: str) -> None:
    x = bt.asarray(normal(np.random.default_rng(6), 6, 100)).astype(dtype)
    x.requires_grad = True
    y = FUNCTIONS[name](x, -1)
    assert y.dtype.name == dtype
    exact = formula(name, x.detach().astype("float64").numpy(), -1)
    assert_as_good_as(y.detach().astype("float32").numpy(), None, exact, dtype)
    y.backward(bt.ones(y.shape, dtype=dtype))
    assert x.grad is not None
    assert x.grad.dtype.name == dtype


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradcheck_and_decomposition(name: str) -> None:
    rng = np.random.default_rng(7)
    for shape, axis in (((4, 5), -1), ((2, 3, 4), 1), ((3, 1), 0), ((6,), 0)):
        values: Any = rng.standard_normal(shape)
        bt.gradcheck(lambda t, axis=axis: FUNCTIONS[name](t, axis), [parameter(values)])
        decomposed = bt.capture(lambda t, axis=axis: FUNCTIONS[name](t, axis), level="primitive")
        np.testing.assert_allclose(
            decomposed(bt.asarray(values)).numpy(), formula(name, values, axis), rtol=1e-13, atol=1e-14
        )
        decomposed(bt.asarray(values))
        assert f" {name}" not in str(decomposed.program)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_errors(name: str) -> None:
    with pytest.raises(TypeError, match=rf"\[{name}\] expected a floating-point tensor, got int32"):
        FUNCTIONS[name](bt.zeros((2, 3), dtype="int32"))
    with pytest.raises(IndexError, match=rf"\[{name}\] expected an axis from -2 to 1, got 2"):
        FUNCTIONS[name](bt.zeros((2, 3)), 2)
