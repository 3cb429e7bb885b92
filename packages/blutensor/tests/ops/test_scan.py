"""Cumulative sums and products against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from layer_checks import assert_as_good_as, gradients, layouts, normal, parameter, poison, same_bits_for_any_threads

import blutensor as bt

Array = np.ndarray[Any, Any]
NAMES = {"cumulative_sum": np.cumsum, "cumulative_prod": np.cumprod}


def reference(name: str, x: Array, axis: int, reverse: bool, exclusive: bool) -> Array:
    """NumPy's scan, turned around and moved by one as asked."""
    x = np.flip(x, axis) if reverse else x
    y = NAMES[name](x, axis=axis)
    if exclusive:
        first = np.full_like(np.take(y, [0], axis), 0 if name == "cumulative_sum" else 1)
        y = np.concatenate([first, np.take(y, range(y.shape[axis] - 1), axis)], axis)
    return np.flip(y, axis) if reverse else y


# Around the block (512).
@pytest.mark.parametrize(
    "shape", [(1,), (7,), (511,), (512,), (513,), (2001,), (3, 5), (4, 600, 3), (600, 40)], ids=str
)
@pytest.mark.parametrize("name", NAMES)
def test_values(name: str, shape: tuple[int, ...]) -> None:
    x = normal(np.random.default_rng(1), *shape)
    x = np.exp(np.float32(0.01) * x) if name == "cumulative_prod" else x
    for axis in range(-len(shape), len(shape)):
        for reverse in (False, True):
            for exclusive in (False, True):
                exact = reference(name, x.astype(np.float64), axis, reverse, exclusive)
                poison(x.size)
                ours = getattr(bt, name)(bt.asarray(x), axis=axis, reverse=reverse, exclusive=exclusive)
                assert_as_good_as(ours.numpy(), None, exact)


@pytest.mark.parametrize("name", NAMES)
def test_layouts(name: str) -> None:
    x = np.exp(np.float32(0.01) * normal(np.random.default_rng(2), 61, 37))
    for _, tensor in layouts(x):
        for axis in (0, 1):
            exact = reference(name, x.astype(np.float64), axis, False, False)
            assert_as_good_as(getattr(bt, name)(tensor, axis=axis).numpy(), None, exact)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32", "int64", "uint64", "bool"])
@pytest.mark.parametrize("name", NAMES)
def test_integers(name: str, dtype: str) -> None:
    x = np.random.default_rng(3).integers(0, 2 if dtype == "bool" else 100, (3, 41)).astype(dtype)
    ours = getattr(bt, name)(bt.asarray(x), axis=1).numpy()
    exact = NAMES[name](x, axis=1)
    assert ours.dtype == exact.dtype
    assert np.array_equal(ours, exact)
    assert getattr(bt, name)(bt.asarray(x), axis=1, dtype="float32").dtype is bt.float32


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_floating_dtypes(dtype: str) -> None:
    x = bt.asarray(normal(np.random.default_rng(4), 3, 700)).astype(dtype)
    ours = bt.cumulative_sum(x, axis=1)
    assert ours.dtype.name == dtype
    exact = np.cumsum(x.astype("float64").numpy(), axis=1)
    half = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float64": 2.0**-53}[dtype]
    assert np.all(np.abs(ours.astype("float64").numpy() - exact) <= 1.01 * half * np.abs(exact) + 1e-13)


def test_initial_and_axis() -> None:
    x = bt.asarray(np.array([1.0, 2.0, 3.0], np.float32))
    assert bt.cumulative_sum(x).tolist() == [1, 3, 6]
    assert bt.cumulative_sum(x, include_initial=True).tolist() == [0, 1, 3, 6]
    assert bt.cumulative_prod(x, include_initial=True).tolist() == [1, 1, 2, 6]
    assert bt.cumulative_sum(bt.zeros((2, 0)), axis=1, include_initial=True).tolist() == [[0], [0]]
    assert bt.cumulative_sum(bt.zeros((0,))).shape == (0,)
    with pytest.raises(bt.ShapeError, match=r"\[cumulative_sum\] expected an axis for a tensor of 2 axes"):
        bt.cumulative_sum(bt.zeros((2, 2)))
    with pytest.raises(bt.ShapeError, match="include_initial without reverse"):
        bt.cumulative_sum(x, include_initial=True, reverse=True)
    with pytest.raises(bt.IndexOutOfRangeError):
        bt.cumulative_sum(x, axis=1)


def test_zeros_in_a_product_have_gradients() -> None:
    upstream = np.array([1.0, 10.0, 100.0, 1000.0])
    for values in ([2.0, 3.0, 4.0, 5.0], [2.0, 0.0, 4.0, 5.0], [0.0, 0.0, 4.0, 5.0]):
        x = np.array(values)
        (ours,) = gradients(lambda t: bt.cumulative_prod(t, axis=0), [parameter(x)], upstream)
        exact = [
            sum(upstream[k] * np.prod([x[j] for j in range(k + 1) if j != i]) for k in range(i, 4)) for i in range(4)
        ]
        assert ours.tolist() == exact


def test_same_bits_for_any_number_of_threads() -> None:
    x = normal(np.random.default_rng(8), 300, 257)
    same_bits_for_any_threads(lambda: [bt.cumulative_sum(bt.asarray(x), axis=a).numpy() for a in (0, 1)])
