"""Sorting, searching and sets against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from layer_checks import gradients, layouts, parameter, same_bits_for_any_threads

import blutensor as bt

DTYPES = ["float32", "float64", "float16", "int8", "uint8", "int32", "uint32", "int64", "uint64", "bool"]


def many_equals(dtype: str, shape: tuple[int, ...]) -> Any:
    return np.random.default_rng(1).integers(0, 2 if dtype == "bool" else 9, shape).astype(dtype)


@pytest.mark.parametrize("shape", [(0,), (1,), (2,), (33,), (1000,), (4, 37, 9), (3, 0, 2)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_argsort_is_stable(dtype: str, shape: tuple[int, ...]) -> None:
    x = many_equals(dtype, shape)
    for axis in range(-x.ndim, x.ndim):
        order = bt.argsort(bt.asarray(x), axis=axis)
        assert order.dtype is bt.int64
        assert np.array_equal(order.numpy(), np.argsort(x, axis=axis, kind="stable"))
        down = bt.argsort(bt.asarray(x), axis=axis, descending=True).numpy()
        keys = x.astype(np.float64)
        assert np.array_equal(down, np.argsort(-keys, axis=axis, kind="stable"))
        assert np.array_equal(bt.sort(bt.asarray(x), axis=axis).numpy(), np.sort(x, axis=axis))


def test_layouts() -> None:
    x = np.random.default_rng(2).standard_normal((13, 37)).astype(np.float32)
    for _, tensor in layouts(x):
        for axis in (0, 1):
            assert np.array_equal(bt.argsort(tensor, axis=axis).numpy(), np.argsort(x, axis=axis, kind="stable"))


def test_nan_comes_last() -> None:
    x = np.array([np.nan, 1.0, -np.inf, np.nan, np.inf, -0.0, 0.0], np.float32)
    assert np.array_equal(bt.sort(bt.asarray(x)).numpy(), np.sort(x), equal_nan=True)
    assert bt.argsort(bt.asarray(x)).tolist() == [2, 5, 6, 1, 4, 0, 3]
    assert bt.argsort(bt.asarray(x), descending=True).tolist() == [0, 3, 4, 1, 5, 6, 2]


def test_gradients_go_where_the_elements_came_from() -> None:
    x = parameter(np.array([3.0, 1.0, 2.0], np.float32))
    (ours,) = gradients(bt.sort, [x], np.array([10.0, 20.0, 30.0], np.float32))
    assert ours.tolist() == [30.0, 10.0, 20.0]


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("dtype", DTYPES[:-1])
def test_searchsorted(dtype: str, side: Any) -> None:
    for n in (0, 1, 2, 33):
        line, values = np.sort(many_equals(dtype, (n,))), many_equals(dtype, (5, 7))
        ours = bt.searchsorted(bt.asarray(line), bt.asarray(values), side=side)
        assert np.array_equal(ours.numpy(), np.searchsorted(line, values, side))
    unsorted = many_equals(dtype, (33,))
    sorter = np.argsort(unsorted, kind="stable")
    ours = bt.searchsorted(bt.asarray(unsorted), bt.asarray(values), side=side, sorter=bt.asarray(sorter))
    assert np.array_equal(ours.numpy(), np.searchsorted(unsorted, values, side, sorter))


def test_searchsorted_strided_and_special() -> None:
    line = np.array([-np.inf, 0.0, 1.0, np.inf, np.nan], np.float32)
    values = np.array([[np.nan, -0.0], [np.inf, 0.5]], np.float32)
    wide = bt.asarray(np.repeat(line, 2))[::2]
    for side in ("left", "right"):
        assert np.array_equal(
            bt.searchsorted(wide, bt.asarray(values).T, side=side).numpy(), np.searchsorted(line, values.T, side)
        )
    with pytest.raises(bt.ShapeError, match=r"\[searchsorted\] expected a sorted tensor of one axis"):
        bt.searchsorted(bt.asarray(values), bt.asarray(values))


@pytest.mark.parametrize("dtype", DTYPES)
def test_unique(dtype: str) -> None:
    x = many_equals(dtype, (4, 9))
    values, indices, inverse, counts = np.unique(x, return_index=True, return_inverse=True, return_counts=True)
    found = bt.unique_all(bt.asarray(x))
    assert found.values.dtype.name == dtype
    for ours, exact in zip(found, (values, indices, inverse.reshape(4, 9), counts), strict=True):
        assert np.array_equal(ours.numpy(), exact)
    assert np.array_equal(bt.unique_values(bt.asarray(x)).numpy(), values)
    assert np.array_equal(bt.unique_counts(bt.asarray(x)).counts.numpy(), counts)
    assert np.array_equal(bt.unique_inverse(bt.asarray(x)).inverse_indices.numpy(), inverse.reshape(4, 9))


def test_unique_of_floats() -> None:
    x = np.array([np.nan, 0.0, -0.0, np.nan, -1.5], np.float32)
    found = bt.unique_all(bt.asarray(x))
    assert found.counts.tolist() == [1, 2, 1, 1]
    narrow = bt.unique_values(bt.asarray(np.array([-1.5, 2.5, -1.5], np.float32)).astype("bfloat16"))
    assert narrow.dtype is bt.bfloat16
    assert narrow.tolist() == [-1.5, 2.5]


def test_same_bits_for_any_number_of_threads() -> None:
    x = np.random.default_rng(3).standard_normal((300, 70)).astype(np.float32)
    same_bits_for_any_threads(lambda: [bt.argsort(bt.asarray(x), axis=a).numpy() for a in (0, 1)])


def test_unique_of_no_axes() -> None:
    found = bt.unique_all(bt.asarray(7))
    assert found.values.tolist() == [7]
    assert found.indices.tolist() == [0]
    assert found.counts.tolist() == [1]
    assert found.inverse_indices.shape == bt.unique_inverse(bt.asarray(7.5)).inverse_indices.shape == ()
    assert found.inverse_indices.item() == 0
