"""Indexing by arrays of integers and masks against NumPy: values, writes, gradients, mistakes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import blutensor as bt


def numbered(shape: tuple[int, ...], dtype: Any = np.float64) -> np.ndarray:
    return np.arange(np.prod(shape, dtype=int)).astype(dtype).reshape(shape)


def shape_and_index(seed: int) -> tuple[tuple[int, ...], Any]:
    """A shape and an index of integers, slices, None, Ellipsis, arrays of integers and masks, that NumPy takes."""
    rng = np.random.default_rng(seed)
    shape = tuple(int(n) for n in rng.integers(0, 5, rng.integers(1, 5)))
    broadcast = tuple(int(n) for n in rng.integers(0, 4, rng.integers(0, 3)))
    index: list[Any] = []
    axis, masked, ellipsis = 0, False, False
    while axis < len(shape):
        kind = rng.choice(["array", "array", "slice", "integer", "mask", "none", "ellipsis", "stop"])
        size = shape[axis]
        if kind == "array" and (size > 0 or 0 in broadcast):
            dtype = rng.choice([np.int64, np.int32, np.uint8])  # type: ignore[arg-type]
            low = 0 if dtype is np.uint8 else -size
            own = broadcast[rng.integers(0, len(broadcast) + 1) :]
            index.append(rng.integers(low, max(size, 1), own).astype(dtype) if size else np.zeros(broadcast, dtype))
            axis += 1
        elif kind == "slice":
            start, stop = (None if rng.integers(4) == 0 else int(rng.integers(-6, 7)) for _ in range(2))
            index.append(slice(start, stop, [None, 1, 2, -1, -3][rng.integers(5)]))
            axis += 1
        elif kind == "integer" and size > 0:
            index.append(int(rng.integers(-size, size)))
            axis += 1
        elif kind == "mask" and not masked:
            count = int(rng.integers(1, len(shape) - axis + 1))
            index.append(rng.integers(0, 2, shape[axis : axis + count]).astype(bool))
            axis, masked = axis + count, True
        elif kind == "none" and len(index) < 6:
            index.append(None)
        elif kind == "ellipsis" and not ellipsis:
            index.append(...)
            ellipsis = True
            axis = int(rng.integers(axis, len(shape) + 1))
        elif kind == "stop":
            break
    try:
        result = numbered(shape)[tuple(index)]
    except IndexError:  # arrays that do not broadcast with a mask's
        return shape, ()
    return (shape, tuple(index)) if result.ndim <= 8 else (shape, ())


@pytest.mark.parametrize("seeds", range(0, 1500, 100))
def test_reading(seeds: int) -> None:
    for shape, index in map(shape_and_index, range(seeds, seeds + 100)):
        check_reading(shape, index)


def check_reading(shape: tuple[int, ...], index: Any) -> None:
    array = numbered(shape)
    got, expected = bt.asarray(array)[index], array[index]
    assert got.shape == expected.shape, index
    np.testing.assert_array_equal(got.numpy(), expected)


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.uint8, bool])
def test_writing(dtype: Any) -> None:
    for shape, index in map(shape_and_index, range(2000, 2100)):
        check_writing(shape, index, dtype)


def check_writing(shape: tuple[int, ...], index: Any, dtype: Any) -> None:
    for value in (np.zeros((), dtype), 1 + numbered(numbered(shape)[index].shape, dtype)):
        array, tensor = numbered(shape, dtype), bt.asarray(numbered(shape, dtype))
        array[index] = value  # NumPy too keeps the last of several values for one place
        tensor[index] = bt.asarray(value)
        np.testing.assert_array_equal(tensor.numpy(), array, err_msg=str(index))


@pytest.mark.parametrize("seeds", range(3000, 3200, 50))
def test_gradient(seeds: int) -> None:
    for shape, index in map(shape_and_index, range(seeds, seeds + 50)):
        check_gradient(shape, index)


def check_gradient(shape: tuple[int, ...], index: Any) -> None:
    x = bt.asarray(numbered(shape)).requires_grad_()
    part = x[index]
    weights = 1.0 + numbered(part.shape)
    (part * bt.asarray(weights)).sum().backward()
    expected = np.zeros(shape)
    np.add.at(expected, index, weights)
    assert x.grad is not None
    np.testing.assert_array_equal(x.grad.numpy(), expected)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64", "int64", "int32", "uint8", "bool"])
def test_every_dtype(dtype: str) -> None:
    values = np.arange(24).reshape(4, 6) % 7
    x = bt.asarray(values).astype(dtype)
    got = x[bt.asarray([3, -4, 3]), bt.asarray([0, 5, -1])]
    assert got.dtype.name == dtype
    assert (
        got.astype("int64").tolist() == bt.asarray(values[[3, 0, 3], [0, 5, 5]]).astype(dtype).astype("int64").tolist()
    )
    x[bt.asarray([0, 0, 1])] = bt.ones((3, 1), dtype=dtype)
    assert x[:2].astype("int64").tolist() == [[1] * 6] * 2


def test_views_are_indexed_where_they_lie() -> None:
    array = numbered((5, 6, 7))
    for view in (np.s_[::2, ::-1, 1:], np.s_[:, :, ::3], np.s_[..., None, 2:4]):
        x, y = bt.asarray(array)[view], array[view]
        np.testing.assert_array_equal(x[[2, 0, -1]].numpy(), y[[2, 0, -1]])
        np.testing.assert_array_equal(x[:, [1, -2]].numpy(), y[:, [1, -2]])
        np.testing.assert_array_equal(x[y % 2 == 0].numpy(), y[y % 2 == 0])
    turned, twin = bt.asarray(array.copy()), array.copy()
    turned.permute_dims(2, 0, 1)[[0, 2], :, [1, 1]] = 9.0
    twin.transpose(2, 0, 1)[[0, 2], :, [1, 1]] = 9.0
    np.testing.assert_array_equal(turned.numpy(), twin)
    assert turned.version > 0


def test_what_is_read_is_a_copy() -> None:
    x = bt.arange(4)
    y = x[[0, 1]]
    y.fill_(9)
    assert x.tolist() == [0, 1, 2, 3]


def test_values_may_be_the_tensor_itself() -> None:
    x = bt.arange(5)
    x[[4, 3, 2, 1, 0]] = x
    assert x.tolist() == [4, 3, 2, 1, 0]
    y = bt.arange(6).reshape(2, 3)
    y[y > 2] = y[y > 2] * 10
    assert y.tolist() == [[0, 1, 2], [30, 40, 50]]


def test_augmented_assignment() -> None:
    x = bt.zeros(4)
    x[[0, 2]] += 1
    x[1:3] *= 5.0
    x[x == 0] -= 2
    assert x.tolist() == [1, -2, 5, -2]


def test_masks() -> None:
    x = bt.asarray(numbered((2, 3)))
    assert x[bt.asarray(True)].shape == (1, 2, 3)
    assert x[bt.asarray(False)].shape == (0, 2, 3)
    assert x[:, bt.asarray([True, False, True])].tolist() == [[0, 2], [3, 5]]
    x[x > 3] = -1
    assert x.tolist() == [[0, 1, 2], [3, -1, -1]]
    x[[True, False]] = bt.asarray([7.0, 8, 9])
    assert x.tolist() == [[7, 8, 9], [3, -1, -1]]
    whole = bt.arange(3)
    whole[whole > 0] = 2.7
    assert whole.tolist() == [0, 2, 2]


def test_gradients_add_in_the_order_of_the_indices() -> None:
    """100,000 values for three places, on one and more threads: the same bits."""
    rng = np.random.default_rng(1)
    index, upstream = rng.integers(0, 3, 100_000), rng.standard_normal((100_000, 2)).astype(np.float32)
    results = []
    for threads in (1, 2, 3):
        bt.set_num_threads(threads)
        x = bt.zeros((3, 2)).requires_grad_()
        x[bt.asarray(index)].backward(bt.asarray(upstream))
        assert x.grad is not None
        results.append(x.grad.numpy().tobytes())
    assert len(set(results)) == 1
    exact = np.zeros((3, 2))
    np.add.at(exact, index, upstream.astype(np.float64))
    # Sums of runs of 32: an error of some ten roundings of the largest partial sums, not of 33,000.
    np.testing.assert_allclose(np.frombuffer(results[0], np.float32).reshape(3, 2), exact, atol=2.0**-24 * 64 * 200)


def test_gradients_of_gradients() -> None:
    index = bt.asarray([[0, 2], [2, 1]])
    bt.gradcheck(
        lambda x: x[index] * x[index], [bt.asarray(np.random.default_rng(2).standard_normal(3)).requires_grad_()]
    )
    x = bt.asarray(np.array([1.0, 2, 3])).requires_grad_()
    (g,) = bt.grad([(x[index] ** 3).sum()], [x], create_graph=True)
    (g * g).sum().backward()
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), 2 * np.array([3.0, 12, 54]) * np.array([6.0, 12, 36]), rtol=1e-12)


# ---------------------------------------------------------------- take, take_along_axis, nonzero


def test_take() -> None:
    array = numbered((3, 4, 5))
    x = bt.asarray(array)
    for axis in (0, 1, 2, -1):
        np.testing.assert_array_equal(
            bt.take(x, bt.asarray([2, 0, -1]), axis=axis).numpy(), array.take([2, 0, -1], axis)
        )
    assert bt.take(bt.arange(5), bt.asarray([4, 4])).tolist() == [4, 4]
    assert bt.take(x, bt.zeros((2, 0), dtype="int64"), axis=1).shape == (3, 2, 0, 5)
    with pytest.raises(bt.ShapeError, match="expected an axis"):
        bt.take(x, bt.asarray([0]))
    bt.gradcheck(lambda t: bt.take(t, bt.asarray([1, 1, 0]), axis=1), [bt.asarray(array).requires_grad_()])


@given(hnp.array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=4), st.data())
@settings(max_examples=100, deadline=None)
def test_take_along_axis(shape: tuple[int, ...], data: st.DataObject) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    wide = list(shape)
    wide[axis] = data.draw(st.integers(0, 5))
    index = data.draw(hnp.arrays(np.int64, tuple(wide), elements=st.integers(-shape[axis], shape[axis] - 1)))
    array = numbered(shape)
    x = bt.asarray(array).requires_grad_()
    y = bt.take_along_axis(x, bt.asarray(index), axis=axis)
    np.testing.assert_array_equal(y.detach().numpy(), np.take_along_axis(array, index, axis))
    weights = 1 + numbered(y.shape)
    y.backward(bt.asarray(weights))
    expected = np.zeros(shape)
    grid = list(np.indices(index.shape))
    grid[axis] = index
    np.add.at(expected, tuple(grid), weights)
    assert x.grad is not None
    np.testing.assert_array_equal(x.grad.numpy(), expected)


def test_take_along_axis_broadcasts() -> None:
    array = numbered((3, 1, 4))
    x, index = bt.asarray(array).requires_grad_(), np.array([[[0, 3]], [[1, -1]]])
    got = bt.take_along_axis(x[:1], bt.asarray(index))
    np.testing.assert_array_equal(got.detach().numpy(), np.take_along_axis(array[:1].repeat(2, 0), index, -1))
    bt.gradcheck(lambda t: bt.take_along_axis(t[:1], bt.asarray(index)), [x])
    with pytest.raises(bt.ShapeError, match="as many axes"):
        bt.take_along_axis(x, bt.asarray([0]))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bit_gradients_are_added_in_float32(dtype: str) -> None:
    x = bt.zeros((1, 2), dtype=dtype).requires_grad_()
    bt.take_along_axis(x, bt.zeros((1, 4096), dtype="int64")).backward(bt.full((1, 4096), 0.01, dtype=dtype))
    one = float(bt.full((), 0.01, dtype=dtype).astype("float64").item())
    assert x.grad is not None
    # One rounding of the sum to 16 bits; added in 16 bits it would stand still at 4 or 32.
    assert abs(x.grad.astype("float64").tolist()[0][0] - 4096 * one) <= 4096 * one * 2.0**-8


def test_nonzero() -> None:
    for values in (
        np.array([0.0, 1.5, np.nan, -0.0, 2]),
        np.eye(3, dtype=np.int64),
        np.zeros((2, 0)),
        np.ones((2, 2), bool),
    ):
        got = bt.nonzero(bt.asarray(values))
        assert [g.tolist() for g in got] == [e.tolist() for e in values.nonzero()]
        assert all(g.dtype is bt.int64 for g in got)
    with pytest.raises(bt.ShapeError, match="at least 1 axis"):
        bt.nonzero(bt.asarray(1.0))


# ---------------------------------------------------------------- mistakes, captures


@pytest.mark.parametrize(
    ("index", "error", "message"),
    [
        ([0, 3], IndexError, r"expected an index from -3 to 2 of axis 0, got 3"),
        ((slice(None), np.array([[-5]])), IndexError, r"from -4 to 3 of axis 1, got -5"),
        ([True, False], IndexError, r"expected a mask of shape \(3,\).*got \(2,\)"),
        (np.ones((3, 3), bool), IndexError, r"expected a mask of shape \(3, 4\)"),
        ((np.ones((3, 4), bool), 0), IndexError, "at most 2 indices"),
        ([0.5], TypeError, "array of float64"),
        (bt.zeros(2), TypeError, r"tensor of float32 and shape \(2,\)"),
        ([[0], [1, 2]], ValueError, "sequences of equal lengths"),
        (([0, 1], [0, 1, 2]), ValueError, "broadcast"),
    ],
)
def test_wrong_indices(index: Any, error: type[Exception], message: str) -> None:
    x = bt.zeros((3, 4))
    with pytest.raises(error, match=message):
        x[index]
    with pytest.raises(error, match=message) as caught:
        x[index] = 1.0
    assert str(caught.value).startswith("[setitem] ")
    assert x.sum().item() == 0
    assert x[[2, 0]].shape == (2, 4)


def test_wrong_values() -> None:
    x = bt.zeros((3, 4))
    with pytest.raises(bt.ShapeError, match=r"\[setitem\] expected values that broadcast to \(2, 4\), got \(3,\)"):
        x[[0, 1]] = bt.ones(3)
    with pytest.raises(bt.ShapeError, match=r"memory|share"):
        bt.broadcast_to(bt.zeros(4), (3, 4))[[0, 1]] = 1.0
    with pytest.raises(bt.AutogradError, match="requires a gradient"):
        x[[0]] = bt.ones(4).requires_grad_()
    assert x.sum().item() == 0


def test_captured() -> None:
    """Arrays of integers are captured, as arguments; a mask's shape depends on values and is not."""
    x, columns, first = bt.asarray(numbered((4, 3))).requires_grad_(), bt.asarray([0, 2]), bt.asarray([0])

    def step(index: bt.Tensor) -> bt.Tensor:
        x.grad = None
        y = (x[index] * x[index, columns][:, None]).sum()
        y.backward()
        return bt.copy(x.grad)  # type: ignore[arg-type]

    captured = bt.capture(step)
    for index in ([0, 1], [3, 3], [2, -1], [1, 0]):
        expected = step(bt.asarray(index)).tolist()
        assert captured(bt.asarray(index)).tolist() == expected

    def masked(t: bt.Tensor) -> bt.Tensor:
        return t[t > 0]

    with pytest.raises(bt.CaptureError, match=r"a mask selects depends on its values.*use where"):
        bt.capture(masked)(bt.ones(3))
    assert not bt.is_capturing()

    def written(t: bt.Tensor) -> bt.Tensor:
        u = bt.copy(t)
        u[t > 1] = 0.0
        u[first] = 5.0
        return u

    captured = bt.capture(written)
    for _ in range(4):
        assert captured(bt.asarray([0.0, 1, 2])).tolist() == [5, 1, 0]


def test_masks_with_axes_of_size_zero_select_nothing() -> None:
    """The array API standard's rule: each axis of a mask has the size of the axis it covers, or 0."""
    x = bt.arange(12).reshape(3, 4)
    for shape, selected in (((0,), (0, 4)), ((0, 4), (0,)), ((3, 0), (0,)), ((0, 0), (0,))):
        mask = bt.zeros(shape, dtype="bool")
        assert x[mask].shape == selected
        assert x[mask].dtype is bt.int64
        y = bt.asarray(x, copy=True)
        y[mask] = 7
        assert y.tolist() == x.tolist()
    for shape, message in (((0, 3), "a mask of shape"), ((2, 0), "a mask of shape"), ((0, 0, 0), "at most 2 indices")):
        with pytest.raises(IndexError, match=f"expected {message}"):
            x[bt.zeros(shape, dtype="bool")]
