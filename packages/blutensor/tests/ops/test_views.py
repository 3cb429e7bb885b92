"""View operators: geometry against NumPy, shared storage, gradients."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_checks import gradients, layouts, normal, parameter

import blutensor as bt

Array = np.ndarray[Any, Any]


def shares(a: bt.Tensor, b: bt.Tensor) -> bool:
    return a.storage_id == b.storage_id


def test_reshape_is_a_view_where_strides_allow() -> None:
    x = bt.asarray(np.arange(24, dtype=np.float32).reshape(2, 3, 4))
    assert shares(x, x.reshape(6, 4))
    assert shares(x, x.reshape(-1))
    assert shares(x, x.reshape(2, 3, 1, 4, 1))
    part = x[:, :, 1:3]
    assert shares(part, part.reshape(6, 2))
    assert not shares(part, part.reshape(12))
    assert np.array_equal(part.reshape(12).numpy(), part.numpy().reshape(12))
    turned = x.permute_dims(2, 0, 1)
    assert shares(turned, turned.reshape(4, 6))
    assert not shares(turned, turned.reshape(8, 3))
    assert np.array_equal(turned.reshape(8, 3).numpy(), turned.numpy().reshape(8, 3))
    stretched = bt.broadcast_to(bt.asarray(np.float32(3)), (4, 5))
    assert shares(stretched, stretched.reshape(20))


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_reshape_of_any_layout(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    whole = np.arange(math.prod(2 * n for n in shape), dtype=np.int32).reshape([2 * n for n in shape])
    steps = tuple(
        data.draw(st.sampled_from([slice(None, n), slice(None, None, 2), slice(None, None, -2)])) for n in shape
    )
    order = data.draw(st.permutations(range(len(shape))))
    values, tensor = whole[steps].transpose(order), bt.asarray(whole)[steps].permute_dims(*order)
    factors = [p for n in shape for p in ([2, 2] if n == 4 else [n])]
    factors = data.draw(st.permutations(factors))
    cut = data.draw(st.integers(0, len(factors)))
    target = [math.prod(factors[:cut]), *factors[cut:]]
    ours = tensor.reshape(target)
    assert ours.shape == tuple(target)
    theirs = values.reshape(target)
    assert np.array_equal(ours.numpy(), theirs)
    assert shares(tensor, ours) == np.shares_memory(theirs, values)  # a view exactly where NumPy finds one


def test_reshape_of_nothing() -> None:
    x = bt.zeros((0, 3))
    assert x.reshape(3, 0).shape == (3, 0)
    assert x.reshape(-1, 3).shape == (0, 3)
    assert bt.zeros((1, 1)).reshape(()).shape == ()


def test_permute_squeeze_expand() -> None:
    x = np.arange(24, dtype=np.float32).reshape(2, 1, 3, 4)
    t = bt.asarray(x)
    assert np.array_equal(bt.permute_dims(t, (3, -4, 2, 1)).numpy(), x.transpose(3, 0, 2, 1))
    assert np.array_equal(bt.squeeze(t, 1).numpy(), x.squeeze(1))
    assert bt.squeeze(bt.zeros((1, 2, 1))).shape == (2,)
    for axis in range(-5, 5):
        ours = bt.expand_dims(t, axis)
        assert ours.shape == np.expand_dims(x, axis).shape
        assert ours.is_contiguous()
    for y in (
        bt.permute_dims(t, (3, 0, 2, 1)),
        bt.squeeze(t, 1),
        bt.expand_dims(t, 0),
        bt.broadcast_to(t, (2, 5, 3, 4)),
    ):
        assert shares(t, y)
    assert np.array_equal(bt.broadcast_to(t, (7, 2, 5, 3, 4)).numpy(), np.broadcast_to(x, (7, 2, 5, 3, 4)))


INDICES: list[Any] = [
    0,
    -1,
    slice(None),
    slice(1, 3),
    slice(None, None, -1),
    slice(4, 1, -2),
    slice(0, 0),
    slice(10, 20),
    slice(-2, None),
    (0, 1),
    (slice(None), -1),
    (Ellipsis, 0),
    (0, Ellipsis, slice(None, None, 2)),
    (None, 1, None),
    (slice(1, None), None, slice(None, 2)),
    (2, 3, 1),
    Ellipsis,
    None,
]


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_indexing(index: Any) -> None:
    x = normal(np.random.default_rng(1), 5, 4, 3)
    for _, t in layouts(x):
        y = t[index]
        assert y.shape == x[index].shape
        assert np.array_equal(y.numpy(), x[index])
        assert shares(t, y)
    upstream = normal(np.random.default_rng(2), *x[index].shape)
    (gradient,) = gradients(lambda t: t[index], [parameter(x)], upstream)
    exact = np.zeros_like(x)
    exact[index] = upstream
    assert np.array_equal(gradient, exact)


def test_split() -> None:
    x = np.arange(60, dtype=np.float32).reshape(3, 20)
    t = parameter(x)
    parts = bt.split(t, 4, -1)
    assert [p.shape for p in parts] == [(3, 5)] * 4
    assert all(shares(t, p) for p in parts)
    for ours, exact in zip(parts, np.split(x, 4, -1), strict=True):
        assert np.array_equal(ours.detach().numpy(), exact)
    sizes = bt.split(t, (0, 7, 13), 1)
    assert [p.shape for p in sizes] == [(3, 0), (3, 7), (3, 13)]
    # Only two of four parts are used: the others' gradient is 0.
    (gradient,) = bt.grad([bt.sum(parts[1] * 2.0) + bt.sum(parts[3])], [t])
    exact = np.zeros_like(x)
    exact[:, 5:10], exact[:, 15:] = 2, 1
    assert np.array_equal(gradient.numpy(), exact)


def test_gradients_reach_through_chains_of_views() -> None:
    x = normal(np.random.default_rng(3), 4, 6)
    upstream = normal(np.random.default_rng(4), 3, 2, 2)

    def chain(t: bt.Tensor) -> bt.Tensor:
        y = t.T[1:4].reshape(3, 2, 2)
        return bt.squeeze(bt.expand_dims(y, 1), 1)

    (gradient,) = gradients(chain, [parameter(x)], upstream)
    exact = np.zeros_like(x)
    exact[:, 1:4] = upstream.reshape(3, 4).T
    assert np.array_equal(gradient, exact)
    (gradient,) = gradients(lambda t: bt.broadcast_to(t, (5, 4, 6)), [parameter(x)], np.ones((5, 4, 6), np.float32))
    assert np.array_equal(gradient, np.full_like(x, 5))


def test_errors() -> None:
    x = bt.zeros((2, 3))
    with pytest.raises(bt.ShapeError, match=r"\[reshape\] expected a shape of 6 elements \(\(2, 3\)\), got \(4, 2\)"):
        x.reshape(4, 2)
    with pytest.raises(bt.ShapeError, match="at most one -1"):
        x.reshape(-1, -1)
    with pytest.raises(bt.ShapeError, match="sizes of at least 0"):
        x.reshape(-2, 3)
    with pytest.raises(bt.ShapeError, match=r"\[permute_dims\] expected 2 axes"):
        x.permute_dims(0)
    with pytest.raises(bt.ShapeError, match=r"\[permute_dims\] expected every axis once"):
        x.permute_dims(0, 0)
    with pytest.raises(bt.ShapeError, match=r"\[squeeze\] expected axes of size 1"):
        bt.squeeze(x, 0)
    with pytest.raises(bt.ShapeError, match=r"\[broadcast_to\] expected"):
        bt.broadcast_to(x, (2, 4))
    with pytest.raises(bt.ShapeError, match=r"\[split\] expected a number of parts that divides 3"):
        bt.split(x, 2, 1)
    with pytest.raises(bt.ShapeError, match=r"\[split\] expected sizes that add up to 3"):
        bt.split(x, (1, 1), 1)
    with pytest.raises(IndexError, match="expected an index from -2 to 1"):
        x[2]
    with pytest.raises(IndexError, match=r"\[expand_dims\] expected an axis from -3 to 2, got 3"):
        bt.expand_dims(x, 3)
