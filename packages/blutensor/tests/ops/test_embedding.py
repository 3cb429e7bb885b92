"""embedding and its deterministic gradient."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_checks import (
    assert_as_good_as,
    first_gradients,
    gradients,
    layouts,
    normal,
    parameter,
    poison,
    require_torch,
    same_bits_for_any_threads,
    torch_gradients,
)

import blutensor as bt
from blutensor.gradcheck import gradcheck
from blutensor.nn import functional as F


def scatter(ids: np.ndarray, upstream: np.ndarray, num_rows: int) -> np.ndarray:
    """The gradient in float64."""
    exact = np.zeros((num_rows, upstream.shape[-1]))
    np.add.at(exact, ids.ravel(), upstream.reshape(ids.size, upstream.shape[-1]).astype(np.float64))
    return exact


@pytest.mark.parametrize("id_dtype", [np.int32, np.int64])
@pytest.mark.parametrize(
    ("shape", "rows", "cols"),
    [
        ((), 3, 4),
        ((5,), 1, 1),
        ((2, 7), 11, 127),
        ((3, 5), 7, 128),
        ((17,), 5, 129),
        ((2048,), 256, 130),
        ((4, 0), 3, 2),
        ((0,), 3, 2),
        ((3,), 2, 0),
    ],
)
def test_values_and_gradient(shape: tuple[int, ...], rows: int, cols: int, id_dtype: type) -> None:
    torch = require_torch()
    rng = np.random.default_rng(1)
    ids, weight = rng.integers(0, rows, shape).astype(id_dtype), normal(rng, rows, cols)
    poison(ids.size * cols, rows * cols)
    w = parameter(weight)
    got = F.embedding(bt.asarray(ids), w)
    np.testing.assert_array_equal(got.detach().numpy(), weight[ids])
    upstream = normal(rng, *shape, cols)
    (ours,) = gradients(lambda w: F.embedding(bt.asarray(ids), w), [w], upstream)
    (peer,) = torch_gradients(
        lambda w: torch.nn.functional.embedding(torch.tensor(ids, dtype=torch.int64), w),
        [torch.tensor(weight, requires_grad=True)],
        torch.tensor(upstream),
    )
    assert_as_good_as(ours, peer, scatter(ids, upstream, rows))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(1, 300), st.integers(0, 400), st.integers(0, 2**32 - 1))
def test_gradient_is_the_sum_over_positions(rows: int, cols: int, count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    # Squared: a few ids get most positions.
    ids = (rng.random(count) ** 2 * rows).astype(np.int64)
    upstream = rng.standard_normal((count, cols))
    w = parameter(np.zeros((rows, cols)))
    (got,) = gradients(lambda w: F.embedding(bt.asarray(ids), w), [w], upstream)
    np.testing.assert_allclose(got, scatter(ids, upstream, rows), rtol=1e-12, atol=1e-12)


def test_one_id_everywhere_is_summed_in_short_runs() -> None:
    rng = np.random.default_rng(2)
    ids = np.zeros(20000, np.int64)
    upstream = np.abs(normal(rng, 20000, 3))
    (got,) = gradients(lambda w: F.embedding(bt.asarray(ids), w), [parameter(np.zeros((2, 3), np.float32))], upstream)
    exact = scatter(ids, upstream, 2)
    # Runs of 32 and 625 of their sums: at most 657 roundings, a tenth of which a random walk uses.
    assert np.abs(got - exact).max() <= 66 * 2.0**-24 * exact.max()
    assert (got[1] == 0).all()


def test_gradients_accumulate_in_the_buffer() -> None:
    rng = np.random.default_rng(3)
    w, ids, upstream = parameter(normal(rng, 9, 5)), np.array([3, 3, 8]), normal(rng, 3, 5)
    for _ in range(2):
        F.embedding(bt.asarray(ids), w).backward(bt.asarray(upstream))
    np.testing.assert_allclose(w.grad.numpy(), 2 * scatter(ids, upstream, 9), rtol=1e-6)


def test_layouts_of_ids_weight_and_upstream() -> None:
    rng = np.random.default_rng(4)
    ids, weight, upstream = rng.integers(0, 7, (3, 4)), normal(rng, 7, 6), normal(rng, 3, 4, 6)
    for (_, i), (_, w), (_, g) in zip(layouts(ids), layouts(weight), layouts(upstream), strict=True):
        w.requires_grad = True
        y = F.embedding(i, w)
        np.testing.assert_array_equal(y.detach().numpy(), weight[ids])
        np.testing.assert_allclose(bt.grad([y], [w], [g])[0].numpy(), scatter(ids, upstream, 7), rtol=1e-5, atol=1e-6)
    expanded = bt.broadcast_to(bt.ones(()), (3, 4, 6))
    w = parameter(weight)
    np.testing.assert_array_equal(
        bt.grad([F.embedding(bt.asarray(ids), w)], [w], [expanded])[0].numpy(), scatter(ids, np.ones((3, 4, 6)), 7)
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int32", "uint8"])
def test_other_dtypes(dtype: str) -> None:
    weight = bt.asarray(np.arange(12, dtype=np.float32).reshape(4, 3)).astype(dtype)
    got = F.embedding(bt.asarray(np.array([2, 0])), weight)
    assert got.dtype.name == dtype
    np.testing.assert_array_equal(got.astype("float32").numpy(), [[6, 7, 8], [0, 1, 2]])


def test_16_bit_gradients_are_summed_in_float32() -> None:
    w = bt.zeros((1, 2), dtype="bfloat16")
    w.requires_grad = True
    F.embedding(bt.zeros((1000,), dtype="int64"), w).backward(bt.ones((1000, 2), dtype="bfloat16"))
    np.testing.assert_array_equal(w.grad.astype("float32").numpy(), [[1000, 1000]])


def test_second_derivative() -> None:
    ids = bt.asarray(np.array([1, 1, 0]))

    def loss(w: bt.Tensor) -> bt.Tensor:
        y = F.embedding(ids, w)
        return (y * y * y).sum()

    gradcheck(first_gradients(loss), [parameter(np.random.default_rng(5).standard_normal((3, 2)))])


def test_same_bits_for_any_number_of_threads() -> None:
    rng = np.random.default_rng(6)
    ids, w, upstream = (
        (rng.random(5000) ** 3 * 100).astype(np.int64),
        parameter(normal(rng, 100, 300)),
        normal(rng, 5000, 300),
    )
    same_bits_for_any_threads(lambda: gradients(lambda w: F.embedding(bt.asarray(ids), w), [w], upstream))


@pytest.mark.parametrize("bad", [5, -1, 2**40])
def test_ids_out_of_range_are_named_before_anything_is_written(bad: int) -> None:
    ids = bt.asarray(np.array([[0, 4], [bad, 1]]))
    text = rf"\[embedding\] expected ids from 0 to 4, got {bad} at position 2"
    with pytest.raises(IndexError, match=text):
        F.embedding(ids, bt.ones((5, 2)))


def test_rows_behind_num_ids_are_padding() -> None:
    rng = np.random.default_rng(7)
    weight, ids = normal(rng, 8, 3), np.array([[0, 4], [4, 1]])
    w = parameter(weight)
    y = F.embedding(bt.asarray(ids), w, 5)
    np.testing.assert_array_equal(y.detach().numpy(), weight[ids])
    upstream = normal(rng, 2, 2, 3)
    y.backward(bt.asarray(upstream))
    np.testing.assert_allclose(w.grad.numpy(), scatter(ids, upstream, 8), rtol=1e-6)
    assert F.embedding(bt.asarray(np.array([7])), w, 8).shape == (1, 3)
    for bad in (5, 7, 8, -1):
        with pytest.raises(IndexError, match=rf"\[embedding\] expected ids from 0 to 4, got {bad} at position 1"):
            F.embedding(bt.asarray(np.array([0, bad])), w, 5)


@pytest.mark.parametrize("num_ids", [-1, 4])
def test_num_ids_is_a_number_of_rows(num_ids: int) -> None:
    with pytest.raises(ValueError, match=rf"expected num_ids from 0 \(all\) to 3, the rows of weight, got {num_ids}"):
        F.embedding(bt.zeros((2,), dtype="int64"), bt.ones((3, 2)), num_ids)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: F.embedding(bt.ones((2,)), bt.ones((3, 2))), TypeError, "int32 or int64"),
        (
            lambda: F.embedding(bt.zeros((2,), dtype="int64"), bt.ones((3,))),
            ValueError,
            r"expected weight of shape \(V, C\)",
        ),
    ],
)
def test_errors_name_what_is_wrong(call: Callable[[], object], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call()
