"""cross_entropy against float64, beside NumPy and PyTorch in float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from layer_checks import (
    Array,
    assert_as_good_as,
    available_isas,
    layouts,
    normal,
    parameter,
    poison,
    require_torch,
    same_bits_for_any_threads,
    using_isa,
)
from peers import both_peers, by_numpy, torch_leaves

import blutensor as bt
from blutensor import _operators
from blutensor.nn import functional as F

IGNORED = -100
# (rows, classes): around vectors and the chunk of 2048 logits, primes, one element, GPT-2's vocabulary.
CASES = [
    (1, 1),
    (5, 7),
    (37, 211),
    (64, 256),
    (3, 15),
    (3, 17),
    (3, 63),
    (3, 65),
    (3, 2047),
    (3, 2048),
    (3, 2049),
    (2, 4100),
    (16, 50304),
]


def formula(logits: Array, targets: Array, reduction: str) -> tuple[Array, Array]:
    """Loss and gradient of sum(loss), in the dtype of the logits."""
    dtype = logits.dtype
    shifted = logits - logits.max(axis=-1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    valid = targets != IGNORED
    rows = np.arange(len(targets))
    losses = np.where(valid, -log_p[rows, np.where(valid, targets, 0)], dtype.type(0))
    gradient = np.exp(log_p)
    gradient[rows, np.where(valid, targets, 0)] -= dtype.type(1)
    gradient *= valid[:, None].astype(dtype)
    if reduction == "none":
        return losses, gradient
    if reduction == "sum":
        return np.asarray(losses.sum()), gradient
    return np.asarray(losses.sum() / valid.sum()), gradient / dtype.type(valid.sum())


def operands(rows: int, classes: int, scale: float, seed: int = 0) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    targets = rng.integers(0, classes, rows)
    if rows > 2:
        targets[1] = IGNORED
    return normal(rng, rows, classes, scale=scale), targets


@both_peers
@pytest.mark.parametrize("isa", available_isas())
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("scale", [1.0, 20.0])
@pytest.mark.parametrize(("rows", "classes"), CASES)
def test_values_and_gradients(rows: int, classes: int, scale: float, reduction: Any, isa: str, peer: str) -> None:
    x, targets = operands(rows, classes, scale)
    if peer == "torch":
        torch = require_torch()
        (leaf,) = torch_leaves(x)
        loss = torch.nn.functional.cross_entropy(leaf, torch.tensor(targets), reduction=reduction)
        loss.backward(torch.ones_like(loss))
        theirs, their_gradient = loss.detach().numpy(), leaf.grad.numpy()
    else:
        theirs, their_gradient = by_numpy(lambda a: formula(a, targets, reduction), x)
    poison(x.size, rows, 1)
    with using_isa(isa):
        own = parameter(x)
        result = F.cross_entropy(
            own, bt.asarray(targets.astype(np.int32 if scale == 1 else np.int64)), reduction=reduction
        )
        result.backward(bt.ones(result.shape))
    exact, exact_gradient = by_numpy(lambda a: formula(a, targets, reduction), x, dtype=np.float64)
    assert own.grad is not None
    assert_as_good_as(result.detach().numpy(), theirs, exact)
    assert_as_good_as(own.grad.numpy(), their_gradient, exact_gradient)


@pytest.mark.parametrize("isa", available_isas())
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.1, 1.0])
@pytest.mark.parametrize(("rows", "classes"), [(1, 1), (5, 7), (3, 65), (37, 211), (4, 50304)])
def test_label_smoothing(rows: int, classes: int, smoothing: float, reduction: Any, isa: str) -> None:
    torch = require_torch()
    x, targets = operands(rows, classes, 3.0)
    x += 20  # a large mean costs no digits

    def theirs(dtype: Any) -> list[Array]:
        leaf = torch.tensor(x, dtype=dtype, requires_grad=True)
        loss = torch.nn.functional.cross_entropy(
            leaf, torch.tensor(targets), reduction=reduction, label_smoothing=smoothing
        )
        loss.backward(torch.ones_like(loss))
        return [loss.detach().numpy(), leaf.grad.numpy()]

    with using_isa(isa):
        own = parameter(x)
        result = F.cross_entropy(own, bt.asarray(targets), reduction=reduction, label_smoothing=smoothing)
        result.backward(bt.ones(result.shape))
    assert own.grad is not None
    for got, peer, exact in zip([result.detach(), own.grad], theirs(torch.float32), theirs(torch.float64), strict=True):
        assert_as_good_as(got.numpy(), peer, exact)


def test_label_smoothing_of_zero_changes_no_bits() -> None:
    x, targets = operands(9, 300, 5.0)
    leaves = [parameter(x), parameter(x)]
    t = bt.asarray(targets)
    losses = [F.cross_entropy(leaves[0], t), F.cross_entropy(leaves[1], t, label_smoothing=0.0)]
    for loss in losses:
        loss.backward()
    assert losses[0].item() == losses[1].item()
    np.testing.assert_array_equal(leaves[0].grad.numpy(), leaves[1].grad.numpy())


def test_label_smoothing_of_other_dtypes_and_captures() -> None:
    x, targets = operands(6, 33, 2.0)
    t = bt.asarray(targets)
    exact = F.cross_entropy(bt.asarray(x.astype(np.float64)), t, label_smoothing=0.2).item()
    for dtype in ("bfloat16", "float16"):
        low = bt.asarray(x).astype(dtype)
        same = F.cross_entropy(low.astype("float64"), t, label_smoothing=0.2).item()
        assert F.cross_entropy(low, t, label_smoothing=0.2).item() == pytest.approx(same, rel=2.0**-22)
        assert same == pytest.approx(exact, rel=2.0**-6)
    bt.gradcheck(lambda a: F.cross_entropy(a, t, label_smoothing=0.2), [parameter(x.astype(np.float64))])
    primitive = bt.capture(lambda a: F.cross_entropy(a, t, label_smoothing=0.2), level="primitive")
    for _ in range(3):
        assert primitive(bt.asarray(x.astype(np.float64))).item() == pytest.approx(exact, rel=1e-13)
    with pytest.raises(bt.ShapeError, match=r"\[cross_entropy\] expected label_smoothing from 0 to 1, got 1.5"):
        F.cross_entropy(bt.asarray(x), t, label_smoothing=1.5)


def test_statistics_of_rows() -> None:
    x, targets = operands(9, 300, 5.0)
    _, maximum, log_sum = _operators.cross_entropy(bt.asarray(x), bt.asarray(targets))
    np.testing.assert_array_equal(maximum.numpy(), x.max(-1))
    exact = np.log(np.exp(x.astype(np.float64) - x.max(-1, keepdims=True)).sum(-1))
    np.testing.assert_allclose(log_sum.numpy(), exact, rtol=2.0**-21)


def test_leading_axes_and_scaled_gradient() -> None:
    x, targets = operands(30, 11, 2.0)
    shaped, flat = parameter(x.reshape(2, 5, 3, 11)), parameter(x)
    upstream = normal(np.random.default_rng(1), 30)
    F.cross_entropy(shaped, bt.asarray(targets.reshape(2, 5, 3)), reduction="none").backward(
        bt.asarray(upstream.reshape(2, 5, 3))
    )
    F.cross_entropy(flat, bt.asarray(targets), reduction="none").backward(bt.asarray(upstream))
    assert shaped.grad is not None
    assert flat.grad is not None
    np.testing.assert_array_equal(shaped.grad.numpy().reshape(30, 11), flat.grad.numpy())
    _, exact = formula(x.astype(np.float64), targets, "none")
    np.testing.assert_allclose(flat.grad.numpy(), exact * upstream[:, None], rtol=2.0**-19, atol=2.0**-23)


def test_one_row_without_leading_axes() -> None:
    loss = F.cross_entropy(bt.asarray(np.zeros(8, np.float32)), bt.asarray(np.int64(3)), reduction="none")
    assert loss.shape == ()
    assert abs(loss.item() - np.log(8)) < 1e-6


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_all_ignored_and_empty(reduction: Any) -> None:
    """The mean over no rows is NaN, as in PyTorch; its gradient is 0 all the same."""
    for rows in (4, 0):
        x = parameter(normal(np.random.default_rng(2), rows, 5))
        loss = F.cross_entropy(x, bt.asarray(np.full(rows, IGNORED)), reduction=reduction)
        loss.backward(bt.ones(loss.shape))
        assert x.grad is not None
        np.testing.assert_array_equal(x.grad.numpy(), np.zeros((rows, 5), np.float32))
        expected = {"mean": np.float32(np.nan), "sum": np.float32(0), "none": np.zeros(rows, np.float32)}[reduction]
        np.testing.assert_array_equal(loss.detach().numpy(), expected)


def test_other_ignore_index() -> None:
    x, targets = operands(8, 6, 1.0)
    targets[targets == IGNORED] = 0
    got = F.cross_entropy(bt.asarray(x), bt.asarray(targets), ignore_index=0, reduction="sum").item()
    renamed = np.where(targets == 0, IGNORED, targets)
    assert got == F.cross_entropy(bt.asarray(x), bt.asarray(renamed), reduction="sum").item()


@pytest.mark.parametrize("isa", available_isas())
def test_special_values(isa: str) -> None:
    inf, nan = np.inf, np.nan
    with using_isa(isa):
        for row in ([nan, -inf, 1], [nan] * 3, [-inf] * 3, [1, inf, 2], [nan, 0, 0]):
            for padding in (0, 20, 3000):  # the special values in the first vector, the loss of a later one too
                x = np.array([row + [0.5] * padding if np.isfinite(row).any() else row * (padding + 1)], np.float32)
                loss = F.cross_entropy(bt.asarray(x), bt.asarray(np.array([2])), reduction="sum").item()
                assert np.isnan(loss), (row, padding)
        # -inf has probability 0: an infinite loss where it is the target, no influence elsewhere
        x = np.array([[-inf, 0, 0]], np.float32)
        assert F.cross_entropy(bt.asarray(x), bt.asarray(np.array([0]))).item() == inf
        leaf = parameter(x)
        loss = F.cross_entropy(leaf, bt.asarray(np.array([1])))
        loss.backward()
        assert leaf.grad is not None
        np.testing.assert_allclose(loss.item(), np.log(2), rtol=2.0**-22)
        np.testing.assert_allclose(leaf.grad.numpy(), [[0, -0.5, 0.5]], rtol=2.0**-22)
        # a block of -inf before the finite logits (longer than the kernel's chunk)
        x = np.full((1, 5000), -inf, np.float32)
        x[0, 4000:] = 1
        assert abs(F.cross_entropy(bt.asarray(x), bt.asarray(np.array([4500]))).item() - np.log(1000)) < 2e-6


@pytest.mark.parametrize("isa", available_isas())
def test_layouts(isa: str) -> None:
    x, targets = operands(24, 35, 2.0)
    exact, exact_gradient = formula(x.astype(np.float64), targets, "mean")
    with using_isa(isa):
        for _, view in layouts(x):
            for _, places in layouts(targets):
                view = view.detach()
                view.requires_grad = True
                loss = F.cross_entropy(view, places)
                (gradient,) = bt.grad([loss], [view])
                np.testing.assert_allclose(loss.item(), exact, rtol=2.0**-21)
                np.testing.assert_allclose(gradient.numpy(), exact_gradient, rtol=2.0**-19, atol=2.0**-27)


@pytest.mark.parametrize("isa", available_isas())
def test_same_bits_for_any_threads(isa: str) -> None:
    x, targets = operands(130, 517, 2.0)

    def compute() -> list[Array]:
        leaf = parameter(x)
        loss = F.cross_entropy(leaf, bt.asarray(targets))
        return [loss.detach().numpy(), bt.grad([loss], [leaf])[0].numpy()]

    with using_isa(isa):
        same_bits_for_any_threads(compute)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bit_logits_have_a_float32_loss(dtype: str) -> None:
    x, targets = operands(12, 50, 2.0)
    logits = bt.asarray(x).astype(dtype)
    logits.requires_grad = True
    loss = F.cross_entropy(logits, bt.asarray(targets))
    loss.backward()
    assert loss.dtype.name == "float32"
    assert logits.grad is not None
    assert logits.grad.dtype.name == dtype
    exact, exact_gradient = formula(logits.detach().astype("float64").numpy(), targets, "mean")
    np.testing.assert_allclose(loss.item(), exact, rtol=2.0**-21)
    assert_as_good_as(logits.grad.astype("float32").numpy(), None, exact_gradient, dtype)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_gradcheck_and_decomposition(reduction: Any) -> None:
    x, targets = operands(6, 5, 1.0)
    values, places = x.astype(np.float64), bt.asarray(targets)
    bt.gradcheck(lambda t: F.cross_entropy(t, places, reduction=reduction), [parameter(values)])
    decomposed = bt.capture(lambda t, p: _operators.cross_entropy(t, p, reduction=reduction), level="primitive")
    for _ in range(2):
        results = decomposed(bt.asarray(values), places)
        for got, expected in zip(
            results, _operators.cross_entropy(bt.asarray(values), places, reduction=reduction), strict=True
        ):
            np.testing.assert_allclose(got.numpy(), expected.numpy(), rtol=1e-13, atol=1e-14)
    assert " cross_entropy" not in str(decomposed.program)


def test_errors() -> None:
    x = bt.zeros((2, 3))
    for bad, row in (([0, 3], 1), ([-1, 0], 0), ([2, -101], 1)):
        value = bad[row]
        with pytest.raises(
            IndexError,
            match=rf"\[cross_entropy\] expected targets in \[0, 3\) or ignore_index = -100, got {value} at row {row}",
        ):
            F.cross_entropy(x, bt.asarray(np.array(bad)))
    with pytest.raises(TypeError, match=r"expected int32 or int64 targets, got float32"):
        F.cross_entropy(x, bt.zeros((2,)))
    with pytest.raises(TypeError, match=r"expected floating-point logits, got int64"):
        F.cross_entropy(bt.zeros((2, 3), dtype="int64"), bt.asarray(np.array([0, 1])))
    with pytest.raises(
        ValueError, match=r"expected targets of shape \(2\) for logits \(2, 3\), got \(3\)|expected targets of shape"
    ):
        F.cross_entropy(x, bt.asarray(np.array([0, 1, 2])))
    with pytest.raises(ValueError, match=r"\[cross_entropy\]"):
        F.cross_entropy(x, bt.asarray(np.array([0, 1])), reduction="average")  # type: ignore[arg-type]
