"""Functions of the array API standard against array-api-strict, its strict implementation over NumPy.

Results have the dtype and shape that the strict one gives, and its values: integers exactly, floats within what the
tests of the operators allow them (here: eight units of the last place, which a wrong function does not meet).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import blutensor as bt

strict = pytest.importorskip("array_api_strict", reason="array-api-strict is not installed")

SIGNED, UNSIGNED = ["int8", "int16", "int32", "int64"], ["uint8", "uint16", "uint32", "uint64"]
INTEGERS, FLOATS = [*SIGNED, *UNSIGNED], ["float32", "float64"]
NUMERIC = [*FLOATS, *INTEGERS]
ALL = [*NUMERIC, "bool"]

NUMERIC_UNARY = "abs ceil floor isfinite isinf isnan negative positive round sign square trunc"
FLOATING_UNARY = (
    "acos acosh asin asinh atan atanh cos cosh exp expm1 log log1p log2 log10 reciprocal signbit sin sinh sqrt tan tanh"
)
NUMERIC_BINARY = (
    "add floor_divide greater greater_equal less less_equal maximum minimum multiply pow remainder subtract"
)
FLOATING_BINARY = "atan2 copysign divide hypot logaddexp nextafter"
REDUCTIONS = {"sum": NUMERIC, "prod": NUMERIC, "max": NUMERIC, "min": NUMERIC, "mean": FLOATS, "var": FLOATS,
              "std": FLOATS, "any": ALL, "all": ALL, "count_nonzero": ALL}  # fmt: skip


def values(dtype: str, *shape: int, seed: int = 0) -> Any:
    """Small numbers, exact in every dtype; from 1 on for unsigned ones."""
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    low = -3 if dtype in (*SIGNED, *FLOATS) else 1
    x = rng.integers(low, 6, shape).astype(dtype)
    return x + np.asarray(0.25, dtype) if dtype in FLOATS else x


def agree(ours: Any, theirs: Any) -> None:
    assert ours.dtype.name == str(theirs.dtype).rpartition(".")[2]
    exact = np.asarray(theirs)
    assert ours.shape == exact.shape
    if exact.dtype.kind == "f":
        np.testing.assert_allclose(ours.numpy(), exact, rtol=8 * np.finfo(exact.dtype).eps)
    else:
        np.testing.assert_array_equal(ours.numpy(), exact)


def both(name: str, *arrays: Any, **keywords: Any) -> None:
    """Calls the function of both namespaces on the arrays."""
    with np.errstate(all="ignore"):
        theirs = getattr(strict, name)(*(strict.asarray(a) for a in arrays), **keywords)
    agree(getattr(bt, name)(*(bt.asarray(a.copy()) for a in arrays), **keywords), theirs)


@pytest.mark.parametrize("dtype", NUMERIC)
@pytest.mark.parametrize("name", NUMERIC_UNARY.split())
def test_numeric_unary(name: str, dtype: str) -> None:
    both(name, values(dtype, 5, 7))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", FLOATING_UNARY.split())
def test_floating_unary(name: str, dtype: str) -> None:
    both(name, values(dtype, 5, 7))


@pytest.mark.parametrize("name", [*NUMERIC_BINARY.split(), "equal", "not_equal"])
def test_numeric_binary(name: str) -> None:
    """Every pair of dtypes that the standard's tables have."""
    pairs = 0
    for a in NUMERIC:
        for b in NUMERIC:
            try:
                strict.result_type(getattr(strict, a), getattr(strict, b))
            except TypeError:
                continue
            pairs += 1
            x, y = values(a, 5, 7, seed=1), values(b, 7, seed=2)
            if name in ("floor_divide", "remainder"):
                y = np.where(y == 0, np.asarray(1, b), y)  # by zero is left open for integers
            both(name, x, np.abs(y) if name == "pow" else y)
    assert pairs == 4 + 16 + 16 + 24  # floats, signed, unsigned, and mixed ones but for uint64


@pytest.mark.parametrize("dtypes", [("float32", "float32"), ("float64", "float32"), ("float64", "float64")], ids=str)
@pytest.mark.parametrize("name", FLOATING_BINARY.split())
def test_floating_binary(name: str, dtypes: tuple[str, str]) -> None:
    both(name, values(dtypes[0], 5, 7, seed=1), values(dtypes[1], 7, seed=2))


