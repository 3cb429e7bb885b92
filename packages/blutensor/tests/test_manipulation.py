"""Joining, repeating, turning and cutting against NumPy, and their gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import blutensor as bt

SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)


def numbered(shape: tuple[int, ...]) -> np.ndarray:
    return np.arange(np.prod(shape, dtype=int), dtype=np.float64).reshape(shape)


def check(function: Callable[[Any], Any], expected: Callable[[Any], Any], *shapes: tuple[int, ...]) -> None:
    """Values and, against them, gradients: every element of a result is one of an operand."""
    arrays = [numbered(s) + 10_000 * k for k, s in enumerate(shapes)]
    tensors = [bt.asarray(a).requires_grad_() for a in arrays]
    got, want = function(*tensors), expected(*arrays)
    results, wanted = (list(v) if isinstance(v, (list, tuple)) else [v] for v in (got, want))
    assert len(results) == len(wanted)
    total = None
    for g, w in zip(results, wanted, strict=True):
        assert g.shape == w.shape
        np.testing.assert_array_equal(g.detach().numpy(), w)
        weighed = (g * bt.asarray(1 + numbered(g.shape))).sum()
        total = weighed if total is None else total + weighed
    if total is None:
        return
    total.backward()
    for k, (t, a) in enumerate(zip(tensors, arrays, strict=True)):
        gradient = np.zeros(a.size + 1)
        for w in wanted:
            source = np.where((w >= 10_000 * k) & (w < 10_000 * k + a.size), w - 10_000 * k, a.size).astype(int)
            np.add.at(gradient, source, 1 + numbered(w.shape))
        assert t.grad is not None
        np.testing.assert_allclose(t.grad.numpy(), gradient[:-1].reshape(a.shape), rtol=1e-14)


@given(SHAPES, st.data())
@settings(max_examples=60, deadline=None)
def test_flip(shape: tuple[int, ...], data: st.DataObject) -> None:
    some = st.lists(st.integers(0, max(len(shape) - 1, 0)), unique=True, max_size=3 if shape else 0).map(tuple)
    axes = data.draw(st.none() | some)
    check(lambda x: bt.flip(x, axis=axes), lambda a: np.flip(a, axes), shape)
    x = bt.asarray(numbered(shape))
    assert bt.flip(x).storage_id == x.storage_id


@given(SHAPES, st.data())
@settings(max_examples=60, deadline=None)
def test_roll(shape: tuple[int, ...], data: st.DataObject) -> None:
    shift = data.draw(st.integers(-9, 9))
    check(lambda x: bt.roll(x, shift), lambda a: np.roll(a, shift), shape)
    if shape:
        axes = tuple(data.draw(st.lists(st.integers(-len(shape), len(shape) - 1), min_size=1, max_size=3)))
        shifts = tuple(data.draw(st.integers(-9, 9)) for _ in axes)
        check(lambda x: bt.roll(x, shifts, axis=axes), lambda a: np.roll(a, shifts, axes), shape)
        check(lambda x: bt.roll(x, shift, axis=axes[0]), lambda a: np.roll(a, shift, axes[0]), shape)


@given(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=3), st.lists(st.integers(0, 3), max_size=5))
@settings(max_examples=60, deadline=None)
def test_tile(shape: tuple[int, ...], counts: list[int]) -> None:
    check(lambda x: bt.tile(x, counts), lambda a: np.tile(a, counts), shape)


@given(hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=3), st.data())
@settings(max_examples=60, deadline=None)
def test_repeat(shape: tuple[int, ...], data: st.DataObject) -> None:
    count, axis = data.draw(st.integers(0, 3)), data.draw(st.integers(-len(shape), len(shape) - 1))
    check(lambda x: bt.repeat(x, count), lambda a: np.repeat(a, count), shape)
    check(lambda x: bt.repeat(x, count, axis=axis), lambda a: np.repeat(a, count, axis), shape)
    counts = [data.draw(st.integers(0, 3)) for _ in range(shape[axis])]
    each = bt.asarray(counts, dtype="int64")
    check(lambda x: bt.repeat(x, each, axis=axis), lambda a: np.repeat(a, counts, axis), shape)


@given(SHAPES, st.integers(1, 3), st.data())
@settings(max_examples=60, deadline=None)
def test_stack_concat_unstack(shape: tuple[int, ...], count: int, data: st.DataObject) -> None:
    axis = data.draw(st.integers(-len(shape) - 1, len(shape)))
    check(lambda *x: bt.stack(x, axis), lambda *a: np.stack(a, axis), *[shape] * count)
    check(lambda *x: bt.concat(x, axis=None), lambda *a: np.concatenate(a, axis=None), *[shape] * count)
    if shape:
        axis = data.draw(st.integers(-len(shape), len(shape) - 1))
        check(lambda *x: bt.concat(x, axis), lambda *a: np.concatenate(a, axis), *[shape] * count)
        check(lambda x: bt.unstack(x, axis), lambda a: list(np.moveaxis(a, axis, 0)), shape)


@given(SHAPES, st.data())
@settings(max_examples=60, deadline=None)
def test_moveaxis(shape: tuple[int, ...], data: st.DataObject) -> None:
    count = data.draw(st.integers(0, len(shape)))
    source, target = (tuple(data.draw(st.permutations(range(len(shape))))[:count]) for _ in range(2))
    check(lambda x: bt.moveaxis(x, source, target), lambda a: np.moveaxis(a, source, target), shape)
    if shape:
        check(lambda x: bt.moveaxis(x, -1, 0), lambda a: np.moveaxis(a, -1, 0), shape)


@given(hnp.mutually_broadcastable_shapes(num_shapes=3, max_dims=3, max_side=3))
@settings(max_examples=40, deadline=None)
def test_broadcast_arrays(shapes: Any) -> None:
    check(lambda *x: bt.broadcast_arrays(*x), lambda *a: list(np.broadcast_arrays(*a)), *shapes.input_shapes)
    assert bt.broadcast_shapes(*shapes.input_shapes) == shapes.result_shape


@pytest.mark.parametrize("indexing", ["xy", "ij"])
@pytest.mark.parametrize("sizes", [(), (3,), (2, 3), (2, 0, 4), (1, 2, 3, 4)])
def test_meshgrid(sizes: tuple[int, ...], indexing: Any) -> None:
    expected = lambda *a: list(np.meshgrid(*a, indexing=indexing))  # noqa: E731
    check(lambda *x: bt.meshgrid(*x, indexing=indexing), expected, *[(n,) for n in sizes])


@pytest.mark.parametrize("shape", [(3, 3), (2, 5), (5, 2), (2, 3, 4), (0, 3), (3, 0), (1, 1)])
@pytest.mark.parametrize("k", [-4, -1, 0, 1, 4])
def test_triangles_and_diagonals(shape: tuple[int, ...], k: int) -> None:
    shifted = numbered(shape) + 1
    for ours, theirs in ((bt.tril, np.tril), (bt.triu, np.triu)):
        x = bt.asarray(shifted).requires_grad_()
        y = ours(x, k=k)
        np.testing.assert_array_equal(y.detach().numpy(), theirs(shifted, k))
        y.backward(bt.asarray(shifted))
        assert x.grad is not None
        np.testing.assert_array_equal(x.grad.numpy(), theirs(shifted, k))
    check(lambda x: bt.diagonal(x, offset=k), lambda a: np.diagonal(a, k, -2, -1), shape)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "uint8", "bool"])
def test_dtypes_stay(dtype: str) -> None:
    x = bt.asarray(np.arange(6).reshape(2, 3)).astype(dtype)
    for y in (bt.flip(x), bt.roll(x, 1), bt.tile(x, (2,)), bt.repeat(x, 2), bt.stack([x, x]), bt.tril(x), bt.triu(x)):
        assert y.dtype.name == dtype
    # Not a number stays out of the other triangle.
    assert bt.tril(bt.full((2, 2), float("nan"))).tolist()[0][1] == 0


def test_results_own_their_memory() -> None:
    """What the standard does not allow to be a view is none."""
    x = bt.arange(4)
    for y in (bt.roll(x, 0), bt.roll(x, 4, axis=0), bt.tile(x, (1,))):
        assert y.storage_id != x.storage_id
        assert y.tolist() == x.tolist()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: bt.flip(x, axis=2), bt.IndexOutOfRangeError, r"\[flip\] expected an axis from -2 to 1, got 2"),
        (lambda x: bt.moveaxis(x, (0, 0), (0, 1)), bt.ShapeError, "every axis once"),
        (lambda x: bt.moveaxis(x, (0, 1), 0), bt.ShapeError, "as many destinations"),
        (lambda x: bt.stack([x, x[:1]]), bt.ShapeError, r"\[stack\] expected tensors of one shape"),
        (lambda x: bt.stack([x], 3), bt.IndexOutOfRangeError, r"\[stack\]"),
        (lambda x: bt.concat([]), bt.ShapeError, "at least one"),
        (lambda x: bt.roll(x, (1, 2), axis=0), bt.ShapeError, "a shift for each axis"),
        (lambda x: bt.tile(x, (-1,)), bt.ShapeError, "at least 0"),
        (lambda x: bt.repeat(x, [1, 2, 3], axis=0), bt.ShapeError, "expected 2 numbers"),
        (lambda x: bt.repeat(x, -1, axis=0), bt.ShapeError, "at least 0"),
        (lambda x: bt.meshgrid(x), bt.ShapeError, "1-d tensors"),
        (lambda x: bt.meshgrid(x[0], indexing="yx"), bt.ShapeError, "'xy' or 'ij'"),
        (lambda x: bt.tril(x[0]), bt.ShapeError, "at least 2 axes"),
        (lambda x: bt.unstack(x, axis=5), bt.IndexOutOfRangeError, r"\[unstack\]"),
        (lambda x: bt.broadcast_arrays(x, bt.zeros(2)), bt.ShapeError, "shapes that broadcast"),
        (lambda x: bt.flip(x, axis=0.5), bt.DTypeError, "integer"),
    ],
)
def test_bad_input(call: Callable[[bt.Tensor], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(bt.zeros((2, 3)))


@given(SHAPES.filter(lambda s: 0 not in s), st.data())
@settings(max_examples=60, deadline=None)
def test_reshape(shape: tuple[int, ...], data: st.DataObject) -> None:
    """A view or a copy, as NumPy finds with these strides."""
    array = numbered(shape)
    order = data.draw(st.permutations(range(len(shape))))
    factors = [int(d) for d in data.draw(st.permutations(shape))]
    new = tuple(factors) if data.draw(st.booleans()) else (array.size,)
    x, a = bt.permute_dims(bt.asarray(array), order), array.transpose(order)
    want = a.reshape(new)
    for copy in (None, True):
        got = bt.reshape(x, new, copy=copy)
        np.testing.assert_array_equal(got.numpy(), want)
        assert (got.storage_id == x.storage_id) is (copy is None and np.shares_memory(want, a))
    if np.shares_memory(want, a):
        assert bt.reshape(x, new, copy=False).storage_id == x.storage_id
    else:
        with pytest.raises(bt.ShapeError, match=r"\[reshape\] a copy is needed to go from shape"):
            bt.reshape(x, new, copy=False)


def test_reshape_wants_a_bool_for_copy() -> None:
    with pytest.raises(bt.DTypeError, match=r"expected True, False or None for copy, got 'yes'"):
        bt.reshape(bt.zeros(2), (2,), copy="yes")  # type: ignore[arg-type]
    assert bt.reshape(bt.zeros((2, 3)), (-1,)).shape == (6,)
