"""The Python array API standard: what the namespace says about itself, and that its own checkers take it."""

from __future__ import annotations

import numpy as np
import pytest

import blutensor as bt

# Functions of the standard (2024.12) that are not there: complex numbers alone.
MISSING = {"imag"}

# The standard's lists of names.
STANDARD = """
arange asarray empty empty_like eye from_dlpack full full_like linspace meshgrid ones ones_like tril triu
zeros zeros_like astype broadcast_arrays broadcast_to can_cast finfo iinfo isdtype result_type
abs acos acosh add asin asinh atan atan2 atanh bitwise_and bitwise_left_shift bitwise_invert
bitwise_or bitwise_right_shift bitwise_xor ceil clip conj copysign cos cosh divide equal exp expm1
floor floor_divide greater greater_equal hypot imag isfinite isinf isnan less less_equal log log1p
log2 log10 logaddexp logical_and logical_not logical_or logical_xor maximum minimum multiply
negative nextafter not_equal positive pow real reciprocal remainder round sign signbit sin sinh
square sqrt subtract tan tanh trunc matmul matrix_transpose tensordot vecdot concat expand_dims flip
moveaxis permute_dims repeat reshape roll squeeze stack tile unstack argmax argmin count_nonzero
nonzero searchsorted where take take_along_axis unique_all unique_counts unique_inverse
unique_values argsort sort cumulative_prod cumulative_sum max mean min prod std sum var all any diff
bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float32 float64 e inf nan newaxis pi
"""


def test_names_of_the_standard() -> None:
    assert {name for name in STANDARD.split() if not hasattr(bt, name)} == MISSING


def test_info() -> None:
    info = bt.__array_namespace_info__()
    assert info.default_device() == "cpu"
    assert "cpu" in info.devices()
    assert info.default_dtypes() == {"real floating": bt.float32, "integral": bt.int64, "indexing": bt.int64}
    assert info.capabilities()["max dimensions"] == 8
    assert set(info.dtypes(kind="integral")) == {f"{s}int{n}" for s in ("", "u") for n in (8, 16, 32, 64)}
    assert set(info.dtypes(kind=("bool", "real floating"))) == {"bool", "float32", "float64"}
    with pytest.raises(bt.DTypeError):
        info.dtypes(kind="whole")


def test_array_namespace() -> None:
    x = bt.zeros((2,))
    assert x.__array_namespace__() is bt
    assert x.__array_namespace__(api_version="2023.12") is bt
    with pytest.raises(bt.DTypeError, match="version of the standard"):
        x.__array_namespace__(api_version="1999.12")
    assert x.to_device(x.device) is x


def test_array_api_compat_takes_it() -> None:
    compat = pytest.importorskip("array_api_compat", reason="array-api-compat is not installed")
    x = bt.asarray(np.array([[1.0, 2.0], [3.0, 5.0]], np.float32))
    assert compat.is_array_api_obj(x)
    xp = compat.array_namespace(x, bt.ones((2,)))
    assert xp is bt
    assert compat.device(x) == "cpu"
    assert compat.size(x) == 4
    assert compat.to_device(x, "cpu") is x
    # Code that is written against the standard.
    centred = x - xp.mean(x, axis=0, keepdims=True)
    covariance = xp.matmul(xp.matrix_transpose(centred), centred) / (x.shape[0] - 1)
    np.testing.assert_allclose(covariance.numpy(), np.cov(x.numpy().T), rtol=1e-6)


def test_the_strict_implementation_promotes_alike() -> None:
    """Where array-api-strict, which knows the standard's tables alone, has a common dtype, ours is the same."""
    strict = pytest.importorskip("array_api_strict", reason="array-api-strict is not installed")
    names = [*bt.__array_namespace_info__().dtypes()]
    compared = 0
    for a in names:
        for b in names:
            try:
                expected = strict.result_type(getattr(strict, a), getattr(strict, b))
            except TypeError:
                continue
            compared += 1
            assert getattr(strict, bt.result_type(a, b).name) == expected
            assert bt.can_cast(a, b) == strict.can_cast(getattr(strict, a), getattr(strict, b))
    assert compared > 50
