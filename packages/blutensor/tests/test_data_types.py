"""Functions about dtypes, and tensors made by the standard's functions."""

from __future__ import annotations

import math

import numpy as np
import pytest

import blutensor as bt

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_finfo(dtype: str) -> None:
    ours, exact = bt.finfo(dtype), np.finfo(dtype)
    for name in ("bits", "eps", "max", "min", "smallest_normal"):
        assert getattr(ours, name) == float(getattr(exact, name))
    assert ours.dtype.name == dtype
    assert bt.finfo(bt.zeros((1,), dtype=dtype)) == ours


def test_finfo_of_bfloat16() -> None:
    info = bt.finfo(bt.bfloat16)
    for value in (info.max, info.smallest_normal, 1 + info.eps):
        assert bt.full((), value, dtype="bfloat16").item() == value
    assert bt.full((), 1 + info.eps / 2, dtype="bfloat16").item() == 1
    assert bt.full((), info.max * (1 + info.eps), dtype="bfloat16").item() == math.inf
    with pytest.raises(bt.DTypeError, match=r"\[finfo\] expected a floating-point dtype, got int32"):
        bt.finfo(bt.int32)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_iinfo(dtype: str) -> None:
    ours, exact = bt.iinfo(dtype), np.iinfo(dtype)
    assert (ours.bits, ours.max, ours.min, ours.dtype.name) == (exact.bits, exact.max, exact.min, dtype)
    with pytest.raises(bt.DTypeError, match=r"\[iinfo\] expected an integer dtype, got float32"):
        bt.iinfo(bt.float32)


def test_isdtype() -> None:
    kinds = {
        "bool": ["bool"],
        "signed integer": INTEGERS[:4],
        "unsigned integer": INTEGERS[4:],
        "integral": INTEGERS,
        "real floating": ["float16", "bfloat16", "float32", "float64"],
        "complex floating": [],
        "numeric": [*INTEGERS, "float16", "bfloat16", "float32", "float64"],
    }
    everything = [*kinds["numeric"], "bool"]
    for kind, members in kinds.items():
        assert [n for n in everything if bt.isdtype(getattr(bt, n), kind)] == members
    assert bt.isdtype(bt.int8, (bt.float32, "integral"))
    assert bt.isdtype(bt.int8, bt.int8)
    assert not bt.isdtype(bt.int8, bt.int16)
    with pytest.raises(bt.DTypeError, match="expected a dtype or one of"):
        bt.isdtype(bt.int8, "whole")


def test_can_cast_and_result_type() -> None:
    assert bt.can_cast(bt.int8, bt.int16)
    assert bt.can_cast(bt.uint8, bt.int16)
    assert bt.can_cast(bt.zeros((1,), dtype="float16"), bt.float32)
    assert not bt.can_cast(bt.int16, bt.int8)
    assert not bt.can_cast(bt.uint64, bt.int64)
    assert not bt.can_cast(bt.int8, bt.float32)  # another kind
    assert not bt.can_cast(bt.float16, bt.bfloat16)
    assert bt.result_type(bt.int8, 3) is bt.int8
    assert bt.result_type(bt.int8, 0.5) is bt.float32
    assert bt.result_type(bt.bfloat16, 0.5, bt.float16) is bt.float32
    assert bt.result_type(bt.zeros((1,), dtype="float64"), 2) is bt.float64
    assert bt.result_type(bt.bool_, 1) is bt.int64
    with pytest.raises(bt.DTypeError, match="expected at least one tensor or dtype"):
        bt.result_type(1, 2.0)


@pytest.mark.parametrize(
    "arguments",
    [(0, 1, 5), (2, -3, 7), (0, 1, 1), (0, 1, 0), (5, 5, 3), (-1e30, 1e30, 9), (0, 1, 1001)],
    ids=str,
)
@pytest.mark.parametrize("endpoint", [True, False])
def test_linspace(arguments: tuple[float, float, int], endpoint: bool) -> None:
    exact = np.linspace(*arguments, endpoint=endpoint)
    ours = bt.linspace(*arguments, endpoint=endpoint, dtype="float64").numpy()
    # Two roundings of numbers up to the larger end.
    np.testing.assert_allclose(ours, exact, rtol=0, atol=2.0**-51 * max(1.0, *map(abs, arguments[:2])))
    if endpoint and arguments[2] > 1:
        assert ours[-1] == arguments[1]
    assert bt.linspace(*arguments, endpoint=endpoint).dtype is bt.float32


def test_linspace_errors() -> None:
    with pytest.raises(bt.ShapeError, match=r"\[linspace\] expected num of at least 0"):
        bt.linspace(0, 1, -1)


@pytest.mark.parametrize("sizes", [(0,), (3,), (3, 5), (5, 3), (4, 0)], ids=str)
@pytest.mark.parametrize("k", [-4, -1, 0, 2, 9])
def test_eye(sizes: tuple[int, ...], k: int) -> None:
    for dtype in ("float32", "int8", "bool"):
        ours = bt.eye(*sizes, k=k, dtype=dtype).numpy()
        assert ours.dtype == np.dtype(dtype)
        assert np.array_equal(ours, np.eye(*sizes, k=k, dtype=dtype))
    assert bt.eye(2).dtype is bt.float32


def test_full_checks_its_value() -> None:
    assert bt.full((2,), np.int64(3)).dtype is bt.int64
    assert bt.full((2,), np.bool_(True)).dtype is bt.bool_
    with pytest.raises(bt.ShapeError, match="expected an integer from -128 to 127 for int8, got 128"):
        bt.full((2,), 128, dtype="int8")
    with pytest.raises(bt.DTypeError, match=r"\[full\] expected a number, got 'a'"):
        bt.full((2,), "a")  # type: ignore[arg-type]


def test_from_dlpack_copies_when_asked() -> None:
    x = np.arange(5, dtype=np.int16)
    shared, copied = bt.from_dlpack(x), bt.from_dlpack(x, copy=True)
    x[0] = 9
    assert shared.tolist()[0] == 9
    assert copied.tolist()[0] == 0


def test_astype_keeps_or_copies() -> None:
    x = bt.zeros((2,), dtype="int8")
    assert bt.astype(x, bt.int8, copy=False) is x
    assert bt.astype(x, bt.int8).storage_id != x.storage_id
    assert bt.astype(x, "float32", device="cpu").dtype is bt.float32
