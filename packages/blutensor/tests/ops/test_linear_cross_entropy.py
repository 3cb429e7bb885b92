"""linear_cross_entropy against float64, beside PyTorch's linear and cross_entropy."""

from __future__ import annotations

from collections.abc import Callable
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

import blutensor as bt
from blutensor import _operators
from blutensor.gradcheck import gradcheck
from blutensor.nn import functional as F

# (N, C, V): small ones take GEMMs of whole chunks; from 16 blocks of 512 classes on, blocks on one thread each; the
# last one has several chunks of tokens.
SIZES = [
    (1, 1, 1),
    (3, 2, 5),
    (5, 17, 33),
    (37, 96, 211),
    (64, 31, 511),
    (65, 16, 513),
    (300, 8, 1025),
    (7, 12, 7680),
    (66, 9, 7681),
    (256, 5, 8193),
    (200, 3, 200003),
]


def torch_head(reduction: str) -> Callable[..., Any]:
    torch = require_torch()

    def head(x: Any, weight: Any, targets: Any) -> Any:
        return torch.nn.functional.cross_entropy(torch.nn.functional.linear(x, weight), targets, reduction=reduction)

    return head


def loss_and_gradients(
    x: Array, weight: Array, targets: Array, reduction: str = "mean", scale: float = 1.0
) -> list[Array]:
    own = [parameter(x), parameter(weight)]
    poison(x.size, weight.size)
    loss = F.linear_cross_entropy(*own, bt.asarray(targets), reduction=reduction)
    return [loss.detach().numpy(), *(g.numpy() for g in bt.grad([loss * scale], own))]


@pytest.mark.parametrize("isa", available_isas())
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize(("rows", "channels", "vocabulary"), SIZES)
def test_loss_and_gradients(rows: int, channels: int, vocabulary: int, reduction: str, isa: str) -> None:
    torch = require_torch()
    rng = np.random.default_rng(1)
    x, weight = normal(rng, rows, channels), normal(rng, vocabulary, channels, scale=3 * channels**-0.5)
    targets = rng.integers(0, vocabulary, rows)
    targets[1::5] = -100
    with using_isa(isa):
        ours = loss_and_gradients(x, weight, targets, reduction)

    def theirs(dtype: Any) -> list[Array]:
        leaves = [torch.tensor(v, dtype=dtype, requires_grad=True) for v in (x, weight)]
        loss = torch_head(reduction)(*leaves, torch.tensor(targets))
        return [loss.detach().numpy(), *(g.numpy() for g in torch.autograd.grad(loss, leaves))]

    for got, peer, true in zip(ours, theirs(torch.float32), theirs(torch.float64), strict=True):
        assert got.shape == true.shape
        assert_as_good_as(got, peer, true)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("vocabulary", [5, 16400])
def test_gradients_in_float64_with_an_upstream_gradient(reduction: str, vocabulary: int) -> None:
    rng = np.random.default_rng(2)
    x, weight = rng.standard_normal((4, 3)), rng.standard_normal((vocabulary, 3))
    targets = bt.asarray(np.array([1, 4, -100, 0], np.int32))
    inputs = [parameter(x), parameter(weight) if vocabulary < 100 else bt.asarray(weight)]
    gradcheck(lambda x, w: F.linear_cross_entropy(x, w, targets, reduction=reduction) * 3.0, inputs)


def test_upstream_gradient_scales_exactly() -> None:
    rng = np.random.default_rng(3)
    x, weight, targets = normal(rng, 9, 8), normal(rng, 31, 8), rng.integers(0, 31, 9)
    once, twice = loss_and_gradients(x, weight, targets), loss_and_gradients(x, weight, targets, scale=2.0)
    for a, b in zip(once[1:], twice[1:], strict=True):
        np.testing.assert_array_equal(2 * a, b)


def test_weight_gradient_goes_into_its_buffer() -> None:
    rng = np.random.default_rng(4)
    x, weight, targets = normal(rng, 9, 8), parameter(normal(rng, 31, 8)), bt.asarray(rng.integers(0, 31, 9))
    fresh = loss_and_gradients(x, weight.detach().numpy(), targets.numpy(), "sum")[2]
    for _ in range(2):
        F.linear_cross_entropy(bt.asarray(x), weight, targets, reduction="sum").backward()
    np.testing.assert_array_equal(weight.grad.numpy(), 2 * fresh)


