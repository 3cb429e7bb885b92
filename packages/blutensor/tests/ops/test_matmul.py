"""matmul against NumPy in float64, beside PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_checks import (
    assert_as_good_as,
    gradients,
    layouts,
    normal,
    parameter,
    require_torch,
    same_bits_for_any_threads,
    torch_gradients,
)

import blutensor as bt

SHAPES = [
    ((3, 4), (4, 5)),
    ((1, 1), (1, 1)),
    ((13, 97), (97, 31)),
    ((14, 64), (64, 32)),
    ((15, 65), (65, 33)),
    ((127, 257), (257, 131)),
    ((7,), (7,)),
    ((7,), (7, 3)),
    ((5, 7), (7,)),
    ((2, 3, 5, 7), (7, 4)),
    ((2, 3, 5, 7), (3, 7, 4)),
    ((2, 1, 5, 7), (1, 3, 7, 4)),
    ((7,), (2, 3, 7, 4)),
    ((2, 3, 5, 7), (7,)),
    ((0, 4), (4, 3)),
    ((3, 0), (0, 4)),
    ((3, 4), (4, 0)),
    ((0, 3, 4), (4, 2)),
]


@pytest.mark.parametrize(("a_shape", "b_shape"), SHAPES)
def test_values_and_gradients(a_shape: tuple[int, ...], b_shape: tuple[int, ...]) -> None:
    torch = require_torch()
    rng = np.random.default_rng(1)
    a, b = normal(rng, *a_shape), normal(rng, *b_shape)
    exact = np.matmul(a.astype(np.float64), b.astype(np.float64))
    ours = bt.matmul(bt.asarray(a), bt.asarray(b)).numpy()
    assert ours.shape == exact.shape
    assert_as_good_as(ours, torch.matmul(torch.tensor(a), torch.tensor(b)).numpy(), exact)
    upstream = normal(rng, *exact.shape)
    peer = torch_gradients(torch.matmul, [torch.tensor(v, requires_grad=True) for v in (a, b)], torch.tensor(upstream))
    exact_gradients = torch_gradients(
        torch.matmul,
        [torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (a, b)],
        torch.tensor(upstream).double(),
    )
    for got, other, true in zip(
        gradients(bt.matmul, [parameter(a), parameter(b)], upstream), peer, exact_gradients, strict=True
    ):
        assert got.shape == true.shape
        assert_as_good_as(got, other, true)


def test_every_pair_of_layouts_gives_the_same_values() -> None:
    rng = np.random.default_rng(2)
    a, b = normal(rng, 2, 9, 17), normal(rng, 2, 17, 5)
    exact = a.astype(np.float64) @ b
    for a_name, left in layouts(a):
        for b_name, right in layouts(b):
            got = bt.matmul(left, right).numpy()
            # 17 products of normal numbers: 17 roundings of a sum that stays below 32.
            np.testing.assert_allclose(got, exact, rtol=0, atol=17 * 32 * 2.0**-24, err_msg=f"{a_name}, {b_name}")


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_batches_broadcast_as_in_numpy(data: st.DataObject) -> None:
    full = data.draw(st.lists(st.integers(0, 3), max_size=3))
    sides = [
        [1 if data.draw(st.booleans()) else n for n in full][data.draw(st.integers(0, len(full))) :] for _ in range(2)
    ]
    m, k, n = (data.draw(st.integers(0, 5)) for _ in range(3))
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((*sides[0], m, k)), rng.standard_normal((*sides[1], k, n))
    np.testing.assert_allclose(bt.matmul(bt.asarray(a), bt.asarray(b)).numpy(), a @ b, rtol=1e-13, atol=1e-13)


def test_expanded_operands_are_read_in_place() -> None:
    rng = np.random.default_rng(4)
    row = normal(rng, 1, 1, 6)
    a = bt.broadcast_to(bt.asarray(row), (3, 4, 6))
    b = normal(rng, 6, 2)
    np.testing.assert_allclose(
        bt.matmul(a, bt.asarray(b)).numpy(), np.broadcast_to(row, (3, 4, 6)) @ b, rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bit_operands_accumulate_in_float32(dtype: str) -> None:
    rng = np.random.default_rng(5)
    a, b = (bt.asarray(normal(rng, *s)).astype(dtype) for s in ((2, 5, 300), (300, 7)))
    exact = a.astype("float64").numpy() @ b.astype("float64").numpy()
    assert_as_good_as(bt.matmul(a, b).astype("float32").numpy(), None, exact, dtype)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8])
def test_integers_wrap_around(dtype: type) -> None:
    rng = np.random.default_rng(6)
    a, b = (rng.integers(0, 200, shape).astype(dtype) for shape in ((3, 4, 5), (5, 2)))
    np.testing.assert_array_equal(bt.matmul(bt.asarray(a), bt.asarray(b)).numpy(), a @ b)


def test_special_values_propagate() -> None:
    a = np.eye(3, dtype=np.float32)
    a[0, 0], a[1, 1] = np.nan, np.inf
    with np.errstate(invalid="ignore"):
        expected = a @ np.ones((3, 2), np.float32)
    np.testing.assert_array_equal(bt.matmul(bt.asarray(a), bt.ones((3, 2))).numpy(), expected)


def test_same_bits_for_any_number_of_threads() -> None:
    rng = np.random.default_rng(7)
    a, b = normal(rng, 3, 211, 307), normal(rng, 307, 129)
    same_bits_for_any_threads(lambda: [bt.matmul(bt.asarray(a), bt.asarray(b)).numpy()])


@pytest.mark.parametrize(
    ("a", "b", "error", "text"),
    [
        (
            bt.ones((2, 3)),
            bt.ones((2, 3)),
            ValueError,
            r"\[matmul\] expected the last axis of a to match .* \(2, 3\) and \(2, 3\)",
        ),
        (bt.ones((2, 2, 3)), bt.ones((3, 3, 2)), ValueError, r"\[matmul\] expected shapes that broadcast"),
        (bt.ones(()), bt.ones((3,)), ValueError, "use multiply"),
        (bt.ones((2, 3), dtype="uint64"), bt.ones((3, 2), dtype="int64"), TypeError, "no integer dtype holds both"),
        (bt.ones((2, 3), dtype="bool"), bt.ones((3, 2), dtype="bool"), TypeError, "expected numbers"),
    ],
)
def test_errors_name_what_is_wrong(a: bt.Tensor, b: bt.Tensor, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        bt.matmul(a, b)
