"""Basic indexing against NumPy: values, shapes, strides, writes, gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import blutensor as bt

SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)


@st.composite
def shape_and_index(draw: st.DrawFn) -> tuple[tuple[int, ...], Any]:
    shape = draw(SHAPES)
    return shape, draw(hnp.basic_indices(shape, max_dims=8, allow_newaxis=True, allow_ellipsis=True))


def numbered(shape: tuple[int, ...]) -> np.ndarray:
    return np.arange(np.prod(shape, dtype=int), dtype=np.float64).reshape(shape)


@given(shape_and_index())
@settings(max_examples=400, deadline=None)
def test_reading(case: tuple[tuple[int, ...], Any]) -> None:
    shape, index = case
    array = numbered(shape)
    tensor = bt.asarray(array)
    got, expected = tensor[index], array[index]
    assert got.shape == expected.shape
    np.testing.assert_array_equal(got.numpy(), expected)
    assert got.storage_id == tensor.storage_id


@given(shape_and_index())
@settings(max_examples=200, deadline=None)
def test_writing(case: tuple[tuple[int, ...], Any]) -> None:
    shape, index = case
    array, twin = numbered(shape), numbered(shape)
    tensor = bt.asarray(twin)
    array[index] = -1.0
    tensor[index] = -1.0
    np.testing.assert_array_equal(tensor.numpy(), array)


@given(shape_and_index())
@settings(max_examples=100, deadline=None)
def test_gradient(case: tuple[tuple[int, ...], Any]) -> None:
    shape, index = case
    tensor = bt.asarray(numbered(shape))
    tensor.requires_grad = True
    part = tensor[index]
    weights = 1.0 + numbered(part.shape)
    (part * bt.asarray(weights)).sum().backward()
    expected = np.zeros(shape)
    expected[index] = weights
    assert tensor.grad is not None
    np.testing.assert_array_equal(tensor.grad.numpy(), expected)


@given(shape_and_index(), st.data())
@settings(max_examples=100, deadline=None)
def test_indexing_a_view_of_a_view(case: tuple[tuple[int, ...], Any], data: st.DataObject) -> None:
    shape, index = case
    array = numbered(shape)
    once, tensor_once = array[index], bt.asarray(array)[index]
    second = data.draw(hnp.basic_indices(np.shape(once)))
    np.testing.assert_array_equal(tensor_once[second].numpy(), once[second])


@pytest.mark.parametrize(
    ("index", "error", "message"),
    [
        (3, IndexError, "from -3 to 2 of axis 0, got 3"),
        ((0, -5), IndexError, "from -4 to 3 of axis 1, got -5"),
        ((0, 0, 0), IndexError, "at most 2 indices"),
        ((..., ...), IndexError, "at most one Ellipsis"),
        (True, TypeError, "got bool"),
        (1.0, TypeError, "got float"),
        ("a", TypeError, "got str"),
    ],
)
def test_wrong_indices(index: Any, error: type[Exception], message: str) -> None:
    x = bt.zeros((3, 4))
    with pytest.raises(error, match=message):
        x[index]


def test_index_by_a_tensor_of_one_integer() -> None:
    assert bt.arange(5)[bt.asarray(3)].item() == 3
    assert bt.arange(5)[np.array(3)].item() == 3


def test_assigning_sequences() -> None:
    x = bt.zeros((3, 2))
    x[0] = [1, 2.5]
    x[1:] = ([3, 4], (5, 6))
    assert x.tolist() == [[1, 2.5], [3, 4], [5, 6]]
    x[:, 0] = range(3)
    x[2, 1] = np.float64(7)
    assert x.tolist() == [[0, 2.5], [1, 4], [2, 7]]


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        ([1, 2, 3], ValueError, r"broadcasts to shape \(2\)|broadcasts to shape \(2,\)"),
        ([[1], [1, 2]], ValueError, r"\[setitem\] expected nested sequences of equal lengths"),
        ("ab", TypeError, r"\[setitem\] expected .* got 'ab'"),
        (None, TypeError, r"\[setitem\] expected .* got None"),
        ([1j, 2], TypeError, r"\[setitem\] expected"),
    ],
)
def test_wrong_values(value: Any, error: type[Exception], message: str) -> None:
    x = bt.ones((3, 2))
    with pytest.raises(error, match=message):
        x[0] = value
    assert x.tolist() == [[1, 1]] * 3


def test_assigning_to_a_leaf_that_requires_a_gradient() -> None:
    w = bt.ones(3).requires_grad_()
    for value in (5.0, bt.zeros(()), np.zeros(()), [1.0]):
        with pytest.raises(bt.AutogradError, match=r"\[setitem\].*leaf.*no_grad\(\)"):
            w[0] = value
    with bt.no_grad():
        w[0] = 5.0
    assert w.tolist() == [5, 1, 1]


def test_iteration_stops() -> None:
    assert [v.item() for v in bt.arange(4)] == [0, 1, 2, 3]


def test_index_write() -> None:
    cache, new = bt.zeros((2, 5, 3)), bt.ones((2, 2, 3))
    assert bt.index_write_(cache, new, bt.asarray(3), 1) is cache
    assert cache.sum((0, 2)).tolist() == [0, 0, 0, 6, 6]
    for position in (4, -1):
        with pytest.raises(IndexError, match=r"\[index_write_\]"):
            bt.index_write_(cache, new, bt.asarray(position), 1)
