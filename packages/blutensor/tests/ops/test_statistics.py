"""Products, counts, variances, log-sum-exp and positions of the smallest, against NumPy in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from layer_checks import (
    assert_as_good_as,
    gradients,
    layouts,
    normal,
    parameter,
    poison,
    same_bits_for_any_threads,
)

import blutensor as bt

Array = np.ndarray[Any, Any]


def logsumexp(x: Array, axis: Any = None, keepdims: bool = False) -> Array:
    largest = np.max(x, axis=axis, keepdims=True)
    total = np.log(np.sum(np.exp(x - largest), axis=axis, keepdims=True)) + largest
    return total if keepdims else np.squeeze(total, axis=axis)


FLOATING = {"prod": np.prod, "var": np.var, "std": np.std, "logsumexp": logsumexp}
COUNTING = {"any": np.any, "all": np.all, "count_nonzero": np.count_nonzero}
# Around the gathering block (512), the columns of a block (128) and a stretch (32768).
SHAPES = [(1,), (7,), (511,), (513,), (32769,), (3, 5), (513, 257), (5, 40000), (2, 3, 4), (1, 1, 1), ()]


def all_axes(rank: int) -> list[tuple[int, ...]]:
    return [(), *(tuple(i for i in range(rank) if mask >> i & 1) for mask in range(1, 1 << rank))]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", FLOATING)
def test_values(name: str, shape: tuple[int, ...]) -> None:
    # An offset that a variance by sums of squares in float32 would lose.
    x = normal(np.random.default_rng(1), *shape) + np.float32(100 if name in ("var", "std") else 0)
    x = np.exp(np.float32(0.01) * x) if name == "prod" else x
    for axes in all_axes(len(shape)):
        for keepdims in (False, True):
            exact = np.asarray(FLOATING[name](x.astype(np.float64), axis=axes or None, keepdims=keepdims))
            poison(exact.size)
            ours = getattr(bt, name)(bt.asarray(x), axes or None, keepdims=keepdims).numpy()
            assert ours.shape == exact.shape
            assert_as_good_as(ours, None, exact)  # float64 inside: one rounding


@pytest.mark.parametrize("name", [*FLOATING, *COUNTING])
def test_layouts(name: str) -> None:
    x = np.abs(normal(np.random.default_rng(2), 61, 37)) + np.float32(0.5)
    x[3] = 0
    for _, tensor in layouts(x):
        for axis in (None, 0, 1):
            reference = {**FLOATING, **COUNTING}[name]
            exact = np.asarray(reference(x.astype(np.float64), axis=axis))
            assert_as_good_as(getattr(bt, name)(tensor, axis).numpy(), None, exact)


@pytest.mark.parametrize("name", FLOATING)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_floating_dtypes(name: str, dtype: str) -> None:
    x = bt.asarray(np.exp(0.01 * normal(np.random.default_rng(3), 70, 40))).astype(dtype)
    wide = x.astype("float64").numpy()
    for axis in (None, 0, 1):
        ours = getattr(bt, name)(x, axis)
        assert ours.dtype.name == dtype
        exact = np.asarray(FLOATING[name](wide, axis=axis))
        half = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float64": 2.0**-46}[dtype]
        if dtype == "float64":
            # NumPy's own sums are off by a few units of 2^-53 per hundred terms. Joined variances lose n k units with
            # k^2 = 1 + mean^2 / variance (Chan, Golub and LeVeque 1983).
            condition = np.sqrt(1 + np.mean(wide, axis=axis) ** 2 / np.var(wide, axis=axis))
            half = 2.0**-46 + (wide.size / exact.size * condition * 2.0**-53 if name in ("var", "std") else 0)
        smallest = 2.0**-25 if dtype == "float16" else 0
        assert np.all(np.abs(ours.astype("float64").numpy() - exact) <= 1.01 * half * np.abs(exact) + smallest)


@pytest.mark.parametrize("correction", [0, 1, 2.5])
def test_correction(correction: float) -> None:
    x = normal(np.random.default_rng(4), 9, 33)
    for name in ("var", "std"):
        exact = FLOATING[name](x.astype(np.float64), axis=1, ddof=correction)
        assert_as_good_as(getattr(bt, name)(bt.asarray(x), axis=1, correction=correction).numpy(), None, exact)
    assert bt.isnan(bt.var(bt.asarray(x[:, :1]), axis=1, correction=1)).numpy().all()


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint8", "int32", "uint32", "int64", "uint64", "float32", "bfloat16"]
)
@pytest.mark.parametrize("name", COUNTING)
def test_counting(name: str, dtype: str) -> None:
    x = np.random.default_rng(5).integers(0, 2, (3, 700, 2))
    x[1] = 1
    x[2] = 0
    tensor = bt.asarray(x).astype(dtype)
    for axis in (None, 0, 1, (1, 2)):
        ours = getattr(bt, name)(tensor, axis)
        assert ours.dtype is (bt.int64 if name == "count_nonzero" else bt.bool_)
        assert np.array_equal(ours.numpy(), COUNTING[name](x, axis=axis))


def test_small_numbers_and_nan_are_true() -> None:
    x = bt.asarray(np.array([0.25, np.nan, -1e-30, 0.0, -0.0], np.float32))
    assert bt.count_nonzero(x).item() == 3
    assert bt.any(x).item() is True
    assert bt.all(x[:3]).item() is True
    assert bt.all(x).item() is False
    foreign = bt.asarray(np.array([0, 1, 2, 255], np.uint8).view(np.bool_))
    assert bt.count_nonzero(foreign).item() == 3
    assert bt.all(foreign[1:]).item() is True


def test_of_nothing() -> None:
    x = bt.zeros((0, 3))
    assert bt.prod(x, 0).tolist() == [1, 1, 1]
    assert bt.any(x, 0).tolist() == [False] * 3
    assert bt.all(x, 0).tolist() == [True] * 3
    assert bt.count_nonzero(x).item() == 0
    assert bt.logsumexp(x, 0).tolist() == [-np.inf] * 3
    assert bt.isnan(bt.var(x, 0)).numpy().all()
    assert bt.prod(bt.zeros((3, 0)), 0).shape == (0,)


def test_special_values() -> None:
    inf, nan = np.inf, np.nan
    rows = bt.asarray(np.array([[1, inf], [-inf, -inf], [nan, 1], [-inf, 2], [inf, -inf], [1e38, 1e38]], np.float32))
    ours = bt.logsumexp(rows, 1).numpy()
    np.testing.assert_array_equal(ours, np.array([inf, -inf, nan, 2, inf, 1e38], np.float32))
    assert bt.isnan(bt.var(rows, 1)).tolist() == [True, True, True, True, True, False]
    assert bt.var(rows[5:]).item() == 0
    np.testing.assert_array_equal(bt.prod(rows, 1).numpy(), np.array([inf, inf, nan, -inf, -inf, inf], np.float32))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32", "int64", "uint64", "bool"])
def test_integer_products(dtype: str) -> None:
    x = np.random.default_rng(6).integers(0, 2 if dtype == "bool" else 100, (9, 41)).astype(dtype)
    for axis in (None, 0, 1):
        ours = bt.prod(bt.asarray(x), axis)
        exact = np.prod(x, axis=axis)
        assert ours.numpy().dtype == exact.dtype
        assert np.array_equal(ours.numpy(), exact)


@pytest.mark.parametrize("name", ["sum", "prod"])
def test_dtype_of_the_result(name: str) -> None:
    x = bt.asarray(np.array([[100, 100], [3, 4]], np.int8))
    narrow = getattr(bt, name)(x, 1, dtype="int8")
    assert narrow.dtype is bt.int8
    assert narrow.numpy()[1] == getattr(np, name)([3, 4])
    assert getattr(bt, name)(x, dtype="float64").dtype is bt.float64


def test_zeros_in_a_product_have_gradients() -> None:
    for values in ([2.0, 3.0, 4.0], [0.0, 3.0, 4.0], [0.0, 0.0, 4.0]):
        x = np.array(values)
        (ours,) = gradients(bt.prod, [parameter(x)], np.array(1.0))
        assert ours.tolist() == [np.prod(np.delete(x, i)) for i in range(3)]


def test_the_gradient_of_no_deviation_is_zero() -> None:
    (ours,) = gradients(lambda t: bt.std(t, 1), [parameter(np.ones((2, 3), np.float32))], np.ones(2, np.float32))
    assert not ours.any()


@pytest.mark.parametrize("shape", [(1,), (9,), (513,), (40001,), (5, 7), (3, 4, 5)], ids=str)
def test_argmin(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(7).integers(-3, 4, shape).astype(np.float32)
    assert bt.argmin(bt.asarray(x)).item() == np.argmin(x)
    for axis in range(-x.ndim, x.ndim):
        assert np.array_equal(bt.argmin(bt.asarray(x), axis).numpy(), np.argmin(x, axis))
    x.flat[x.size // 2] = np.nan
    assert bt.argmin(bt.asarray(x)).item() == np.argmin(x)


def test_same_bits_for_any_number_of_threads() -> None:
    x = normal(np.random.default_rng(8), 3, 100_003)
    same_bits_for_any_threads(
        lambda: [getattr(bt, name)(bt.asarray(x), axis).numpy() for name in FLOATING for axis in (None, 0, 1)]
    )


@pytest.mark.parametrize("n", [0, 1, 2, 9])
def test_diff(n: int) -> None:
    x = np.random.default_rng(9).integers(0, 99, (5, 7)).astype(np.int32)
    for axis in (0, 1, -1):
        assert np.array_equal(bt.diff(bt.asarray(x), axis=axis, n=n).numpy(), np.diff(x, axis=axis, n=n))
    ends = {"prepend": x[:, :2], "append": x[:, 3:]}
    ours = bt.diff(bt.asarray(x), n=n, **{k: bt.asarray(np.ascontiguousarray(v)) for k, v in ends.items()})
    assert np.array_equal(ours.numpy(), np.diff(x, n=n, **ends))


def test_errors() -> None:
    for name in ("var", "std", "logsumexp"):
        with pytest.raises(bt.DTypeError, match=rf"\[{name}\] expected a floating-point tensor, got int64"):
            getattr(bt, name)(bt.zeros((2,), dtype="int64"))
    with pytest.raises(bt.IndexOutOfRangeError):
        bt.any(bt.zeros((2,)), 1)
