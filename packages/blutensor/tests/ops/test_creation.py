"""Tensors made from nothing."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from layer_checks import poison

import blutensor as bt

DTYPES = [
    "float32",
    "float64",
    "float16",
    "int64",
    "int32",
    "int16",
    "int8",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "bool",
]


@pytest.mark.parametrize("shape", [(), (0,), (1,), (7, 0, 2), (513,), (300, 301)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_full(shape: tuple[int, ...], dtype: str) -> None:
    poison(90300)
    ours = bt.full(shape, 1, dtype=dtype)
    assert ours.dtype.name == dtype
    assert np.array_equal(ours.numpy(), np.full(shape, 1, dtype))
    assert not bt.zeros(shape, dtype=dtype).numpy().any()


def test_full_of_special_values() -> None:
    assert np.isnan(bt.full((3,), float("nan")).numpy()).all()
    assert np.signbit(bt.full((), -0.0).numpy())
    assert bt.full((2,), 1e300).tolist() == [np.inf, np.inf]
    assert bt.full((2,), 3.9, dtype="bfloat16").tolist() == [3.90625, 3.90625]


@pytest.mark.parametrize(
    "arguments",
    [(5,), (2, 9), (9, 2), (9, 2, -3), (0, 1, 0.1), (0, 100_000), (3, 3), (-1.5, 4.2, 0.7), (0, 513)],
    ids=str,
)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "int32"])
def test_arange(arguments: tuple[Any, ...], dtype: str) -> None:
    ours = bt.arange(*arguments, dtype=dtype).numpy()
    start, stop = arguments[:2] if len(arguments) > 1 else (0, *arguments)
    step = arguments[2] if len(arguments) > 2 else 1
    exact = (start + np.arange(max(0, math.ceil((stop - start) / step)), dtype=np.float64) * step).astype(dtype)
    assert ours.dtype == np.dtype(dtype)
    assert ours.shape == exact.shape
    assert np.array_equal(ours, exact)


def test_errors() -> None:
    with pytest.raises(ValueError, match=r"\[arange\] expected finite start, stop and a step other than 0"):
        bt.arange(0, 5, 0)
    with pytest.raises(ValueError, match="sizes of at least 0"):
        bt.zeros((2, -1))
    with pytest.raises(TypeError, match="numeric dtype"):
        bt.arange(3, dtype="bool")


@pytest.mark.parametrize(
    ("arguments", "dtype"),
    [
        ((2**53, 2**53 + 4), "int64"),
        ((2**63 - 5, 2**63 - 1), "int64"),
        ((-(2**63), 2**63 - 1, 2**62 + 1), "int64"),
        ((2**63 - 1, -(2**63), -(2**62) - 3), "int64"),
        ((2**60 + 1, 2**60 + 7, 2), "int64"),
        ((2**64 - 7, 2**64 - 1, 3), "uint64"),
        ((0, 2**64 - 1, 2**63 + 1), "uint64"),
        ((2**62, 2**62 + 1, 2**70), "int64"),
        ((5, 2**62, 2**61 + 1), "int64"),
    ],
)
def test_arange_of_integers_beyond_float64(arguments: tuple[int, ...], dtype: str) -> None:
    got = bt.arange(*arguments, dtype=dtype)
    assert got.dtype.name == dtype
    assert got.tolist() == list(range(*arguments))


def test_arange_that_does_not_fit() -> None:
    with pytest.raises(bt.ShapeError, match=r"expected an integer from .* for int64, got 9223372036854775808"):
        bt.arange(2**63, 2**63 + 2)


@pytest.mark.parametrize("dtype", [None, "float32", "int16", "bool"])
def test_full_of_a_tensor(dtype: str | None) -> None:
    value = bt.asarray(3, dtype="int32")
    got, like = bt.full((2, 3), value, dtype=dtype), bt.full_like(bt.zeros((2,), dtype="uint8"), value, dtype=dtype)
    assert got.dtype.name == (dtype or "int32")
    assert like.dtype.name == (dtype or "uint8")
    assert got.tolist() == [[True if dtype == "bool" else 3] * 3] * 2
    assert got.is_contiguous()
    assert like.tolist() == [True if dtype == "bool" else 3] * 2
    with pytest.raises(bt.ShapeError, match=r"\[full\] expected a number or a tensor without axes, got shape \(1,\)"):
        bt.full((2,), bt.zeros(1))


def test_full_of_a_tensor_has_its_gradient() -> None:
    value = bt.asarray(2.0).requires_grad_()
    (bt.full((2, 3), value) * 5.0).sum().backward()
    assert value.grad is not None
    assert value.grad.item() == 30.0


@pytest.mark.parametrize("k", [-(2**70), -4, -3, -2, 0, 1, 4, 5, 2**63])
def test_eye(k: int) -> None:
    assert bt.eye(3, 5, k=k).tolist() == [[float(j - i == k) for j in range(5)] for i in range(3)]