def test_tied_weight() -> None:
    """The same parameter as embedding and head, as in GPT-2."""
    rng = np.random.default_rng(5)
    ids, targets = bt.asarray(rng.integers(0, 7, 5)), bt.asarray(rng.integers(0, 7, 5))
    gradcheck(
        lambda w: F.linear_cross_entropy(F.embedding(ids, w), w, targets), [parameter(rng.standard_normal((7, 3)))]
    )


def test_only_what_is_needed_is_computed() -> None:
    rng = np.random.default_rng(6)
    x, weight, targets = normal(rng, 4, 3), normal(rng, 6, 3), bt.asarray(rng.integers(0, 6, 4))
    for wants_x in (False, True):
        for wants_weight in (False, True):
            _, x_grad, weight_grad = _operators.linear_cross_entropy(
                bt.asarray(x), bt.asarray(weight), targets, -100, "sum", wants_x, wants_weight
            )
            assert x_grad.shape == ((4, 3) if wants_x else (0,))
            assert weight_grad.shape == ((6, 3) if wants_weight else (0,))
    with pytest.raises(ValueError, match="compute_x_grad"):
        bt.grad([_operators.linear_cross_entropy(parameter(x), bt.asarray(weight), targets)[0]], [parameter(x)])


@pytest.mark.parametrize("vocabulary", [6, 20000])
def test_ignored_rows_contribute_nothing(vocabulary: int) -> None:
    rng = np.random.default_rng(7)
    x, weight = normal(rng, 5, 3), normal(rng, vocabulary, 3)
    targets = np.array([1, -7, 3, -7, 5])
    kept = targets != -7
    own = [parameter(x), parameter(weight)]
    loss = F.linear_cross_entropy(*own, bt.asarray(targets), ignore_index=-7)
    x_grad, weight_grad = (g.numpy() for g in bt.grad([loss], own))
    expected = loss_and_gradients(x[kept], weight, targets[kept])
    np.testing.assert_allclose(loss.detach().numpy(), expected[0], rtol=1e-6)
    assert (x_grad[~kept] == 0).all()
    np.testing.assert_allclose(x_grad[kept], expected[1], rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(weight_grad, expected[2], rtol=1e-5, atol=1e-7)


def test_all_ignored() -> None:
    x, weight, targets = np.ones((3, 2), np.float32), np.ones((4, 2), np.float32), np.full(3, -100)
    loss, x_grad, weight_grad = loss_and_gradients(x, weight, targets, "mean")
    assert np.isnan(loss)
    assert not x_grad.any()
    assert not weight_grad.any()
    assert loss_and_gradients(x, weight, targets, "sum")[0] == 0


def test_no_rows() -> None:
    loss, x_grad, weight_grad = loss_and_gradients(
        np.ones((0, 2), np.float32), np.ones((4, 2), np.float32), np.ones(0, np.int64), "sum"
    )
    assert loss == 0
    assert x_grad.shape == (0, 2)
    assert not weight_grad.any()


@pytest.mark.parametrize("isa", available_isas())
@pytest.mark.parametrize("vocabulary", [40, 17000])
def test_log_sum_exp_neither_overflows_nor_loses_the_target(vocabulary: int, isa: str) -> None:
    weight = np.zeros((vocabulary, 1), np.float32)
    weight[0], weight[-1] = 300.0, -300.0
    x = np.full((2, 1), 100.0, np.float32)
    with using_isa(isa):
        loss, x_grad, weight_grad = loss_and_gradients(x, weight, np.array([0, vocabulary - 1]), "sum")
    assert loss == 60000.0
    np.testing.assert_array_equal(x_grad, [[0.0], [600.0]])
    np.testing.assert_array_equal(weight_grad[[0, -1], 0], [100.0, -100.0])


@pytest.mark.parametrize("isa", available_isas())
@pytest.mark.parametrize("vocabulary", [40, 17000])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_special_values_stay_in_their_row(value: float, vocabulary: int, isa: str) -> None:
    rng = np.random.default_rng(8)
    x, weight, targets = normal(rng, 3, 4), np.abs(normal(rng, vocabulary, 4)), np.array([1, 2, 3])
    clean = loss_and_gradients(x, weight, targets, "sum")[1]
    x[1, 2] = value
    with using_isa(isa):
        loss, x_grad, _ = loss_and_gradients(x, weight, targets, "sum")
    assert np.isnan(loss)
    assert np.isnan(x_grad[1]).all()
    np.testing.assert_allclose(x_grad[[0, 2]], clean[[0, 2]], rtol=1e-5, atol=1e-5)


def test_minus_infinity_is_a_class_that_never_happens() -> None:
    weight = np.zeros((17000, 1), np.float32)
    weight[:9000] = -np.inf
    loss = F.linear_cross_entropy(bt.ones((1, 1)), bt.asarray(weight), bt.asarray(np.array([16000])))
    np.testing.assert_allclose(loss.item(), np.log(8000), rtol=1e-6)


def test_layouts() -> None:
    rng = np.random.default_rng(9)
    x, weight, targets = normal(rng, 6, 5), normal(rng, 9, 5), rng.integers(0, 9, 6)
    expected = loss_and_gradients(x, weight, targets)
    for (name, xv), (_, wv), (_, tv) in zip(layouts(x), layouts(weight), layouts(targets), strict=True):
        xv.requires_grad = wv.requires_grad = True
        loss = F.linear_cross_entropy(xv, wv, tv)
        for got, want in zip([loss.detach(), *bt.grad([loss], [xv, wv])], expected, strict=True):
            np.testing.assert_allclose(got.numpy(), want, rtol=1e-5, atol=1e-6, err_msg=name)


def test_leading_axes() -> None:
    rng = np.random.default_rng(10)
    x, weight, targets = normal(rng, 2, 3, 4), normal(rng, 7, 4), rng.integers(0, 7, (2, 3))
    flat = loss_and_gradients(x.reshape(6, 4), weight, targets.ravel())
    for got, want in zip(loss_and_gradients(x, weight, targets), flat, strict=True):
        np.testing.assert_array_equal(got.ravel(), want.ravel())


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bit_operands_have_a_float32_loss(dtype: str) -> None:
    rng = np.random.default_rng(11)
    x, weight = (bt.asarray(normal(rng, *s)).astype(dtype) for s in ((7, 30), (40, 30)))
    targets = bt.asarray(rng.integers(0, 40, 7))
    exact = [parameter(t.astype("float64").numpy()) for t in (x, weight)]
    x.requires_grad = weight.requires_grad = True
    ours, true = F.linear_cross_entropy(x, weight, targets), F.linear_cross_entropy(*exact, targets)
    assert ours.dtype.name == "float32"
    np.testing.assert_allclose(ours.item(), true.item(), rtol=1e-6)
    for got, want in zip(bt.grad([ours], [x, weight]), bt.grad([true], exact), strict=True):
        assert got.dtype.name == dtype
        assert_as_good_as(got.astype("float32").numpy(), None, want.numpy(), dtype)


def test_same_bits_for_any_number_of_threads() -> None:
    rng = np.random.default_rng(12)
    for rows, channels, vocabulary in ((130, 33, 257), (70, 24, 40001)):
        x, weight, targets = (
            normal(rng, rows, channels),
            normal(rng, vocabulary, channels),
            rng.integers(0, vocabulary, rows),
        )
        same_bits_for_any_threads(lambda x=x, w=weight, t=targets: loss_and_gradients(x, w, t))


@pytest.mark.parametrize("bad", [9, -1, 2**40])
def test_targets_out_of_range_are_named(bad: int) -> None:
    with pytest.raises(
        IndexError,
        match=rf"\[linear_cross_entropy\] expected targets from 0 to 8 or ignore_index -100, got {bad} at position 1",
    ):
        F.linear_cross_entropy(bt.ones((3, 2)), bt.ones((9, 2)), bt.asarray(np.array([0, bad, 1])))


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda: F.linear_cross_entropy(bt.ones((3, 2)), bt.ones((9, 3)), bt.zeros((3,), dtype="int64")),
            ValueError,
            r"weight \(V, C\)",
        ),
        (
            lambda: F.linear_cross_entropy(bt.ones((3, 2)), bt.ones((9, 2)), bt.zeros((4,), dtype="int64")),
            ValueError,
            r"targets of shape \(3,\)",
        ),
        (lambda: F.linear_cross_entropy(bt.ones((3, 2)), bt.ones((9, 2)), bt.zeros((3,))), TypeError, "int32 or int64"),
        (
            lambda: F.linear_cross_entropy(
                bt.ones((3, 2)), bt.ones((9, 2), dtype="float64"), bt.zeros((3,), dtype="int64")
            ),
            TypeError,
            "float32 like x",
        ),
        (
            lambda: F.linear_cross_entropy(
                bt.ones((3, 2)), bt.ones((9, 2)), bt.zeros((3,), dtype="int64"), reduction="none"
            ),
            ValueError,
            "reduction",
        ),
    ],
)
def test_errors_name_what_is_wrong(call: Callable[[], object], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call()


@pytest.mark.parametrize("isa", available_isas())
@pytest.mark.parametrize(
    ("rows", "channels", "vocabulary", "classes"),
    [(5, 17, 64, 33), (65, 16, 640, 513), (66, 9, 8320, 7681), (0, 4, 8, 5)],
)
def test_rows_beyond_num_classes_take_no_part(
    rows: int, channels: int, vocabulary: int, classes: int, isa: str
) -> None:
    rng = np.random.default_rng(8)
    x, weight = normal(rng, rows, channels), normal(rng, vocabulary, channels)
    weight[classes:] = 100  # would rule the sum
    targets = rng.integers(0, classes, rows)
    with using_isa(isa):
        found = []
        for w, count in ((weight, classes), (weight[:classes].copy(), None)):
            own = [parameter(x), parameter(w)]
            poison(x.size, w.size)
            loss = F.linear_cross_entropy(*own, bt.asarray(targets), reduction="sum", num_classes=count)
            found.append([loss.detach().numpy(), *(g.numpy() for g in bt.grad([loss], own))])
    (loss, x_grad, weight_grad), expected = found
    np.testing.assert_array_equal(loss, expected[0])
    np.testing.assert_array_equal(x_grad, expected[1])
    np.testing.assert_array_equal(weight_grad[:classes], expected[2])
    assert not weight_grad[classes:].any()


def test_num_classes_in_other_dtypes_and_decomposed() -> None:
    rng = np.random.default_rng(9)
    x, weight, targets = rng.standard_normal((4, 3)), rng.standard_normal((8, 3)), bt.asarray(rng.integers(0, 5, 4))
    gradcheck(lambda x, w: F.linear_cross_entropy(x, w, targets, num_classes=5), [parameter(x), parameter(weight)])
    narrow = [parameter(v).detach().astype(bt.bfloat16) for v in (x, weight)]
    for leaf in narrow:
        leaf.requires_grad_(True)
    F.linear_cross_entropy(*narrow, targets, num_classes=5).backward()
    assert not narrow[1].grad.astype(bt.float32).numpy()[5:].any()


@pytest.mark.parametrize("wrong", [0, -1, 9])
def test_impossible_num_classes(wrong: int) -> None:
    rng = np.random.default_rng(9)
    x, weight, targets = parameter(normal(rng, 2, 3)), parameter(normal(rng, 8, 3)), bt.asarray(np.array([0, 1]))
    with pytest.raises(ValueError, match=r"\[linear_cross_entropy\] expected num_classes"):
        F.linear_cross_entropy(x, weight, targets, num_classes=wrong)
    with pytest.raises(IndexError, match="targets from 0 to 4"):
        F.linear_cross_entropy(x, weight, bt.asarray(np.array([0, 5])), num_classes=5)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize(("rows", "channels", "classes"), [(1, 3, 2), (37, 24, 211), (300, 16, 1000)])
def test_label_smoothing(rows: int, channels: int, classes: int, reduction: Any) -> None:
    """Without the logits: the loss that is fused, and a product with the target's row and the mean row of weight."""
    torch = require_torch()
    rng = np.random.default_rng(5)
    x, w = normal(rng, rows, channels), normal(rng, classes, channels, scale=0.3)
    targets = rng.integers(0, classes, rows)
    if rows > 2:
        targets[1] = -100

    def theirs(dtype: Any) -> list[Array]:
        leaves = [torch.tensor(v, dtype=dtype, requires_grad=True) for v in (x, w)]
        loss = torch.nn.functional.cross_entropy(
            torch.nn.functional.linear(*leaves), torch.tensor(targets), reduction=reduction, label_smoothing=0.1
        )
        return [loss.detach().numpy(), *(g.numpy() for g in torch.autograd.grad(loss, leaves))]

    leaves = [parameter(x), parameter(w)]
    loss = F.linear_cross_entropy(*leaves, bt.asarray(targets), reduction=reduction, label_smoothing=0.1)
    loss.backward()
    got = [loss.detach().numpy(), *(t.grad.numpy() for t in leaves if t.grad is not None)]
    for a, b, exact in zip(got, theirs(torch.float32), theirs(torch.float64), strict=True):
        assert_as_good_as(a, b, exact)
    with pytest.raises(bt.ShapeError, match="linear_cross_entropy"):
        F.linear_cross_entropy(*leaves, bt.asarray(targets), label_smoothing=-0.1)
