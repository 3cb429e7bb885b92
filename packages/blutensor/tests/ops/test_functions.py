"""Elementwise functions beside those of test_elementwise.py: values, special values, dtypes, layouts, clip."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from layer_checks import assert_as_good_as, available_isas, gradients, layouts, normal, parameter, poison, using_isa

import blutensor as bt

Array = np.ndarray[Any, Any]

# Around the gathering block (512) and the task (16384).
SIZES = [0, 1, 7, 17, 511, 513, 16385]
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, math.inf, -math.inf, math.nan, 1e-40, 3e38, -3e38, 1e-8]


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


# name: (float64 reference, lower and upper end of what it is called with)
UNARY: dict[str, tuple[Callable[[Array], Array], float, float]] = {
    "relu": (lambda x: np.maximum(x, 0), -5, 5),
    "sigmoid": (sigmoid, -20, 20),
    "silu": (lambda x: x * sigmoid(x), -20, 20),
    "sin": (np.sin, -50, 50),
    "cos": (np.cos, -50, 50),
    "tan": (np.tan, -50, 50),
    "asin": (np.arcsin, -1, 1),
    "acos": (np.arccos, -1, 1),
    "atan": (np.arctan, -9, 9),
    "sinh": (np.sinh, -9, 9),
    "cosh": (np.cosh, -9, 9),
    "asinh": (np.arcsinh, -9, 9),
    "acosh": (np.arccosh, 1, 9),
    "atanh": (np.arctanh, -1, 1),
    "expm1": (np.expm1, -9, 9),
    "log1p": (np.log1p, -1, 9),
    "log2": (np.log2, 0, 9),
    "log10": (np.log10, 0, 9),
    "floor": (np.floor, -9, 9),
    "ceil": (np.ceil, -9, 9),
    "trunc": (np.trunc, -9, 9),
    "round": (np.round, -9, 9),
}
# float32 through the vector functions: an exponential of 1.02 units (blublas/simd/math.h) whose error the sum with 1
# halves at least, that sum, and the division: below 2.1 units; the rest is float64, rounded once.
UNITS = {"sigmoid": 4.2, "silu": 4.2}
BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "floor_divide": np.floor_divide,
    "remainder": np.remainder,
    "atan2": np.arctan2,
    "hypot": np.hypot,
    "logaddexp": np.logaddexp,
    "copysign": np.copysign,
}


def close(ours: Array, exact: Array, dtype: str, units: float = 1.0) -> None:
    """Within half units of the last place of the exact result (denormals have a fixed unit)."""
    digits, smallest = {"float32": (24, -149), "float16": (11, -24), "bfloat16": (8, -133), "float64": (53, -1074)}[
        dtype
    ]
    with np.errstate(all="ignore"):
        bound = np.maximum(np.abs(exact) * 2.0**-digits, 2.0 ** (smallest - 1))
        # 1.001: the reference is itself rounded to float64.
        assert np.all(np.abs(np.asarray(ours, np.float64) - exact) <= 1.001 * units * bound)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str, size: int) -> None:
    reference, low, high = UNARY[name]
    x = np.random.default_rng(size).uniform(low, high, size).astype(np.float32)
    poison(size)
    close(getattr(bt, name)(bt.asarray(x)).numpy(), reference(x.astype(np.float64)), "float32", UNITS.get(name, 1))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", UNARY)
def test_special_values(name: str, dtype: str) -> None:
    x = np.array(SPECIAL, dtype)
    with np.errstate(all="ignore"):
        exact = UNARY[name][0](x.astype(np.float64)).astype(dtype)
    if name == "silu":  # the limit, not -inf * 0
        exact[np.isneginf(x)] = -0.0
    ours = getattr(bt, name)(bt.asarray(x)).numpy()
    assert np.array_equal(np.isnan(ours), np.isnan(exact))
    assert np.array_equal(np.isinf(ours), np.isinf(exact))
    if name != "relu":  # whether relu(-0) is -0 or 0 is open
        assert np.array_equal(np.signbit(ours[exact == 0]), np.signbit(exact[exact == 0]))
    finite = np.isfinite(exact)
    np.testing.assert_allclose(ours[finite], exact[finite], rtol=4 * np.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
@pytest.mark.parametrize("name", UNARY)
def test_dtypes(name: str, dtype: str) -> None:
    reference, low, high = UNARY[name]
    x = bt.asarray(np.random.default_rng(5).uniform(low, high, 777)).astype(dtype)
    with np.errstate(all="ignore"):  # the end of an interval may be reached
        exact = reference(x.astype("float64").numpy())
    ours = getattr(bt, name)(x)
    assert ours.dtype.name == dtype
    inside = np.isfinite(exact)
    # 16 bits: rounded once, after float32 where the vector functions are; float64: two C libraries of up to 2 units.
    units = 8 if dtype == "float64" else 1.01
    close(ours.astype("float64").numpy()[inside], exact[inside], dtype, units)


@pytest.mark.parametrize("name", ["relu", "sigmoid", "silu"])
def test_all_instruction_sets_give_the_same_bits(name: str) -> None:
    x = np.concatenate([normal(np.random.default_rng(3), 4099, scale=8), np.array(SPECIAL, np.float32)])
    upstream = np.ones_like(x)
    results = []
    for isa in available_isas():
        with using_isa(isa):
            forward = getattr(bt, name)(bt.asarray(x)).numpy()
            results.append((forward, *gradients(getattr(bt, name), [parameter(x)], upstream)))
    for other in results[1:]:
        for first, second in zip(results[0], other, strict=True):
            assert np.array_equal(first, second, equal_nan=True)


@pytest.mark.parametrize("name", ["silu", "sigmoid", "relu"])
def test_activation_gradients_are_finite_everywhere(name: str) -> None:
    x = np.array([1e30, -1e30, 3e38, 50, -50, np.inf, -np.inf, 89, -89, -104], np.float32)
    (gradient,) = gradients(getattr(bt, name), [parameter(x)], np.ones(x.size, np.float32))
    limit = (x > 0).astype(np.float32) * (0 if name == "sigmoid" else 1)
    assert np.isfinite(gradient).all()
    assert np.abs(gradient - limit).max() < 1e-18  # 50 e^-50 is the largest difference from the limits


@pytest.mark.parametrize(
    "shapes", [((3, 5), (3, 5)), ((3, 1), (1, 5)), ((2, 3, 4), ()), ((0, 3), (3,)), ((4, 1, 600), (3, 1))], ids=str
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", BINARY)
def test_binary(name: str, dtype: str, shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    rng = np.random.default_rng(7)
    a, b = ((3 * rng.standard_normal(s)).astype(dtype) for s in shapes)
    exact = np.asarray(BINARY[name](a.astype(np.float64), b.astype(np.float64)))
    ours = getattr(bt, name)(bt.asarray(a), bt.asarray(b)).numpy()
    assert ours.shape == exact.shape
    close(ours, exact, dtype, 8 if dtype == "float64" else 1)  # float64: two C libraries


@pytest.mark.parametrize("name", [*BINARY, "nextafter"])
def test_binary_special_values(name: str) -> None:
    a, b = (m.ravel() for m in np.meshgrid(np.array(SPECIAL), np.array(SPECIAL)))
    with np.errstate(all="ignore"):
        exact = getattr(np, {"atan2": "arctan2"}.get(name, name))(a, b)
    ours = getattr(bt, name)(bt.asarray(a), bt.asarray(b)).numpy()
    assert np.array_equal(np.isnan(ours), np.isnan(exact))
    number = ~np.isnan(exact)
    assert np.array_equal(np.signbit(ours[number]), np.signbit(exact[number]))
    np.testing.assert_allclose(ours[number], exact[number], rtol=2**-51)


@pytest.mark.parametrize("name", ["floor_divide", "sin", "round", "atan2"])
def test_layouts(name: str) -> None:
    a, b = normal(np.random.default_rng(8), 37, 41), normal(np.random.default_rng(9), 37, 41)
    function = getattr(bt, name)
    expected = function(bt.asarray(a)) if name in UNARY else function(bt.asarray(a), bt.asarray(b))
    for _, x in layouts(a):
        ours = function(x) if name in UNARY else function(x, bt.asarray(b))
        assert np.array_equal(ours.numpy(), expected.numpy())


def test_nextafter_steps_through_every_number_of_16_bits() -> None:
    for dtype in ("float16", "bfloat16"):
        largest = bt.finfo(dtype).max
        bits = np.arange(0x7C00 if dtype == "float16" else 0x7F80, dtype=np.uint16)  # 0 ... the largest, in order
        if dtype == "float16":
            x = bt.asarray(bits.view(np.float16))
        else:
            x = bt.asarray((bits.astype(np.uint32) << 16).view(np.float32)).astype(dtype)
        up = bt.nextafter(x, bt.full((), math.inf, dtype=dtype)).astype("float64").numpy()
        down = bt.nextafter(x, bt.full((), -math.inf, dtype=dtype)).astype("float64").numpy()
        values = x.astype("float64").numpy()
        assert values[-1] == largest
        assert np.array_equal(up[:-1], values[1:])
        assert up[-1] == math.inf
        assert np.array_equal(down[1:], values[:-1])
        assert down[0] == -values[1]


def test_predicates() -> None:
    x = np.array(SPECIAL, np.float32)
    for dtype in ("float32", "float64", "float16", "bfloat16"):
        t = bt.asarray(x).astype(dtype)
        assert np.array_equal(bt.isinf(t).numpy(), np.isinf(t.astype("float64").numpy()))
        signs = np.signbit(x) | np.isnan(x) & np.signbit(x)
        assert np.array_equal(bt.signbit(t).numpy(), signs)
    ids = bt.asarray(np.array([0, 5, -3]))
    assert not bt.isinf(ids).numpy().any()
    with pytest.raises(bt.DTypeError, match=r"\[signbit\] expected a floating-point tensor, got int64"):
        bt.signbit(ids)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "uint8", "int64"])
def test_clip(dtype: str) -> None:
    x = bt.asarray(np.random.default_rng(1).integers(0, 100, (7, 33))).astype(dtype)
    values = x.astype("float64").numpy()
    assert np.array_equal(bt.clip(x, 20, 70).astype("float64").numpy(), values.clip(20, 70))
    assert np.array_equal(bt.clip(x, max=30).astype("float64").numpy(), values.clip(None, 30))
    assert np.array_equal(bt.clip(x).astype("float64").numpy(), values)
    low = bt.asarray(np.arange(33)).astype(dtype)
    clipped = bt.clip(x, min=low)
    assert clipped.dtype is x.dtype
    assert np.array_equal(clipped.astype("float64").numpy(), values.clip(np.arange(33), None))


def test_clip_gradient_and_errors() -> None:
    x = parameter(np.array([-2.0, -1.0, 0.5, 1.0, 3.0], np.float32))
    (gradient,) = gradients(lambda t: bt.clip(t, -1, 1), [x], np.ones(5, np.float32))
    assert gradient.tolist() == [0, 1, 1, 1, 0]
    assert np.isnan(bt.clip(bt.asarray(np.array([np.nan], np.float32)), 0, 1).numpy()).all()
    with pytest.raises(bt.DTypeError, match=r"\[clip\] expected an integer for min"):
        bt.clip(bt.zeros((2,), dtype="int32"), 0.5)
    with pytest.raises(bt.DTypeError, match=r"\[clip\] expected bounds that convert to int32, got int64"):
        bt.clip(bt.zeros((2,), dtype="int32"), bt.zeros((2,), dtype="int64"))
    with pytest.raises(bt.DTypeError, match=r"\[clip\] expected a numeric tensor, got bool"):
        bt.clip(bt.zeros((2,), dtype="bool"))


def test_python_operators() -> None:
    a, b = np.array([7, -7, 5, 0]), np.array([2, 2, -3, 4])
    x, y = bt.asarray(a), bt.asarray(b)
    for ours, exact in (
        (x // y, a // b),
        (x % y, a % b),
        (9 // y, 9 // b),
        (9 % y, 9 % b),
        (x & y, a & b),
        (x | y, a | b),
        (x ^ y, a ^ b),
        (6 & y, 6 & b),
        (x << 2, a << 2),
        (x >> 1, a >> 1),
        (~x, ~a),
        (+x, a),
    ):
        assert np.array_equal(ours.numpy(), exact)
    assert (x % 3.0).dtype is bt.float32
    assert np.array_equal((~bt.asarray(a > 0)).numpy(), a <= 0)


@pytest.mark.parametrize("name", ["relu", "sigmoid", "silu", "sin"])
def test_float32_gradients(name: str) -> None:
    x = normal(np.random.default_rng(11), 1001, scale=3)
    upstream = normal(np.random.default_rng(12), 1001)
    (ours,) = gradients(getattr(bt, name), [parameter(x)], upstream)
    (exact,) = gradients(getattr(bt, name), [parameter(x.astype(np.float64))], upstream.astype(np.float64))
    # The float32 formula in NumPy is the peer: the same operations, one rounding each.
    s = sigmoid(x)
    peer = {"relu": (x > 0), "sigmoid": s * (1 - s), "silu": s * (1 + x * (1 - s)), "sin": np.cos(x)}[name] * upstream
    assert_as_good_as(ours, peer.astype(np.float32), exact)


@pytest.mark.parametrize("dtype", ["int8", "uint64", "float32", "bfloat16"])
def test_conj_and_real_of_real_numbers(dtype: str) -> None:
    x = bt.asarray([0, 1, 3]).astype(dtype)
    for name in ("conj", "real"):
        got = getattr(bt, name)(x)
        assert got.dtype is x.dtype
        assert got.tolist() == x.tolist()
        with pytest.raises(bt.DTypeError, match=rf"\[{name}\] expected a numeric tensor, got bool"):
            getattr(bt, name)(bt.zeros(2, dtype="bool"))
        with pytest.raises(bt.DTypeError, match=rf"\[{name}\] expected a blutensor.Tensor"):
            getattr(bt, name)(1.0)
