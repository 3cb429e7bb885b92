"""linear_cross_entropy on the GPU against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gpu_compare import check_all, exact, from_torch, rounded, same_bits, to_torch

import blutensor as bt
from blutensor._operators import linear_cross_entropy, private

scale, scale_ = private("linear_cross_entropy_scale"), private("linear_cross_entropy_scale_")


def operands(rows: int, columns: int, classes: int, dtype: str) -> tuple[bt.Tensor, bt.Tensor, bt.Tensor]:
    rng = np.random.default_rng(6)
    targets = rng.integers(0, classes, rows)
    targets[rows // 2] = -100
    x, w = rng.standard_normal((rows, columns)), 0.2 * rng.standard_normal((classes, columns))
    return rounded(x, dtype), rounded(w, dtype), bt.asarray(targets)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("shape", [(5, 8, 11), (100, 64, 1000), (300, 33, 5001)])
def test_against_float64(torch: Any, shape: tuple[int, int, int], reduction: Any, dtype: str) -> None:
    x, w, targets = operands(*shape, dtype)
    ours = linear_cross_entropy(x.cuda(), w.cuda(), targets.cuda(), -100, reduction, True, True)
    wide = linear_cross_entropy(x.astype("float64"), w.astype("float64"), targets, -100, reduction, True, True)
    tx, tw = to_torch(torch, x).requires_grad_(), to_torch(torch, w).requires_grad_()
    logits = torch.nn.functional.linear(tx, tw)
    logits = logits if dtype == "float64" else logits.float()
    loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(targets.numpy()).cuda(), reduction=reduction)
    loss.backward()
    sums = "float64" if dtype == "float64" else "float32"
    peer = [from_torch(t) for t in (loss, tx.grad, tw.grad)]
    check_all(["loss", "dx", "dw"], ours, [exact(t) for t in wide], peer, [sums, dtype, sums], shape[2])
    assert ours[2].dtype.name == sums
    alone = linear_cross_entropy(x.cuda(), w.cuda(), targets.cuda(), -100, reduction)
    assert same_bits(alone[0], ours[0])
    assert alone[1].shape == alone[2].shape == (0,)
    for wants in ((True, False), (False, True)):
        some = linear_cross_entropy(x.cuda(), w.cuda(), targets.cuda(), -100, reduction, *wants)
        assert same_bits(some[1 if wants[0] else 2], ours[1 if wants[0] else 2])


@pytest.mark.parametrize("math", ["ieee", "tf32"])
def test_several_chunks_of_a_large_vocabulary(torch: Any, math: Any) -> None:
    bt.set_float32_math(math)
    x, w, targets = operands(3000, 64, 50257, "float32")
    ours = linear_cross_entropy(x.cuda(), w.cuda(), targets.cuda(), -100, "mean", True, True)
    tx, tw = to_torch(torch, x).requires_grad_(), to_torch(torch, w).requires_grad_()
    ids = torch.from_numpy(targets.numpy()).cuda()

    def theirs(precise: bool) -> list[Any]:
        a, b = (t.detach().double() if precise else t.detach() for t in (tx, tw))
        a.requires_grad_(), b.requires_grad_()
        loss = torch.nn.functional.cross_entropy(torch.nn.functional.linear(a, b), ids)
        loss.backward()
        return [from_torch(t) for t in (loss, a.grad, b.grad)]

    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = math == "tf32"
    try:
        check_all(["loss", "dx", "dw"], ours, theirs(True), theirs(False), ["float32"] * 3, 50257)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
@pytest.mark.parametrize(("shape", "padded"), [((5, 8, 11), 16), ((100, 64, 1000), 1024), ((9, 16, 70), 71)])
def test_rows_beyond_num_classes_take_no_part(torch: Any, shape: tuple[int, int, int], padded: int, dtype: str) -> None:
    x, w, targets = operands(*shape, dtype)
    rows = np.full((padded - shape[2], shape[1]), 100.0)  # would rule the sum
    whole = bt.concat([w, rounded(rows, dtype)]).cuda()
    ours = linear_cross_entropy(x.cuda(), whole, targets.cuda(), -100, "mean", True, True, shape[2])
    wide = linear_cross_entropy(x.astype("float64"), w.astype("float64"), targets, -100, "mean", True, True)
    tx, tw = to_torch(torch, x).requires_grad_(), to_torch(torch, w).requires_grad_()
    logits = torch.nn.functional.linear(tx, tw)
    logits = logits if dtype == "float64" else logits.float()
    loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(targets.numpy()).cuda())
    loss.backward()
    sums = "float64" if dtype == "float64" else "float32"
    found = [ours[0], ours[1], ours[2][: shape[2]]]
    peer = [from_torch(t) for t in (loss, tx.grad, tw.grad)]
    check_all(["loss", "dx", "dw"], found, [exact(t) for t in wide], peer, [sums, dtype, sums], shape[2])
    assert not exact(ours[2])[shape[2] :].any()


def test_ignored_and_empty() -> None:
    x, w, _ = operands(6, 8, 9, "float32")
    nothing = bt.full((6,), -100, dtype="int32", device="cuda")
    loss, dx, dw = linear_cross_entropy(x.cuda(), w.cuda(), nothing, -100, "mean", True, True)
    assert np.isnan(loss.item())
    assert not exact(dx).any()
    assert not exact(dw).any()
    none = bt.zeros((0,), dtype="int32", device="cuda")
    loss, dx, dw = linear_cross_entropy(x.cuda()[:0], w.cuda(), none, -100, "sum", True, True)
    assert loss.item() == 0.0
    assert dx.shape == (0, 8)
    assert not exact(dw).any()


def test_target_out_of_range_is_an_index_error() -> None:
    x, w, _ = operands(4, 8, 9, "bfloat16")
    targets = bt.asarray([0, 9, 1, 2], dtype="int32", device="cuda")
    loss = linear_cross_entropy(x.cuda(), w.cuda(), targets, -100, "sum")[0]
    with pytest.raises(IndexError, match=r"\[linear_cross_entropy\] expected targets from 0 to 8 .*got 9 on cuda:0"):
        loss.item()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("numel", [0, 1, 7, 100003])
def test_scale(numel: int, dtype: str) -> None:
    values = rounded(np.random.default_rng(1).standard_normal(numel), dtype)
    factor = bt.asarray(0.37).astype("float32")
    target = bt.ones((numel,), dtype="float32" if dtype == "bfloat16" else dtype)
    for device in ("cuda",):
        there = target.to(device)
        np.testing.assert_array_equal(
            exact(scale(values.to(device), factor.to(device), dtype)), exact(scale(values, factor, dtype))
        )
        for accumulate in (False, True):
            scale_(there, values.to(device), factor.to(device), accumulate)
            scale_(target, values, factor, accumulate)
            np.testing.assert_allclose(exact(there), exact(target), rtol=2.0**-23)


def test_same_bits_again() -> None:
    x, w, targets = (t.cuda() for t in operands(700, 64, 3000, "bfloat16"))
    first = linear_cross_entropy(x, w, targets, -100, "mean", True, True)
    for _ in range(100):
        again = linear_cross_entropy(x, w, targets, -100, "mean", True, True)
        assert all(same_bits(a, b) for a, b in zip(again, first, strict=True))
