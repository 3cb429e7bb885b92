"""Python numbers that an integer dtype does not hold are errors wherever they are given; arrays are converted."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import blutensor as bt

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]


def target(dtype: str) -> bt.Tensor:
    return bt.zeros((2, 3), dtype=dtype)


WAYS: dict[str, Callable[[str, Any], Any]] = {
    "asarray": lambda dtype, v: bt.asarray(v, dtype=dtype),
    "asarray of a list": lambda dtype, v: bt.asarray([0, v], dtype=dtype),
    "asarray of nested lists": lambda dtype, v: bt.asarray([[0, 1], [v, 2]], dtype=dtype),
    "full": lambda dtype, v: bt.full((2,), v, dtype=dtype),
    "full_like": lambda dtype, v: bt.full_like(target(dtype), v),
    "fill_": lambda dtype, v: target(dtype).fill_(v),
    "an item": lambda dtype, v: target(dtype).__setitem__((0, 1), v),
    "a slice": lambda dtype, v: target(dtype).__setitem__(slice(None), v),
    "a mask": lambda dtype, v: target(dtype).__setitem__(target(dtype) == 0, v),
    "an array of indices": lambda dtype, v: target(dtype).__setitem__([0, 1], v),
    "a list of values": lambda dtype, v: target(dtype).__setitem__(0, [0, v, 1]),
    "a list of values at indices": lambda dtype, v: target(dtype).__setitem__(([0, 1], 0), [0, v]),
    "linspace": lambda dtype, v: bt.linspace(0, v, 3, dtype=dtype),
}
BESIDE: dict[str, Callable[[str, int], Any]] = {
    "add": lambda dtype, v: target(dtype) + v,
    "reflected": lambda dtype, v: v - target(dtype),
    "in place": lambda dtype, v: target(dtype).add_(v),
    "where": lambda dtype, v: bt.where(target("bool"), v, target(dtype)),
    "clip": lambda dtype, v: bt.clip(target(dtype), 0, v),
    "arange": lambda dtype, v: bt.arange(v, v + 1, dtype=dtype),
    "downwards": lambda dtype, v: bt.arange(0, v + (1 if v > 0 else -1), v, dtype=dtype),
}


def outside(dtype: str) -> list[int]:
    return [int(np.iinfo(dtype).min) - 1, int(np.iinfo(dtype).max) + 1, 2**70]


@pytest.mark.parametrize("way", WAYS | BESIDE)
def test_integers_out_of_range(way: str) -> None:
    for dtype in INTEGERS:
        info = np.iinfo(dtype)
        for value in outside(dtype):
            with pytest.raises(bt.NumberRangeError) as caught:
                (WAYS | BESIDE)[way](dtype, value)
            assert f"expected an integer from {info.min} to {info.max} for {dtype}, got {value}" in str(caught.value)
        for value in (info.min, info.max):
            if way not in ("linspace", "arange") and not (way == "downwards" and value == 0):
                (WAYS | BESIDE)[way](dtype, int(value))  # linspace and arange compute in float64


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e30])
def test_floats_that_are_no_integers(way: str, value: float) -> None:
    for dtype in INTEGERS:
        for given in (value, np.float32(value)):
            with pytest.raises(bt.NumberRangeError, match=f"for {dtype}, got "):
                WAYS[way](dtype, given)


def test_the_error_is_pythons_too() -> None:
    with pytest.raises(OverflowError):
        bt.asarray([300], dtype="int8")
    with pytest.raises(ValueError, match=r"\[asarray\].*from 0 to 255 for uint8, got nan"):
        bt.asarray(math.nan, dtype="uint8")
    with pytest.raises(bt.ShapeError, match="got 0x1000"):
        bt.asarray(1 << 20000, dtype="int64")


def test_numbers_that_fit_are_what_they_are() -> None:
    for dtype in INTEGERS:
        info = np.iinfo(dtype)
        ends = [int(info.min), int(info.max)]
        for made in (bt.asarray(ends, dtype=dtype), bt.asarray([*ends, np.int8(3)], dtype=dtype)[:2]):
            assert made.tolist() == ends
        x = bt.zeros((2,), dtype=dtype)
        x[:] = ends
        assert x.tolist() == ends
        x[[1, 0]] = ends
        assert x.tolist() == ends[::-1]
        x.fill_(ends[1])
        assert x.tolist() == [ends[1]] * 2
    assert bt.asarray([2.9, -2.9, -0.5], dtype="int8").tolist() == [2, -2, 0]
    assert bt.asarray([255.9, -0.9], dtype="uint8").tolist() == [255, 0]
    assert bt.asarray([], dtype="int8").shape == (0,)
    assert bt.asarray([True, 0, math.nan], dtype="bool").tolist() == [True, False, True]
    assert bt.asarray([2**70, 1], dtype="float32").tolist() == [float(2**70), 1.0]
    x = bt.zeros((2,), dtype="bfloat16")
    x[:] = [2**70, 1]
    assert x.tolist() == [float(2**70), 1.0]


@pytest.mark.parametrize("values", [[None, 2**70], [None], [object()]])
def test_what_is_no_number_is_named(values: list[Any]) -> None:
    for dtype in ("int64", "float32"):
        with pytest.raises(bt.DTypeError, match=r"\[asarray\] expected numbers"):
            bt.asarray(values, dtype=dtype)


def test_arrays_are_converted_as_by_astype() -> None:
    wide = np.array([300, -129, 127])
    assert bt.asarray(wide, dtype="int8").tolist() == [44, 127, 127]
    x = bt.zeros((3,), dtype="int8")
    x[:] = wide
    assert x.tolist() == [44, 127, 127]
    x[:] = bt.asarray(wide)
    assert x.tolist() == [44, 127, 127]
    assert bt.asarray(wide).astype("int8").tolist() == [44, 127, 127]


FLOATS = [
    math.nan,
    math.inf,
    -math.inf,
    1e30,
    -1e30,
    0.0,
    -0.0,
    0.9,
    -0.9,
    2.9,
    -2.9,
    127.5,
    128.0,
    -129.0,
    255.9,
    256.0,
]
TARGETS: dict[str, Callable[[np.ndarray[Any, Any], str], bt.Tensor]] = {
    "asarray": lambda array, dtype: bt.asarray(array, dtype=dtype),
    "asarray, then astype": lambda array, dtype: bt.asarray(array.astype(array.dtype.newbyteorder("="))).astype(dtype),
    "copy_": lambda array, dtype: bt.zeros(array.shape, dtype=dtype).copy_(array),
    "a slice": lambda array, dtype: assigned(array, dtype, slice(None)),
    "indices": lambda array, dtype: assigned(array, dtype, list(range(len(array)))),
    "a strided one": lambda array, dtype: bt.asarray(np.repeat(array, 2)[::2], dtype=dtype),
    "a read-only one": lambda array, dtype: bt.asarray(np.broadcast_to(array, (1, len(array))), dtype=dtype)[0],
}


def assigned(array: np.ndarray[Any, Any], dtype: str, index: Any) -> bt.Tensor:
    made = bt.zeros(array.shape, dtype=dtype)
    made[index] = array
    return made


def saturated(value: float, dtype: str) -> int:
    info = np.iinfo(dtype)
    if math.isnan(value):
        return 0
    return (
        max(info.min, min(info.max, math.trunc(value))) if math.isfinite(value) else info.max if value > 0 else info.min
    )


@pytest.mark.parametrize("way", TARGETS)
@pytest.mark.parametrize("source", ["float16", "float32", "float64", ">f4", "<f8", ">f2", "longdouble", "bfloat16"])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_arrays_of_floats_saturate(dtype: str, source: str, way: str) -> None:
    """As `astype` does: truncated, at the ends of the range where they lie beyond it, NaN gives 0."""
    if source == "longdouble" and way in ("asarray, then astype", "indices"):
        pytest.skip("has no counterpart")
    kind = pytest.importorskip("ml_dtypes").bfloat16 if source == "bfloat16" else np.dtype(source)
    ends = [float(edge) for end in (np.iinfo(dtype).min, np.iinfo(dtype).max) for edge in (end - 1, end, end + 1)]
    near = [np.nextafter(float(2**k), 0.0) for k in (31, 32, 63, 64)]
    with np.errstate(over="ignore"):
        array = np.array([*FLOATS, *ends, *near]).astype(kind)
    expected = [saturated(float(v), dtype) for v in array]
    assert TARGETS[way](array, dtype).tolist() == expected


@pytest.mark.parametrize("dtype", INTEGERS)
def test_python_numbers_are_cut_off_but_do_not_saturate(dtype: str) -> None:
    """A number that somebody wrote is an error where it does not fit; one that fits is what arrays give."""
    info = np.iinfo(dtype)
    inside = [v for v in (0.9, -0.9, 2.9, 126.5, float(info.min)) if info.min <= math.trunc(v) <= info.max]
    array = bt.asarray(np.array(inside), dtype=dtype).tolist()
    assert bt.asarray(inside, dtype=dtype).tolist() == array == [math.trunc(v) for v in inside]
    assert bt.asarray([[v] for v in inside], dtype=dtype).reshape(-1).tolist() == array
    assert [bt.asarray(v, dtype=dtype).item() for v in inside] == array
    for v in (float(info.max) * 2 + 2, float(info.min) * 2 - 1, math.nan):
        for given in (v, [v], [[0.0], [v]], np.float64(v), np.array([v], object)):
            with pytest.raises(bt.NumberRangeError, match=rf"\[asarray\] expected an integer from .* for {dtype}, got"):
                bt.asarray(given, dtype=dtype)


def test_a_float_is_not_cut_off_in_place() -> None:
    for change in (lambda x: x.add_(1.5), lambda x: x.mul_(np.float32(0.5)), lambda x: x.sub_(math.nan)):
        x = bt.ones((2,), dtype="int32")
        with pytest.raises(bt.DTypeError, match=r"expected an operand that keeps int32 in place, got"):
            change(x)
        assert x.tolist() == [1, 1]


@pytest.mark.parametrize("dtype", ["float32", "int64", "bfloat16"])
@pytest.mark.parametrize(
    "value", [1 + 2j, [1 + 2j], np.array([1 + 2j]), "3", ["1", "2"], b"3", np.array(["2026-01-01"], "datetime64[D]")]
)
def test_no_part_of_a_value_is_dropped_and_no_text_is_read(value: Any, dtype: str) -> None:
    with pytest.raises(bt.DTypeError, match="real numbers"):
        bt.asarray(value, dtype=dtype)
