"""What users get wrong: one typed error that names value and fix, and a library that works as before."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import blualloc
import blutensor as bt
import blutensor.nn.functional as F
from blutensor import _operators
from blutensor._table import OPERATORS

f = bt.ones
i64 = lambda *values: bt.asarray(np.array(values))  # noqa: E731

MISTAKES: list[tuple[str, Callable[[], Any], type[Exception], str]] = [
    # shapes
    ("broadcast", lambda: f((2, 3)) + f((2,)), ValueError, r"\[add\].*\(2, 3\) and \(2,\)"),
    ("matmul", lambda: f((2, 3)) @ f((2, 3)), ValueError, r"\[matmul\].*\(2, 3\)"),
    ("matmul 0-d", lambda: f(()) @ f((2,)), ValueError, r"\[matmul\]"),
    ("linear", lambda: F.linear(f((2, 3)), f((4, 5))), ValueError, r"\[linear\].*3"),
    ("linear bias", lambda: F.linear(f((2, 3)), f((4, 3)), f(5)), ValueError, r"\[linear\].*\(5,\)"),
    ("linear residual", lambda: F.linear(f((2, 3)), f((4, 3)), None, f((2, 5))), ValueError, r"\[linear\]"),
    ("mlp", lambda: F.mlp(f((2, 3)), f((4, 3)), None, f((3, 5)), None), ValueError, r"\[mlp\]"),
    ("reshape", lambda: f((2, 3)).reshape(4), ValueError, r"\[reshape\].*\(4,\)"),
    ("reshape two unknowns", lambda: f((2, 3)).reshape(-1, -1), ValueError, r"\[reshape\]"),
    ("permute", lambda: f((2, 3)).permute_dims(0, 0), ValueError, r"\[permute_dims\]"),
    ("permute length", lambda: f((2, 3)).permute_dims(0), ValueError, r"\[permute_dims\]"),
    ("squeeze", lambda: bt.squeeze(f((2, 1)), 0), ValueError, r"\[squeeze\]"),
    ("broadcast_to", lambda: bt.broadcast_to(f((2, 3)), (2, 4)), ValueError, r"\[broadcast_to\]"),
    ("concat", lambda: bt.concat([f((2, 3)), f((3, 2))]), ValueError, r"\[concat\]"),
    ("concat none", lambda: bt.concat([]), ValueError, r"\[concat\] expected at least one"),
    ("split", lambda: bt.split(f((5,)), (2, 2), 0), ValueError, r"\[split\]"),
    ("attention", lambda: F.scaled_dot_product_attention(f((1, 2, 3, 4)), f((1, 2, 3, 5)), f((1, 2, 3, 5))), ValueError,
     r"\[scaled_dot_product_attention\]"),
    ("layer_norm", lambda: bt.layer_norm(f((2, 3)), 3, f(4)), ValueError, r"\[layer_norm\]"),
    ("cross_entropy", lambda: F.cross_entropy(f((2, 3)), i64(0)), ValueError, r"\[cross_entropy\]"),
    ("head", lambda: F.linear_cross_entropy(f((2, 3)), f((5, 4)), i64(0, 1)), ValueError, r"\[linear_cross_entropy\]"),
    ("embedding", lambda: F.embedding(i64(0), f((2, 3, 4))), ValueError, r"\[embedding\]"),
    ("copy_", lambda: f((2, 3)).copy_(f((4,))), ValueError, r"\[copy_\]"),
    ("negative size", lambda: bt.zeros((2, -1)), ValueError, "at least 0"),
    ("too large", lambda: bt.zeros((2**40, 2**40)), ValueError, r"2\^63"),
    ("too many axes", lambda: bt.zeros((1,) * 9), ValueError, "at most 8"),
    ("max of nothing", lambda: f((0,)).max(), ValueError, r"\[max\]"),
    ("argmax of nothing", lambda: bt.argmax(f((2, 0)), 1), ValueError, r"\[argmax\]"),
    ("arange step", lambda: bt.arange(0, 1, 0), ValueError, "step other than 0"),
    ("arange NaN", lambda: bt.arange(0, math.nan), ValueError, r"\[arange\]"),
    # dtypes and devices
    ("integers", lambda: F.linear(f((2, 3), dtype="int64"), f((4, 3))), TypeError, r"\[linear\]"),
    ("mixed floats", lambda: F.linear(f((2, 3)), f((4, 3), dtype="float64")), TypeError, r"\[linear\].*float64"),
    ("exp of integers", lambda: bt.exp(bt.arange(3)), TypeError, r"\[exp\].*int64"),
    ("float ids", lambda: F.embedding(f(2), f((3, 4))), TypeError, r"\[embedding\]"),
    ("float targets", lambda: F.cross_entropy(f((2, 3)), f(2)), TypeError, r"\[cross_entropy\]"),
    ("no tensor", lambda: bt.exp(1.0), TypeError, r"\[exp\].*asarray"),
    ("an array", lambda: f(3) + np.ones(3), TypeError, "asarray"),
    ("None", lambda: F.linear(None, f((2, 3))), TypeError, r"\[linear\].*'x'"),
    ("unknown dtype", lambda: bt.zeros(2, dtype="float128x"), TypeError, "expected one of float32"),
    ("device", lambda: bt.zeros(2, device="gpu"), TypeError, "expected device .cpu. or .cuda:<index>., got .gpu."),
    ("attribute", lambda: F.softmax(f((2, 3)), 0.5), TypeError, r"\[softmax\] expected integer for 'axis', got 0.5"),
    ("choice", lambda: F.gelu(f(2), "erf"), ValueError, r"\[gelu\].*none, tanh.*'erf'"),
    # out of range
    ("axis", lambda: f((2, 3)).sum(2), IndexError, r"\[sum\].*from -2 to 1, got 2"),
    ("softmax axis", lambda: F.softmax(f((2, 3)), -3), IndexError, r"\[softmax\].*-3"),
    ("id", lambda: F.embedding(i64(0, 3), f((3, 4))), IndexError, r"\[embedding\].*3"),
    ("negative id", lambda: F.embedding(i64(-1), f((3, 4))), IndexError, r"\[embedding\].*-1"),
    ("target", lambda: F.cross_entropy(f((1, 3)), i64(3)), IndexError, r"\[cross_entropy\].*3"),
    ("head target", lambda: F.linear_cross_entropy(f((1, 3)), f((4, 3)), i64(-1)), IndexError,
     r"\[linear_cross_entropy\].*-1"),
    ("seed", lambda: bt.manual_seed(2**64), ValueError, "64 bits"),
    ("isa", lambda: bt.set_isa("mmx"), ValueError, "reference, avx2, avx512"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), [m[1:] for m in MISTAKES], ids=[m[0] for m in MISTAKES])
def test_mistakes(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as raised:
        call()
    assert "expected" in str(raised.value) or "got" in str(raised.value)
    assert (f(3) + 1).tolist() == [2, 2, 2]


def test_errors_are_subclasses_of_pythons() -> None:
    assert issubclass(bt.ShapeError, ValueError)
    assert issubclass(bt.DTypeError, TypeError)
    assert issubclass(bt.IndexOutOfRangeError, IndexError)
    assert issubclass(bt.UnsupportedError, NotImplementedError)
    assert issubclass(bt.CaptureError, RuntimeError)
    assert issubclass(bt.AutogradError, RuntimeError)


def test_out_of_memory_is_typed_and_leaves_everything_usable() -> None:
    blualloc.set_limit(blualloc.stats().live_bytes + (1 << 20))
    try:
        with pytest.raises(blualloc.OutOfMemoryError, match=r"4\.00 MiB") as raised:
            bt.zeros((1 << 20,))
        assert raised.value.requested == 4 << 20
        assert bt.zeros(100).sum().item() == 0
    finally:
        blualloc.set_limit(0)
    assert bt.zeros((1 << 20,)).sum().item() == 0


UNARY = [s for s in OPERATORS.values() if s.public and s.category == "Elementwise functions" and len(s.inputs) == 1]


@pytest.mark.parametrize("spec", UNARY, ids=lambda s: s.name)
def test_zero_size_and_special_values(spec: Any) -> None:
    function = getattr(_operators, spec.name)
    for shape in ((0,), (3, 0), (0, 5, 2)):
        x = bt.zeros(shape).requires_grad_()
        y = function(x)
        assert y.shape == shape
        if spec.differentiable:
            y.sum().backward()
            assert x.grad is not None
            assert x.grad.shape == shape
    special = function(bt.asarray([math.nan, 1.0])).numpy()
    assert math.isnan(special[0])
    assert not math.isnan(special[1])


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (0, 0)])
def test_zero_size_in_layers(shape: tuple[int, int]) -> None:
    """Empty batches and empty inner sizes: shapes as always, sums of nothing are 0."""
    x = bt.zeros(shape).requires_grad_()
    w = f((4, shape[1])).requires_grad_()
    y = F.linear(x, w, f(4))
    assert y.shape == (shape[0], 4)
    y.sum().backward()
    assert w.grad is not None
    assert not w.grad.numpy().any()
    assert (x @ f((shape[1], 2))).tolist() == [[0, 0]] * shape[0]
    assert F.softmax(x).shape == shape
    assert bt.concat([x, x]).shape == (2 * shape[0], shape[1])
    assert x.sum().item() == 0


def test_nan_and_infinity_propagate() -> None:
    for bad in (math.nan, math.inf):
        x = bt.asarray([[1.0, bad], [1.0, 2.0]])
        assert not np.isfinite(F.softmax(x).numpy()[0]).all()
        assert np.isfinite(F.softmax(x).numpy()[1]).all()
        assert not math.isfinite(x.sum().item())
        assert not np.isfinite((x @ x).numpy()[0]).all()
        assert not math.isfinite(F.cross_entropy(x, i64(0, 1)).item())
    assert bt.isnan(bt.asarray([math.nan, 1.0])).tolist() == [True, False]
    assert bt.isfinite(bt.asarray([math.inf, 1.0])).tolist() == [False, True]
    assert math.copysign(1, (bt.asarray(-0.0) * 1).item()) == -1
    assert (bt.asarray([1e-45]) * 1).item() == np.float32(1e-45)


@pytest.mark.parametrize("write", [lambda t: t.add_(f(3)), lambda t: t.copy_(f(3)), lambda t: t.fill_(5.0)])
def test_overlapping_memory_can_be_read_but_not_written(write: Any) -> None:
    overlapping = bt.asarray(np.lib.stride_tricks.as_strided(np.arange(5, dtype=np.float32), (3, 3), (4, 4)))
    repeated = bt.broadcast_to(bt.asarray([[1.0], [2.0], [3.0]]), (3, 3))
    for t in (overlapping, repeated):
        before = t.tolist()
        assert (t + 1).tolist() == [[v + 1 for v in row] for row in before]
        assert (t @ t).shape == (3, 3)
        with pytest.raises(ValueError, match=r"do not share memory.*contiguous\(\)"):
            write(t)
        assert t.tolist() == before
    window = bt.arange(4, dtype="float32")
    with pytest.raises(ValueError, match=r"does not overlap.*copy\(source\)"):
        window[1:].copy_(window[:-1])
    window[1:].copy_(bt.copy(window[:-1]))
    assert window.tolist() == [0, 0, 1, 2]


def test_messages_name_the_operator() -> None:
    for _, call, _, _ in MISTAKES[:20]:
        with pytest.raises(Exception, match=r"^\[[a-z_]+\] ") as raised:
            call()
        assert re.match(r"^\[[a-z_]+\] ", str(raised.value))


def test_more_than_the_machine_has_is_refused_at_once() -> None:
    with pytest.raises(blualloc.OutOfMemoryError, match="out of memory"):
        bt.zeros((10**6, 10**7))
    assert bt.ones((1000,)).sum().item() == 1000
