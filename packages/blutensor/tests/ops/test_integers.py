"""Operators on integers of every width, and promotion, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from layer_checks import layouts

import blutensor as bt

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
ARITHMETIC = ["add", "subtract", "multiply", "maximum", "minimum", "floor_divide", "remainder"]
BITS = ["bitwise_and", "bitwise_or", "bitwise_xor"]
COMPARISONS = ["equal", "not_equal", "less", "less_equal", "greater", "greater_equal"]
UNARY = ["negative", "abs", "sign", "square", "bitwise_invert", "floor", "ceil", "trunc", "round"]
NUMPY = {"negative": np.negative, "abs": np.abs, "bitwise_invert": np.invert}


def all_bits(dtype: str, rng: np.random.Generator, n: int) -> Any:
    """Integers of any bits, the extremes among them."""
    info = np.iinfo(dtype)
    ends = np.array([0, 1, info.max, info.min, info.max - 1], dtype)
    return np.concatenate([rng.integers(info.min, info.max, n, dtype=dtype, endpoint=True), ends])


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str, dtype: str) -> None:
    x = all_bits(dtype, np.random.default_rng(1), 999)
    with np.errstate(all="ignore"):
        exact = (NUMPY.get(name) or getattr(np, name))(x)
    ours = getattr(bt, name)(bt.asarray(x)).numpy()
    assert ours.dtype == x.dtype
    assert np.array_equal(ours, exact.astype(dtype))


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("name", [*ARITHMETIC, *BITS, *COMPARISONS])
def test_binary(name: str, dtype: str) -> None:
    rng = np.random.default_rng(2)
    a, b = all_bits(dtype, rng, 999), all_bits(dtype, rng, 999)[::-1]
    with np.errstate(all="ignore"):
        exact = getattr(np, name)(a, b)
    for _, x in layouts(a):
        ours = getattr(bt, name)(x, bt.asarray(b.copy())).numpy()
        assert ours.dtype == exact.dtype
        assert np.array_equal(ours, exact)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_shifts(dtype: str) -> None:
    bits = 8 * np.dtype(dtype).itemsize
    a = all_bits(dtype, np.random.default_rng(3), 200)
    for b in range(bits):
        amount = np.array(b, dtype)
        assert np.array_equal(
            bt.bitwise_left_shift(bt.asarray(a), bt.asarray(amount)).numpy(), np.left_shift(a, amount)
        )
        assert np.array_equal(
            bt.bitwise_right_shift(bt.asarray(a), bt.asarray(amount)).numpy(), np.right_shift(a, amount)
        )
    everything = bt.full((), 100, dtype=dtype)  # more than any width: all bits are shifted out
    assert not bt.bitwise_left_shift(bt.asarray(a), everything).numpy().any()
    assert np.array_equal(
        bt.bitwise_right_shift(bt.asarray(a), everything).numpy(), np.where(a < 0, -1, 0).astype(dtype)
    )


@pytest.mark.parametrize("dtype", INTEGERS)
def test_power(dtype: str) -> None:
    rng = np.random.default_rng(4)
    base, exponent = all_bits(dtype, rng, 200), rng.integers(0, 9, 205).astype(dtype)
    with np.errstate(all="ignore"):
        assert np.array_equal(bt.pow(bt.asarray(base), bt.asarray(exponent)).numpy(), np.power(base, exponent))


def test_division_by_zero_and_the_lowest_by_minus_one() -> None:
    for dtype in INTEGERS:
        x = bt.asarray(all_bits(dtype, np.random.default_rng(5), 20))
        zero = bt.zeros((), dtype=dtype)
        assert not bt.floor_divide(x, zero).numpy().any()
        assert not bt.remainder(x, zero).numpy().any()
    for dtype in INTEGERS[:4]:
        low, minus = bt.full((), np.iinfo(dtype).min, dtype=dtype), bt.full((), -1, dtype=dtype)
        assert bt.floor_divide(low, minus).item() == np.iinfo(dtype).min
        assert bt.remainder(low, minus).item() == 0


# The standard's tables, by name: signed, unsigned, and mixed; None: no dtype holds both.
def expected_promotion(a: str, b: str) -> str | None:
    if a == b:
        return a
    kinds = {a[0], b[0]}
    width = {n: int(n.lstrip("uint")) for n in (a, b)}
    if len(kinds) == 1:
        return max((a, b), key=width.__getitem__)
    signed, unsigned = (a, b) if a[0] == "i" else (b, a)
    size = max(width[signed], 2 * width[unsigned])
    return f"int{size}" if size <= 64 else None


@pytest.mark.parametrize("a", INTEGERS)
@pytest.mark.parametrize("b", INTEGERS)
def test_integer_promotion(a: str, b: str) -> None:
    expected = expected_promotion(a, b)
    x, y = bt.ones((3,), dtype=a), bt.full((3,), 2, dtype=b)
    if expected is None:
        with pytest.raises(bt.DTypeError, match="no integer dtype holds both"):
            bt.add(x, y)
        with pytest.raises(bt.DTypeError, match="no integer dtype holds both"):
            bt.result_type(a, b)
        assert bt.logical_and(x, y).numpy().all()  # what has no common dtype still has a truth
        return
    total = bt.add(x, y)
    assert total.dtype.name == expected
    assert total.tolist() == [3, 3, 3]
    assert bt.result_type(x, y).name == expected
    if expected != "float64":
        assert np.result_type(np.dtype(a), np.dtype(b)).name == expected


@pytest.mark.parametrize("integer", [*INTEGERS, "bool"])
@pytest.mark.parametrize("floating", ["float16", "bfloat16", "float32", "float64"])
def test_a_float_beside_an_integer_decides(integer: str, floating: str) -> None:
    x, y = bt.ones((2,), dtype=integer), bt.full((2,), 0.5, dtype=floating)
    for total in (bt.add(x, y), bt.multiply(y, x), bt.where(bt.asarray(np.array([True, False])), x, y)):
        assert total.dtype.name == floating
    assert bt.result_type(integer, floating).name == floating


@pytest.mark.parametrize("dtype", INTEGERS)
def test_python_numbers_are_weak(dtype: str) -> None:
    x = bt.asarray(np.array([1, 2, 3], dtype))
    info = np.iinfo(dtype)
    assert (x + 1).dtype.name == dtype
    assert (x + True).dtype.name == dtype
    assert (x * 0.5).dtype is bt.float32
    assert bt.maximum(x, info.max).tolist() == [info.max] * 3
    for beyond in (info.max + 1, info.min - 1):
        with pytest.raises(bt.ShapeError, match=f"expected an integer from {info.min} to {info.max} for {dtype}"):
            x + beyond


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_all_64_bits_count(dtype: str) -> None:
    info = np.iinfo(dtype)
    for value in (info.max, info.max - 1, info.min, 2**53 + 1):
        full = bt.full((3,), value, dtype=dtype)
        assert full.tolist() == [value] * 3
        assert bt.zeros((2,), dtype=dtype).fill_(value).tolist() == [value] * 2
    x = bt.asarray(np.array([info.max, info.max - 1, info.min], dtype))
    assert bt.max(x).item() == info.max
    assert bt.min(x).item() == info.min
    assert bt.argmax(x).item() == 0
    assert bt.argmin(x).item() == 2
    assert bt.less(x, info.max).tolist() == [False, True, True]
    assert bt.argsort(x).tolist() == [2, 1, 0]


def test_uint64_to_floats() -> None:
    x = np.array([0, 2**53 + 1, 2**63, 2**64 - 1, 2**63 + 2**39 + 1], np.uint64)
    assert np.array_equal(bt.asarray(x).astype("float64").numpy(), x.astype(np.float64))
    assert np.array_equal(bt.asarray(x).astype("float32").numpy(), x.astype(np.float32))
    assert bt.asarray(np.array([np.nan, -1.0, 1e30, 2.0**63])).astype("uint64").tolist() == [0, 0, 2**64 - 1, 2**63]
    # Rounded once: to float32 first, the last one would be a tie and go to even.
    assert bt.asarray(x[-1:]).astype("bfloat16").astype("float64").item() == 2.0**63
    above = np.array([2**63 + 2**55 + 1], np.uint64)
    assert bt.asarray(above).astype("bfloat16").astype("float64").item() == 2.0**63 + 2.0**56


@pytest.mark.parametrize("dtype", INTEGERS)
def test_matmul_wraps(dtype: str) -> None:
    rng = np.random.default_rng(6)
    a, b = all_bits(dtype, rng, 30).reshape(5, 7), all_bits(dtype, rng, 58).reshape(7, 9)
    with np.errstate(all="ignore"):
        assert np.array_equal(bt.matmul(bt.asarray(a), bt.asarray(b)).numpy(), np.matmul(a, b))