@pytest.mark.parametrize("dtype", [*INTEGERS, "bool"])
def test_bits(dtype: str) -> None:
    a, b = values(dtype, 5, 7, seed=1), values(dtype, 7, seed=2)
    for name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
        both(name, a, b)
    both("bitwise_invert", a)
    if dtype != "bool":
        both("bitwise_left_shift", a, np.abs(b))
        both("bitwise_right_shift", a, np.abs(b))
    else:
        for name in ("logical_and", "logical_or", "logical_xor"):
            both(name, a, b)
        both("logical_not", a)


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name: str) -> None:
    for dtype in REDUCTIONS[name]:
        x = values(dtype, 2, 5, 3)
        for axis in (None, 0, -1, (0, 2)):
            for keepdims in (False, True):
                # The strict default for sums of float32 is float32 too: that of its inputs.
                both(name, x, axis=axis, keepdims=keepdims)


@pytest.mark.parametrize("dtype", NUMERIC)
def test_searching_and_sorting(dtype: str) -> None:
    x = values(dtype, 4, 9)
    for axis in (0, 1, -1):
        both("argmax", x, axis=axis)
        both("argmin", x, axis=axis, keepdims=True)
        for descending in (False, True):
            both("sort", x, axis=axis, descending=descending)
            both("argsort", x, axis=axis, descending=descending)
        both("cumulative_sum", x, axis=axis)
        both("cumulative_sum", x, axis=axis, include_initial=True)
        both("cumulative_prod", x, axis=axis)
    both("argmax", x)
    for side in ("left", "right"):
        both("searchsorted", np.sort(x[0]), x[1], side=side)
    both("unique_values", x)
    for ours, theirs in zip(bt.unique_all(bt.asarray(x)), strict.unique_all(strict.asarray(x)), strict=True):
        agree(ours, theirs)
    for name in ("clip",):
        with np.errstate(all="ignore"):
            agree(bt.clip(bt.asarray(x), 1, 3), getattr(strict, name)(strict.asarray(x), 1, 3))


@pytest.mark.parametrize("dtype", ALL)
def test_creation(dtype: str) -> None:
    d, s = getattr(bt, dtype), getattr(strict, dtype)
    for ours, theirs in (
        (bt.zeros((2, 3), dtype=d), strict.zeros((2, 3), dtype=s)),
        (bt.ones((2, 3), dtype=d), strict.ones((2, 3), dtype=s)),
        (bt.eye(3, 4, k=1, dtype=d), strict.eye(3, 4, k=1, dtype=s)),
        (bt.full((2,), True, dtype=d), strict.full((2,), True, dtype=s)),
    ):
        agree(ours, theirs)
    if dtype != "bool":
        agree(bt.arange(1, 9, 2, dtype=d), strict.arange(1, 9, 2, dtype=s))
    if dtype in FLOATS:
        agree(bt.linspace(0, 4, 9, dtype=d), strict.linspace(0, 4, 9, dtype=s))
        for name in ("bits", "eps", "max", "min", "smallest_normal"):
            assert getattr(bt.finfo(d), name) == getattr(strict.finfo(s), name)


def test_conversions() -> None:
    for a in ALL:
        for b in ALL:
            x = np.abs(values(a, 5, 7))
            agree(bt.astype(bt.asarray(x), getattr(bt, b)), strict.astype(strict.asarray(x), getattr(strict, b)))


def test_hypothesis_makes_arrays_of_it() -> None:
    """The strategies that Hypothesis has for namespaces of the standard work on this one."""
    from hypothesis import HealthCheck, given, settings
    from hypothesis.extra.array_api import make_strategies_namespace

    strategies = make_strategies_namespace(bt, api_version="2021.12")  # the last one without complex dtypes

    @settings(deadline=None, max_examples=30, suppress_health_check=list(HealthCheck))
    @given(strategies.arrays(strategies.scalar_dtypes(), strategies.array_shapes(max_dims=3, max_side=4)))
    def every_element_equals_itself(x: bt.Tensor) -> None:
        assert x.dtype in bt.__array_namespace_info__().dtypes().values()
        assert bool(bt.all(bt.logical_or(bt.equal(x, x), bt.isnan(x))))

    every_element_equals_itself()
