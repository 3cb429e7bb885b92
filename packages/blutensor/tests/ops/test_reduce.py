"""Reductions against NumPy in float64, beside PyTorch."""

from __future__ import annotations

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
    same_bits_for_any_threads,
    using_isa,
)

import blutensor as bt

REFERENCES = {"sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min}
# Around the lanes (32), the gathering block (512), a column block (256), rows of a task (512) and a stretch (32768).
SHAPES = [
    (1,),
    (7,),
    (31,),
    (33,),
    (511,),
    (513,),
    (32767,),
    (32769,),
    (70001,),
    (3, 5),
    (513, 257),
    (1100, 7),
    (1100, 255),
    (5, 40000),
    (2, 3, 4),
    (17, 33, 9),
    (3, 600, 20),
    (1, 1, 1),
    (),
]


def all_axes(rank: int) -> list[tuple[int, ...]]:
    axes = [tuple(i for i in range(rank) if mask >> i & 1) for mask in range(1, 1 << rank)]
    return [(), *axes] if rank else [()]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", REFERENCES)
def test_values(name: str, shape: tuple[int, ...]) -> None:
    # An offset makes sums large beside their terms' rounding, and naive float32 sums visibly wrong.
    x = normal(np.random.default_rng(1), *shape) + np.float32(3)
    for axes in all_axes(len(shape)):
        for keepdims in (False, True):
            exact = np.asarray(REFERENCES[name](x.astype(np.float64), axis=axes or None, keepdims=keepdims))
            poison(exact.size)
            ours = getattr(bt, name)(bt.asarray(x), axes or None, keepdims).numpy()
            assert ours.shape == exact.shape
            # float64 inside: one rounding of the exact result.
            assert_as_good_as(ours, None, exact)


@pytest.mark.parametrize("name", REFERENCES)
def test_layouts(name: str) -> None:
    x = normal(np.random.default_rng(2), 61, 37)
    for _, tensor in layouts(x):
        for axes in ((), (0,), (1,)):
            exact = np.asarray(REFERENCES[name](x.astype(np.float64), axis=axes or None))
            assert_as_good_as(getattr(bt, name)(tensor, axes or None).numpy(), None, exact)
    stretched = bt.broadcast_to(bt.asarray(x[:, :1].copy()), (4, 61, 37))
    exact = np.asarray(REFERENCES[name](np.broadcast_to(x[:, :1].astype(np.float64), (4, 61, 37)), axis=(0, 2)))
    assert_as_good_as(getattr(bt, name)(stretched, (0, 2)).numpy(), None, exact)


def test_sum_is_exact_where_float32_is_not() -> None:
    x = np.full(100_000, 0.1, np.float32)
    assert bt.sum(bt.asarray(x)).item() == np.float32(x.astype(np.float64).sum())
    big = np.array([1e8, 1.0, -1e8] * 1000, np.float64)
    assert bt.sum(bt.asarray(big)).item() == 1000.0
    alternating = np.array([1e16, 1.0, -1e16, 1.0] * 3000)
    assert bt.sum(bt.asarray(alternating)).item() == pytest.approx(
        6000.0, abs=6000 * 2.0
    )  # lanes of a block add naively


@pytest.mark.parametrize("name", ["sum", "mean"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_floating_dtypes(name: str, dtype: str) -> None:
    x = bt.asarray(normal(np.random.default_rng(3), 700, 40)).astype(dtype)
    wide = x.astype("float64").numpy().astype(np.longdouble)
    for axes in ((), (0,), (1,)):
        exact = np.asarray(REFERENCES[name](wide, axis=axes or None))
        ours = getattr(bt, name)(x, axes or None)
        assert ours.dtype.name == dtype
        half = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float64": 2.0**-53}[dtype]
        # One rounding; float64 sums of n terms also keep n roundings of 2^-53 in the lanes of a block, of the sum of
        # magnitudes.
        slack = 2.0**-53 * 64 * np.asarray(np.abs(wide).sum(axis=axes or None)) if dtype == "float64" else 0
        slack = slack / (1 if name == "sum" else wide.size / max(1, exact.size))
        assert np.all(np.abs(ours.astype("float64").numpy() - exact) <= 1.01 * half * np.abs(exact) + slack)


@pytest.mark.parametrize("dtype", ["int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64", "bool"])
def test_integers(dtype: str) -> None:
    x = np.random.default_rng(4).integers(0, 2 if dtype == "bool" else 127, (300, 41)).astype(dtype)
    for axes in ((), (0,), (1,)):
        total = bt.sum(bt.asarray(x), axes or None)
        assert total.dtype is (bt.uint64 if dtype.startswith("uint") else bt.int64)
        assert np.array_equal(total.numpy(), x.sum(axis=axes or None))
        for name in ("max", "min"):
            ours = getattr(bt, name)(bt.asarray(x), axes or None).numpy()
            assert ours.dtype == x.dtype
            assert np.array_equal(ours, REFERENCES[name](x, axis=axes or None))


def test_extremes_of_int64_are_exact() -> None:
    x = np.array([2**62 + 1, 2**62 + 2, -(2**62) - 3, -(2**62) - 2])
    assert bt.max(bt.asarray(x)).item() == 2**62 + 2
    assert bt.min(bt.asarray(x)).item() == -(2**62) - 3
    assert bt.argmax(bt.asarray(x)).item() == 1


@pytest.mark.parametrize("shape", [(1,), (9,), (513,), (40001,), (5, 7), (7, 600), (3, 4, 5)], ids=str)
def test_argmax(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(5).integers(-3, 4, shape).astype(np.float32)  # many equals: the first wins
    for isa in available_isas():
        with using_isa(isa):
            assert bt.argmax(bt.asarray(x)).item() == np.argmax(x)
            reversed_axes = bt.asarray(np.ascontiguousarray(x.T)).permute_dims(*reversed(range(x.ndim)))
            assert bt.argmax(reversed_axes).item() == np.argmax(x)
            for axis in range(-x.ndim, x.ndim):
                assert np.array_equal(bt.argmax(bt.asarray(x), axis).numpy(), np.argmax(x, axis))
                assert np.array_equal(bt.argmax(reversed_axes, axis, True).numpy(), np.argmax(x, axis, keepdims=True))


@pytest.mark.parametrize("size", [1, 5, 16, 17, 600, 40000])
def test_nan_and_infinities(size: int) -> None:
    x = normal(np.random.default_rng(6), size)
    for isa in available_isas():
        with using_isa(isa):
            for at in {0, size // 2, size - 1}:
                for value in (np.nan, np.inf, -np.inf):
                    y = x.copy()
                    y[at] = value
                    for name, reference in REFERENCES.items():
                        ours = getattr(bt, name)(bt.asarray(y)).item()
                        exact = value if name in ("sum", "mean") else reference(y)
                        assert str(ours) == str(float(exact))
                    assert bt.argmax(bt.asarray(y)).item() == np.argmax(y)
    two = np.array([1.0, np.nan, 3.0, np.nan], np.float32)
    assert bt.argmax(bt.asarray(two)).item() == 1


def test_infinities_of_float64_sums() -> None:
    assert bt.sum(bt.asarray(np.array([1.0, np.inf, 2.0]))).item() == np.inf
    assert np.isnan(bt.sum(bt.asarray(np.array([np.inf, -np.inf]))).item())


def test_empty() -> None:
    x = bt.zeros((0, 3))
    assert bt.sum(x).item() == 0
    assert bt.sum(x, 0).tolist() == [0, 0, 0]
    assert bt.sum(x, 1).shape == (0,)
    assert np.isnan(bt.mean(x, 0).numpy()).all()
    assert bt.max(x, 1).shape == (0,)
    with pytest.raises(ValueError, match=r"\[max\] expected at least one element along axis 0"):
        bt.max(x)
    with pytest.raises(ValueError, match=r"\[argmax\] expected at least one element along axis 0"):
        bt.argmax(x, 0)


@pytest.mark.parametrize("name", REFERENCES)
def test_same_bits_for_any_instruction_set_and_threads(name: str) -> None:
    x = normal(np.random.default_rng(7), 1500, 300)

    def compute() -> list[Any]:
        return [getattr(bt, name)(bt.asarray(x), axes or None).numpy() for axes in ((), (0,), (1,))]

    same_bits_for_any_threads(compute)
    results = []
    for isa in available_isas():
        with using_isa(isa):
            results.append(compute())
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            assert a.tobytes() == b.tobytes()


def test_extreme_gradient_is_shared_between_equals() -> None:
    x = parameter(np.array([[1.0, 3.0, 3.0], [2.0, 0.0, 1.0]], np.float32))
    (gradient,) = gradients(lambda t: bt.max(t, 1), [x], np.array([1.0, 5.0], np.float32))
    assert gradient.tolist() == [[0.0, 0.5, 0.5], [5.0, 0.0, 0.0]]


def test_broadcast_gradient_is_summed() -> None:
    rng = np.random.default_rng(8)
    a, b = normal(rng, 5, 1, 4), normal(rng, 3, 1)
    upstream = normal(rng, 5, 3, 4)
    da, db = gradients(bt.multiply, [parameter(a), parameter(b)], upstream)
    assert np.allclose(da, (upstream * b).sum(1, keepdims=True), rtol=1e-6, atol=1e-6)
    assert np.allclose(db, (upstream * a).sum((0, 2)).reshape(3, 1), rtol=1e-6, atol=1e-6)


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_any_axes_of_any_strides(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    x = np.random.default_rng(9).integers(-50, 50, [2 * n for n in shape]).astype(np.float32)
    steps = tuple(data.draw(st.sampled_from([slice(None, None, 2), slice(None, None, -2)])) for _ in shape)
    order = data.draw(st.permutations(range(len(shape))))
    values, tensor = x[steps].transpose(order), bt.asarray(x)[steps].permute_dims(*order)
    axes = tuple(data.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1)))
    for name, reference in REFERENCES.items():
        if name != "mean":
            assert np.array_equal(getattr(bt, name)(tensor, axes).numpy(), reference(values, axis=axes))


def test_errors() -> None:
    x = bt.zeros((2, 3))
    with pytest.raises(IndexError, match=r"\[sum\] expected an axis from -2 to 1, got 2"):
        bt.sum(x, 2)
    with pytest.raises(ValueError, match=r"\[mean\] expected every axis once"):
        bt.mean(x, (0, -2))
    with pytest.raises(TypeError, match=r"\[mean\] expected a floating-point tensor, got int64"):
        bt.mean(bt.zeros((2,), dtype="int64"))
    with pytest.raises(ValueError, match=r"\[argmax\] expected one axis"):
        bt.argmax(x, (0, 1))


@pytest.mark.parametrize("axis", [(), []], ids=["tuple", "list"])
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("shape", [(), (0, 2), (2, 3), (2, 1, 3, 1, 2, 1, 1, 2)], ids=str)
def test_no_axes(shape: tuple[int, ...], keepdims: bool, axis: Any) -> None:
    """Over none of the axes every element stands alone; None means all of them."""
    a = np.random.default_rng(0).integers(-2, 3, shape)
    for dtype in ("float64", "int32", "bool"):
        array = a.astype(dtype)
        x = bt.asarray(array)
        for name in ("sum", "prod", "max", "min", "any", "all", "count_nonzero"):
            if dtype == "bool" and name in ("max", "min"):
                continue
            got, want = getattr(bt, name)(x, axis=axis, keepdims=keepdims), getattr(np, name)(array, axis=())
            assert got.shape == shape
            assert got.dtype is getattr(bt, name)(bt.ones(1, dtype=dtype)).dtype
            np.testing.assert_array_equal(got.numpy(), want)
        if dtype != "bool":
            assert bt.argmax(x, axis=axis).tolist() == np.zeros(shape, int).tolist()
    y = bt.asarray(a.astype("float64")).requires_grad_()
    for name, want in (("mean", a), ("var", a * 0.0), ("std", a * 0.0), ("logsumexp", a)):
        np.testing.assert_allclose(
            getattr(bt, name)(y, axis=axis, keepdims=keepdims).detach().numpy(), want, atol=1e-15
        )
    (bt.sum(y, axis=axis) * 3.0).sum().backward()
    assert y.grad is not None
    np.testing.assert_array_equal(y.grad.numpy(), np.full(shape, 3.0))


def test_squeeze_no_axes() -> None:
    x = bt.zeros((1, 2, 1))
    assert bt.squeeze(x, ()).shape == bt.squeeze(x, []).shape == (1, 2, 1)
    assert bt.squeeze(x).shape == (2,)
    assert bt.squeeze(x, ()).storage_id == x.storage_id


def test_no_axes_in_a_capture() -> None:
    captured = bt.capture(lambda x: bt.sum(x, axis=()) + bt.max(x, axis=[], keepdims=True))
    for start in (0, 5):
        x = bt.arange(start, start + 6).reshape(2, 3)
        assert captured(x).tolist() == (x * 2).tolist()
