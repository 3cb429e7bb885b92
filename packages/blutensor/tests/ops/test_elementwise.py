"""Elementwise operators against NumPy in float64, beside PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_checks import (
    assert_as_good_as,
    available_isas,
    gradients,
    layouts,
    normal,
    parameter,
    poison,
    require_torch,
    same_bits_for_any_threads,
    using_isa,
)

import blutensor as bt
from blutensor.errors import DTypeError

Array = np.ndarray[Any, Any]
_erf = np.vectorize(math.erf, otypes=[np.float64])

# name: (float64 reference, PyTorch's name)
UNARY: dict[str, tuple[Callable[[Array], Array], str]] = {
    "negative": (np.negative, "neg"),
    "abs": (np.abs, "abs"),
    "sign": (np.sign, "sign"),
    "square": (np.square, "square"),
    "reciprocal": (np.reciprocal, "reciprocal"),
    "exp": (np.exp, "exp"),
    "log": (np.log, "log"),
    "sqrt": (np.sqrt, "sqrt"),
    "rsqrt": (lambda x: 1 / np.sqrt(x), "rsqrt"),
    "tanh": (np.tanh, "tanh"),
    "erf": (_erf, "erf"),
}
POSITIVE = {"log", "sqrt", "rsqrt"}
BINARY = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "pow": np.power,
}
COMPARISONS = {
    "equal": np.equal,
    "not_equal": np.not_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
}
# Around the vector widths (8, 16), the gathering block (512) and the task (16384).
SIZES = [0, 1, 7, 8, 9, 15, 16, 17, 31, 33, 511, 512, 513, 16383, 16385, 40009]
SPECIAL = np.array(
    [
        0.0,
        -0.0,
        1.0,
        -1.0,
        np.inf,
        -np.inf,
        np.nan,
        1e-40,
        -1e-40,
        3e38,
        -3e38,
        1e-38,
        88.7,
        88.8,
        -87.4,
        -103.9,
        -104.1,
        0.625,
        4.0,
    ],
    np.float32,
)


def operands(name: str, rng: np.random.Generator, *shape: int) -> Array:
    x = normal(rng, *shape, scale=2.0)
    return np.abs(x) + np.float32(1e-3) if name in POSITIVE else x


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str, size: int) -> None:
    reference, peer_name = UNARY[name]
    x = operands(name, np.random.default_rng(size), size)
    peer = getattr(require_torch(), peer_name)(require_torch().tensor(x)).numpy()
    poison(size)
    assert_as_good_as(getattr(bt, name)(bt.asarray(x)).numpy(), peer, reference(x.astype(np.float64)))


@pytest.mark.parametrize("name", UNARY)
def test_unary_special_values(name: str) -> None:
    reference = UNARY[name][0]
    with np.errstate(all="ignore"):
        exact = reference(SPECIAL.astype(np.float64)).astype(np.float32)
    ours = getattr(bt, name)(bt.asarray(SPECIAL.copy())).numpy()
    assert np.array_equal(np.isnan(ours), np.isnan(exact))
    assert np.array_equal(np.isinf(ours), np.isinf(exact))
    if name != "sign":  # whether sign(-0) is -0 or 0 is open
        zero = exact == 0
        assert np.array_equal(np.signbit(ours[zero]), np.signbit(exact[zero]))
    finite = np.isfinite(exact)
    # 1.34 units in the last place is the largest error of tanh (blublas/simd/math.h); float32 denormals have a fixed
    # unit.
    unit = np.maximum(np.spacing(np.abs(exact[finite])), np.float32(2.0**-149)).astype(np.float64)
    assert np.all(
        np.abs(ours[finite].astype(np.float64) - reference(SPECIAL[finite].astype(np.float64))) <= 1.34 * unit
    )


# What blublas/simd/math.h promises, found over one in thirteen of all float32.
LARGEST_ERROR = {"exp": 1.02, "log": 0.80, "tanh": 1.33, "erf": 1.05, "sqrt": 0.501, "reciprocal": 0.501}


@pytest.mark.parametrize("name", LARGEST_ERROR)
def test_error_in_units_of_the_last_place(name: str) -> None:
    # Every 4099th bit pattern: all exponents, both signs, denormal numbers, NaN.
    x = np.arange(0, 2**32, 4099, dtype=np.uint64).astype(np.uint32).view(np.float32)
    with np.errstate(all="ignore"):
        exact = UNARY[name][0](x.astype(np.float64))
        rounded = exact.astype(np.float32)
    ours = getattr(bt, name)(bt.asarray(x)).numpy()
    assert np.array_equal(np.isnan(ours), np.isnan(rounded))
    inside = np.isfinite(rounded)
    assert np.array_equal(ours[~inside], rounded[~inside], equal_nan=True)
    exponent = np.maximum(np.frexp(np.abs(rounded[inside]))[1], -125).astype(np.int32)
    unit = np.ldexp(1.0, exponent - 24)
    assert (np.abs(ours[inside] - exact[inside]) / unit).max() <= LARGEST_ERROR[name]


@pytest.mark.parametrize("name", [*UNARY, "gelu"])
def test_all_instruction_sets_give_the_same_bits(name: str) -> None:
    x = np.concatenate([operands(name, np.random.default_rng(3), 4099), SPECIAL])
    function = getattr(bt, name)
    variants: list[dict[str, str]] = [{"approximate": "tanh"}, {"approximate": "none"}] if name == "gelu" else [{}]
    for keywords in variants:
        results = []
        for isa in available_isas():
            with using_isa(isa):
                results.append(function(bt.asarray(x), **keywords).numpy())
        assert len(results) >= 1
        for other in results[1:]:
            assert np.array_equal(results[0], other, equal_nan=True)
            assert np.array_equal(np.signbit(results[0]), np.signbit(other)) or np.isnan(x).any()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
@pytest.mark.parametrize("name", UNARY)
def test_unary_dtypes(name: str, dtype: str) -> None:
    x = bt.asarray(operands(name, np.random.default_rng(5), 777)).astype(dtype)
    exact = UNARY[name][0](x.astype("float64").numpy())
    ours = getattr(bt, name)(x)
    assert ours.dtype.name == dtype
    # One rounding to the dtype, plus what 1.34 units of float32 can move before it (float16 results may be denormal:
    # 2^-25 is half their unit). float64 goes through the C library: up to 2 units, 2^-51.
    rounding = {"bfloat16": 1.001 * 2.0**-8, "float16": 1.001 * 2.0**-11, "float64": 2.0**-51}[dtype]
    smallest = 2.0**-25 if dtype == "float16" else 0
    assert np.all(np.abs(ours.astype("float64").numpy() - exact) <= rounding * np.abs(exact) + smallest)


@pytest.mark.parametrize(
    "shapes",
    [
        ((3, 5), (3, 5)),
        ((3, 5), (5,)),
        ((3, 1), (1, 5)),
        ((2, 3, 4), ()),
        ((), ()),
        ((0, 3), (3,)),
        ((4, 1, 600), (3, 1)),
        ((70, 3), (3,)),
        ((3, 40000), (3, 1)),
        ((1, 40000), (7, 1)),
        ((2, 2, 2), (2, 1, 2)),
    ],
)
@pytest.mark.parametrize("name", BINARY)
def test_binary_broadcasting(name: str, shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    rng = np.random.default_rng(7)
    a, b = normal(rng, *shapes[0]), normal(rng, *shapes[1])
    if name == "pow":
        a = np.abs(a) + np.float32(0.1)
    exact = np.asarray(BINARY[name](a.astype(np.float64), b.astype(np.float64)))
    poison(exact.size)
    ours = getattr(bt, name)(bt.asarray(a), bt.asarray(b)).numpy()
    assert ours.shape == exact.shape
    assert_as_good_as(ours, None, exact)  # each is one rounding of the exact result


@pytest.mark.parametrize("name", [*BINARY, *COMPARISONS])
def test_binary_layouts(name: str) -> None:
    reference = {**BINARY, **COMPARISONS}[name]
    rng = np.random.default_rng(8)
    a, b = np.abs(normal(rng, 37, 41)) + np.float32(0.1), normal(rng, 37, 41)
    exact = reference(a.astype(np.float64), b.astype(np.float64))
    for _, x in layouts(a):
        for _, y in layouts(b):
            ours = getattr(bt, name)(x, y).numpy()
            assert ours.dtype == (np.bool_ if name in COMPARISONS else np.float32)
            if name in COMPARISONS:
                assert np.array_equal(ours, exact)
            else:
                assert_as_good_as(ours, None, exact)


@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "maximum", "minimum", *COMPARISONS])
@pytest.mark.parametrize(
    "dtypes",
    [
        ("int64", "int64"),
        ("int32", "int32"),
        ("uint8", "uint8"),
        ("uint16", "uint16"),
        ("int32", "int64"),
        ("uint8", "int32"),
        ("int32", "float32"),
        ("bool", "int32"),
        ("float32", "float64"),
        ("float16", "float32"),
    ],
)
def test_integers_and_promotion(name: str, dtypes: tuple[str, str]) -> None:
    rng = np.random.default_rng(9)
    a = rng.integers(0, 2 if dtypes[0] == "bool" else 200, 333).astype(dtypes[0])
    b = rng.integers(0, 200, 333).astype(dtypes[1])
    with np.errstate(over="ignore"):
        exact = {**BINARY, **COMPARISONS}[name](a, b)
    ours = getattr(bt, name)(bt.asarray(a), bt.asarray(b))
    if dtypes == ("int32", "float32"):  # NumPy widens to float64; the array API and PyTorch do not
        exact = exact.astype(np.float32) if name not in COMPARISONS else exact
    assert ours.numpy().dtype == exact.dtype
    assert np.array_equal(ours.numpy(), exact)


def test_integers_wrap() -> None:
    low, high = np.array([-(2**31)], np.int32), np.array([2**31 - 1], np.int32)
    one = np.array([1], np.int32)
    assert bt.add(bt.asarray(high), bt.asarray(one)).item() == -(2**31)
    assert bt.abs(bt.asarray(low)).item() == -(2**31)
    assert bt.negative(bt.asarray(np.array([1], np.uint8))).item() == 255
    assert bt.multiply(bt.asarray(np.array([65535], np.uint16)), bt.asarray(np.array([65535], np.uint16))).item() == 1


def test_integer_power() -> None:
    base = np.array([2, -3, 1, -1, 0, 7], np.int64)
    assert bt.pow(bt.asarray(base), bt.asarray(np.array([10, 3, -5, -3, 0, 20]))).tolist() == [
        1024,
        -27,
        1,
        -1,
        1,
        7**20,
    ]
    assert bt.pow(bt.asarray(base[:1]), bt.asarray(np.array([-1]))).item() == 0
    for power in (lambda: bt.asarray([2, 3]) ** -1, lambda: bt.pow(2, -1), lambda: bt.asarray([2]) ** np.int64(-2)):
        with pytest.raises(DTypeError, match=r"\[pow\] expected floats for the exponent -\d, got int64; use -\d\.0"):
            power()
    assert (bt.asarray([2, 4]) ** -1.0).tolist() == [0.5, 0.25]
    assert (bt.asarray([2.0, 4.0]) ** -1).tolist() == [0.5, 0.25]


@pytest.mark.parametrize("exponent", [2.0, -1.0, 3.0, 0.5, 0.0, 1.0])
def test_scalar_powers_equal_the_general_form(exponent: float) -> None:
    x = normal(np.random.default_rng(1), 1001)
    x = np.abs(x) if exponent == 0.5 else x
    scalar = (bt.asarray(x) ** exponent).numpy()
    general = bt.pow(bt.asarray(x), bt.asarray(np.full(1001, exponent, np.float32))).numpy()
    assert np.array_equal(scalar, general)


def test_maximum_propagates_nan() -> None:
    a, b = np.array([np.nan, 1.0, np.inf, -np.inf], np.float32), np.array([1.0, np.nan, 2.0, 2.0], np.float32)
    for isa in available_isas():
        with using_isa(isa):
            assert np.array_equal(bt.maximum(bt.asarray(a), bt.asarray(b)).numpy(), np.maximum(a, b), equal_nan=True)
            assert np.array_equal(bt.minimum(bt.asarray(a), bt.asarray(b)).numpy(), np.minimum(a, b), equal_nan=True)


def test_logic_and_predicates() -> None:
    a, b = np.array([0, 1, 0, 5], np.int32), np.array([0.0, np.nan, 2.0, 0.0], np.float32)
    assert bt.logical_and(bt.asarray(a), bt.asarray(b)).tolist() == [False, True, False, False]
    assert bt.logical_or(bt.asarray(a), bt.asarray(b)).tolist() == [False, True, True, True]
    assert bt.logical_xor(bt.asarray(a), bt.asarray(b)).tolist() == [False, False, True, True]
    assert bt.logical_not(bt.asarray(b)).tolist() == [True, False, False, True]
    for isa in available_isas():
        with using_isa(isa):
            assert np.array_equal(bt.isnan(bt.asarray(SPECIAL)).numpy(), np.isnan(SPECIAL))
            assert np.array_equal(bt.isfinite(bt.asarray(SPECIAL)).numpy(), np.isfinite(SPECIAL))
    assert not bt.isnan(bt.asarray(a)).numpy().any()
    assert bt.isfinite(bt.asarray(a)).numpy().all()


def test_foreign_bool_bytes_count_as_true() -> None:
    bits = bt.asarray(np.array([0, 1, 2, 255], np.uint8).view(np.bool_))
    assert bt.where(bits, 1.0, 0.0).tolist() == [0.0, 1.0, 1.0, 1.0]
    assert bt.equal(bits, bt.asarray(np.array([False, True, True, True]))).tolist() == [True] * 4


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int64", "uint8", "bool"])
def test_where(dtype: str) -> None:
    rng = np.random.default_rng(2)
    condition = rng.integers(0, 2, (5, 1, 700)).astype(bool)
    a, b = (rng.integers(0, 2, (3, 1)).astype(dtype)), rng.integers(0, 2, (700,)).astype(dtype)
    assert np.array_equal(
        bt.where(bt.asarray(condition), bt.asarray(a), bt.asarray(b)).numpy(), np.where(condition, a, b)
    )


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu(approximate: str) -> None:
    torch = require_torch()
    x = np.concatenate([np.linspace(-12, 12, 5001), normal(np.random.default_rng(4), 999)]).astype(np.float32)
    upstream = normal(np.random.default_rng(5), x.size)

    def torch_gelu(t: Any) -> Any:
        return torch.nn.functional.gelu(t, approximate=approximate)

    exact_x = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    peer_x = torch.tensor(x, requires_grad=True)
    exact, peer = torch_gelu(exact_x), torch_gelu(peer_x)
    exact.backward(torch.tensor(upstream, dtype=torch.float64))
    peer.backward(torch.tensor(upstream))
    ours_x = parameter(x)
    assert_as_good_as(bt.gelu(ours_x, approximate).detach().numpy(), peer.detach().numpy(), exact.detach().numpy())
    (gradient,) = gradients(lambda t: bt.gelu(t, approximate), [ours_x], upstream)
    assert_as_good_as(gradient, peer_x.grad.numpy(), exact_x.grad.numpy())
    # float64: both are a handful of roundings of numbers below |x| away from the exact value.
    wide = parameter(x.astype(np.float64))
    bound = 8 * 2.0**-53 * np.maximum(1, np.abs(x))
    assert np.all(np.abs(bt.gelu(wide, approximate).detach().numpy() - exact.detach().numpy()) <= bound)
    (gradient,) = gradients(lambda t: bt.gelu(t, approximate), [wide], np.ones(x.size))
    exact_x.grad = None
    torch_gelu(exact_x).sum().backward()
    assert np.all(np.abs(gradient - exact_x.grad.numpy()) <= 2 * bound)


def test_gelu_gradient_is_finite_everywhere() -> None:
    x = np.array([1e30, -1e30, 3e38, -3e38, 50, -50, np.inf, -np.inf], np.float32)
    for approximate in ("none", "tanh"):
        (gradient,) = gradients(lambda t, a=approximate: bt.gelu(t, a), [parameter(x)], np.ones(8, np.float32))
        assert gradient.tolist() == [1, 0, 1, 0, 1, 0, 1, 0]


def test_same_bits_for_any_number_of_threads() -> None:
    rng = np.random.default_rng(6)
    a, b = normal(rng, 301, 257), normal(rng, 257)
    same_bits_for_any_threads(
        lambda: [
            bt.gelu(bt.asarray(a)).numpy(),
            bt.add(bt.asarray(a), bt.asarray(b)).numpy(),
            bt.exp(bt.asarray(a).T).numpy(),
        ]
    )


@pytest.mark.parametrize("name", ["maximum", "minimum"])
def test_extremum_gradient_is_halved_between_equals(name: str) -> None:
    a, b = parameter(np.array([1.0, 2.0, 3.0], np.float32)), parameter(np.array([1.0, 3.0, 2.0], np.float32))
    da, db = gradients(getattr(bt, name), [a, b], np.ones(3, np.float32))
    first = [0.5, 0.0, 1.0] if name == "maximum" else [0.5, 1.0, 0.0]
    assert da.tolist() == first
    assert db.tolist() == [1 - v for v in first]


def test_power_gradient_at_zero() -> None:
    a = parameter(np.array([0.0, 0.0, 2.0], np.float32))
    b = parameter(np.array([0.0, 2.0, 0.0], np.float32))
    da, db = gradients(bt.pow, [a, b], np.ones(3, np.float32))
    assert da.tolist() == [0.0, 0.0, 0.0]
    assert db[1] == 0.0
    assert db[2] == np.float32(np.log(2))


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_any_broadcast_of_any_strides(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(0, 5), max_size=4))

    def operand() -> tuple[Array, bt.Tensor]:
        kept = data.draw(st.integers(0, len(shape)))
        sizes = [1 if data.draw(st.booleans()) else n for n in shape[kept:]]
        values = np.arange(max(1, math.prod(sizes) * 2 ** len(sizes)), dtype=np.float32)
        whole = values[: math.prod(sizes) * 2 ** len(sizes)].reshape([2 * n for n in sizes])
        steps = tuple(data.draw(st.sampled_from([slice(None, None, 2), slice(None, None, -2)])) for _ in sizes)
        return whole[steps], bt.asarray(whole)[steps]

    (a, x), (b, y) = operand(), operand()
    assert np.array_equal(bt.subtract(x, y).numpy(), a - b)
    assert np.array_equal(bt.less(x, y).numpy(), a < b)


def test_errors() -> None:
    x, ids = bt.zeros((2, 3)), bt.zeros((2, 3), dtype="int64")
    with pytest.raises(bt.ShapeError, match=r"\[add\] expected shapes that broadcast, got \(2, 3\) and \(2,\)"):
        bt.add(x, bt.zeros((2,)))
    with pytest.raises(bt.DTypeError, match=r"\[exp\] expected a floating-point tensor, got int64.*astype"):
        bt.exp(ids)
    with pytest.raises(bt.DTypeError, match=r"\[divide\] expected floating-point tensors, got int64 and int64"):
        bt.divide(ids, ids)
    with pytest.raises(bt.DTypeError, match=r"\[add\] expected numeric tensors, got bool and bool"):
        bt.add(bt.zeros((1,), dtype="bool"), bt.zeros((1,), dtype="bool"))
    with pytest.raises(ValueError, match="approximate"):
        bt.gelu(x, "sigmoid")
