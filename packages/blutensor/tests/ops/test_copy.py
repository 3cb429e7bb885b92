"""Copies, conversions, concatenation and writes in place."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_checks import available_isas, gradients, layouts, normal, parameter, poison, require_torch, using_isa

import blutensor as bt

INTEGERS = ["int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64"]
DTYPES = ["float32", "float64", "float16", *INTEGERS, "bool"]


@pytest.mark.parametrize(
    "shape", [(), (1,), (0, 3), (16,), (15, 17), (16, 16), (17, 33), (3, 64, 5), (2, 3, 4, 5), (130, 131)], ids=str
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_contiguous_copies_of_any_layout(shape: tuple[int, ...], dtype: str) -> None:
    x = np.random.default_rng(1).integers(0, 2 if dtype == "bool" else 120, shape).astype(dtype)
    t = bt.asarray(x)
    variants = [t] if not shape or 0 in shape else [tensor for _, tensor in layouts(x)]
    for variant in variants:
        poison(x.size)
        for copy in (bt.contiguous(variant), bt.copy(variant)):
            assert np.array_equal(copy.numpy(), x)
            assert copy.is_contiguous()
            assert copy.storage_id != variant.storage_id


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_transposed_copies(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 20), min_size=2, max_size=4))
    order = data.draw(st.permutations(range(len(shape))))
    x = np.arange(math.prod(shape), dtype=data.draw(st.sampled_from(["uint8", "uint16", "int32", "int64"]))).reshape(
        shape
    )
    assert np.array_equal(bt.contiguous(bt.asarray(x).permute_dims(*order)).numpy(), x.transpose(order))


@pytest.mark.parametrize("to", DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_astype(dtype: str, to: str) -> None:
    rng = np.random.default_rng(2)
    x = (
        rng.integers(0, 2, 999).astype(bool)
        if dtype == "bool"
        else (rng.standard_normal(999) * 50 + 100).clip(0, 127 if "int8" in (dtype, to) else 250).astype(dtype)
    )
    for isa in available_isas():
        with using_isa(isa):
            for step in (1, -3):
                ours = bt.asarray(x)[::step].astype(to)
                assert ours.dtype.name == to
                assert np.array_equal(ours.numpy(), x[::step].astype(to))


def test_bfloat16_rounds_to_nearest_even() -> None:
    torch = require_torch()
    bits = np.random.default_rng(3).integers(0, 2**32, 100_003, dtype=np.uint32)
    x = np.concatenate(
        [bits.view(np.float32), np.array([1 + 2.0**-8, 1 + 3 * 2.0**-8, 3.4e38, np.inf, np.nan, -0.0], np.float32)]
    )
    exact = torch.tensor(x).bfloat16().float().numpy()
    for isa in available_isas():
        with using_isa(isa):
            narrow = bt.asarray(x).astype("bfloat16")
            assert np.array_equal(narrow.astype("float32").numpy(), exact, equal_nan=True)
            assert np.array_equal(narrow.astype("float64").numpy(), exact.astype(np.float64), equal_nan=True)
            half = bt.asarray(x).astype("float16")
            with np.errstate(over="ignore"):
                exact_half = x.astype(np.float16)
            assert np.array_equal(half.numpy(), exact_half, equal_nan=True)
            assert np.array_equal(half.astype("float32").numpy(), exact_half.astype(np.float32), equal_nan=True)


def test_conversions_round_once() -> None:
    # Rounded to float32 first, both would be ties and go to even; the last bits decide.
    above, below = 1 + 2.0**-8 + 2.0**-40, 1 + 3 * 2.0**-8 - 2.0**-40
    narrow = bt.asarray(np.array([above, below, -above, 1e-45, 1e300])).astype("bfloat16").astype("float64")
    assert narrow.tolist() == [1 + 2.0**-7, 1 + 2.0**-7, -1 - 2.0**-7, 0.0, math.inf]
    big = (
        bt.asarray(np.array([2**60 + 2**52 + 1, -(2**60) - 2**52 - 1, 2**60 + 2**52]))
        .astype("bfloat16")
        .astype("float64")
    )
    assert big.tolist() == [2.0**60 + 2.0**53, -(2.0**60) - 2.0**53, 2.0**60]
    half = bt.asarray(np.array([1 + 2.0**-11 + 2.0**-40, 2049.0 + 2.0**-30])).astype("float16")
    assert half.numpy().astype(np.float64).tolist() == [1 + 2.0**-10, 2050.0]


def test_floating_to_integer_truncates_and_saturates() -> None:
    x = np.array([1.9, -1.9, 3e9, -3e9, 1e30, -1e30, np.nan, np.inf, -np.inf, 255.9, -0.5], np.float32)
    assert bt.asarray(x).astype("int32").tolist() == [
        1,
        -1,
        2**31 - 1,
        -(2**31),
        2**31 - 1,
        -(2**31),
        0,
        2**31 - 1,
        -(2**31),
        255,
        0,
    ]
    assert bt.asarray(x).astype("uint8").tolist() == [1, 0, 255, 0, 255, 0, 0, 255, 0, 255, 0]
    assert bt.asarray(x).astype("int64").tolist()[4:7] == [2**63 - 1, -(2**63), 0]
    assert bt.asarray(x).astype("bool").numpy().all()
    assert bt.asarray(np.array([-1, 300], np.int64)).astype("uint8").tolist() == [255, 44]


def test_gradients() -> None:
    rng = np.random.default_rng(4)
    x, upstream = normal(rng, 3, 4), normal(rng, 3, 4)
    for function in (bt.copy, bt.contiguous):
        (gradient,) = gradients(function, [parameter(x)], upstream)
        assert np.array_equal(gradient, upstream)
    (gradient,) = gradients(lambda t: bt.astype(t, "float64"), [parameter(x)], upstream.astype(np.float64))
    assert gradient.dtype == np.float32
    assert np.array_equal(gradient, upstream)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_concat(axis: int) -> None:
    rng = np.random.default_rng(5)
    sizes = [3, 0, 1, 700]
    parts = [normal(rng, *np.insert([2, 5], axis % 3, n)) for n in sizes]
    exact = np.concatenate(parts, axis)
    poison(exact.size)
    assert np.array_equal(bt.concat([bt.asarray(p) for p in parts], axis).numpy(), exact)
    turned = [bt.asarray(np.ascontiguousarray(p.T)).permute_dims(2, 1, 0) for p in parts]
    assert np.array_equal(bt.concat(turned, axis).numpy(), exact)
    upstream = normal(rng, *exact.shape)
    leaves = [parameter(p) for p in parts]
    found = gradients(lambda *t: bt.concat(t, axis), leaves, upstream)
    for ours, piece in zip(found, np.split(upstream, np.cumsum(sizes)[:-1], axis), strict=True):
        assert np.array_equal(ours, piece)


def test_concat_promotes() -> None:
    joined = bt.concat([bt.asarray(np.array([1, 2], np.int32)), bt.asarray(np.array([0.5], np.float32))])
    assert joined.dtype is bt.float32
    assert joined.tolist() == [1.0, 2.0, 0.5]


def test_copy_into_broadcasts_and_converts() -> None:
    x = bt.zeros((3, 4))
    view = x[:, ::-2]
    view.copy_(bt.asarray(np.array([1, 2], np.int64)))
    assert x.tolist() == [[0.0, 2.0, 0.0, 1.0]] * 3
    x[1] = 7
    x[0, 1:3] = bt.asarray(np.array([8.0, 9.0], np.float32))
    assert x.tolist() == [[0.0, 8.0, 9.0, 1.0], [7.0] * 4, [0.0, 2.0, 0.0, 1.0]]


def test_add_into_and_fill() -> None:
    values = normal(np.random.default_rng(6), 33, 40)
    for _, x in layouts(values.copy()):
        x = x.add_(bt.asarray(values[0].copy()))
        assert np.array_equal(x.numpy(), values + values[0])
        x[::2].fill_(2.5)
        assert np.array_equal(x.numpy()[::2], np.full((17, 40), 2.5, np.float32))
        assert np.array_equal(x.numpy()[1::2], (values + values[0])[1::2])
    counts = bt.zeros((3,), dtype="int64")
    counts.add_(bt.asarray(np.array([1, 2, 3])))
    counts.add_(counts)
    assert counts.tolist() == [2, 4, 6]
    half = bt.asarray(np.ones(600, np.float32)).astype("bfloat16")
    half.add_(bt.asarray(np.full(600, 0.25, np.float32)))
    assert set(half.tolist()) == {1.25}


def test_overlap_is_found() -> None:
    x = bt.asarray(np.arange(24, dtype=np.float32).reshape(4, 6))
    for target, source in [(x[1:], x[:-1]), (x[:, 1:], x[:, :-1]), (x[0], x[0, ::-1])]:
        with pytest.raises(ValueError, match=r"\[copy_\] expected a source that does not overlap"):
            target.copy_(source)
    before = x.numpy().copy()
    x[:, :3].copy_(x[:, 3:])  # interleaved, but apart
    assert np.array_equal(x.numpy(), np.concatenate([before[:, 3:], before[:, 3:]], 1))
    x[::2].copy_(x[1::2])
    assert np.array_equal(x.numpy()[0], x.numpy()[1])
    x.copy_(x)
    with pytest.raises(ValueError, match="whose elements do not share memory"):
        bt.broadcast_to(x[:1], (4, 6)).copy_(x)


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_overlap_is_exact_for_slices(data: st.DataObject) -> None:
    shape = (6, 7)
    x = np.arange(42, dtype=np.float32).reshape(shape)
    lengths = [data.draw(st.integers(1, n)) for n in shape]
    steps = [
        data.draw(st.integers(1, max(1, (n - 1) // max(1, k - 1)))) if k > 1 else 1
        for n, k in zip(shape, lengths, strict=True)
    ]

    def part() -> tuple[slice, ...]:
        starts = [data.draw(st.integers(0, n - 1 - (k - 1) * s)) for n, k, s in zip(shape, lengths, steps, strict=True)]
        return tuple(slice(a, a + (k - 1) * s + 1, s) for a, k, s in zip(starts, lengths, steps, strict=True))

    to, source = part(), part()
    t = bt.asarray(x.copy())
    same = to == source
    apart = not np.intersect1d(x[to], x[source]).size
    if same or apart:
        t[to].copy_(t[source])
        exact = x.copy()
        exact[to] = x[source]
        assert np.array_equal(t.numpy(), exact)
    else:
        with pytest.raises(ValueError, match="does not overlap"):
            t[to].copy_(t[source])
        assert np.array_equal(t.numpy(), x)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_index_write(dtype: str) -> None:
    cache = bt.zeros((2, 3, 8, 4))
    exact = np.zeros((2, 3, 8, 4), np.float32)
    rng = np.random.default_rng(7)
    for position in (0, 5, 7):
        new = normal(rng, 2, 3, 1, 4)
        bt.index_write_(cache, bt.asarray(new), bt.asarray(np.array(position, dtype)), axis=2)
        exact[:, :, position : position + 1] = new
    new = normal(rng, 2, 3, 3, 4)
    bt.index_write_(cache, bt.asarray(new), bt.asarray(np.array(2, dtype)), axis=-2)
    exact[:, :, 2:5] = new
    assert np.array_equal(cache.numpy(), exact)
    for position in (-1, 8):
        with pytest.raises(IndexError, match=rf"\[index_write_\] expected a position from 0 to 7 .*got {position}"):
            bt.index_write_(cache, bt.zeros((2, 3, 1, 4)), bt.asarray(np.array(position, dtype)), axis=2)
    assert np.array_equal(cache.numpy(), exact)


def test_writes_are_seen_by_backward() -> None:
    x = parameter(np.ones(3, np.float32))
    y = bt.exp(x)
    with bt.no_grad():
        y.detach().add_(bt.ones((3,)))
    with pytest.raises(RuntimeError, match=r"'exp' saved its output 0 .* but 'add_' wrote to it"):
        bt.sum(y).backward()


def test_errors() -> None:
    x: Any = bt.zeros((2, 3))
    with pytest.raises(
        bt.ShapeError, match=r"\[concat\] expected shapes that agree in all axes but 0, got \(2, 3\) and \(2, 4\)"
    ):
        bt.concat([x, bt.zeros((2, 4))])
    with pytest.raises(bt.ShapeError, match="at least one"):
        bt.concat([])
    with pytest.raises(bt.ShapeError, match="rank 0"):
        bt.concat([bt.asarray(np.float32(1))])
    with pytest.raises(
        bt.ShapeError, match=r"\[copy_\] expected a source that broadcasts to shape \(2, 3\), got \(3, 3\)"
    ):
        x.copy_(bt.zeros((3, 3)))
    with pytest.raises(bt.DTypeError, match=r"\[add_\] expected a source that converts to int64"):
        bt.zeros((2,), dtype="int64").add_(bt.ones((2,)))
    with pytest.raises(bt.DTypeError, match=r"\[index_write_\] expected position of dtype int32 or int64"):
        bt.index_write_(x, bt.zeros((1, 3)), bt.asarray(np.float32(0)), axis=0)
    with pytest.raises(bt.ShapeError, match=r"\[index_write_\] expected new of shape \(2, 3\)"):
        bt.index_write_(x, bt.zeros((1, 4)), bt.asarray(np.int32(0)), axis=0)
