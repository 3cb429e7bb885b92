"""softmax, log_softmax and cross_entropy on the GPU against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gpu_compare import check_all, exact, from_torch, rounded, same_bits, to_torch

import blutensor as bt
from blutensor._operators import cross_entropy, private

FLOATS = ["float32", "bfloat16", "float16", "float64"]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((5, 1), -1), ((33, 7), 1), ((9, 1024), -1), ((9, 1025), -1), ((3, 50304), -1), ((6, 50, 33), 1), ((40, 3), 0)],
)
def test_softmax(torch: Any, name: str, shape: tuple[int, ...], axis: int, dtype: str) -> None:
    rng = np.random.default_rng(2)
    x, grad = rounded(4 * rng.standard_normal(shape), dtype), rounded(rng.standard_normal(shape), dtype)
    forward, backward = getattr(bt, name), private(name + "_backward")
    y = forward(x.cuda(), axis)
    tx = to_torch(torch, x).requires_grad_()
    ty = getattr(torch.nn.functional, name)(tx, axis)
    ty.backward(to_torch(torch, grad))
    wide = forward(x.astype("float64"), axis)
    dx = backward(grad.cuda(), y, axis)
    want = [exact(wide), exact(backward(grad.astype("float64"), wide, axis))]
    check_all(["y", "dx"], [y, dx], want, [from_torch(ty), from_torch(tx.grad)], [dtype, dtype])


def test_softmax_of_special_values_and_views() -> None:
    rows = np.zeros((5, 40))
    rows[0] = -np.inf
    rows[1, 3] = np.inf
    rows[2, 7] = np.nan
    rows[3, 1:] = -np.inf
    for name in ("softmax", "log_softmax"):
        forward = getattr(bt, name)
        got, want = (exact(forward(bt.asarray(rows).astype("float32").to(d))) for d in ("cuda", "cpu"))
        np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
        np.testing.assert_allclose(got[3:], want[3:], rtol=1e-6)
    x = bt.asarray(np.random.default_rng(3).standard_normal((8, 12)))
    turned = x.cuda().T
    np.testing.assert_allclose(exact(bt.softmax(turned, 0)), exact(bt.softmax(x.T, 0)), rtol=1e-12)
    assert bt.softmax(bt.zeros((0, 5), device="cuda")).shape == (0, 5)
    assert bt.softmax(bt.zeros((5, 0), device="cuda")).shape == (5, 0)
    assert bt.softmax(bt.asarray(3.0, device="cuda"), 0).item() == 1.0


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("shape", [(1, 1), (17, 5), (64, 1000), (9, 50304)])
def test_cross_entropy(torch: Any, shape: tuple[int, int], reduction: Any, dtype: str) -> None:
    rng = np.random.default_rng(5)
    logits = rounded(3 * rng.standard_normal(shape), dtype)
    targets = rng.integers(0, shape[1], shape[0])
    if shape[0] > 2:
        targets[1] = -100
    ids = bt.asarray(targets.astype(np.int64 if shape[1] > 5 else np.int32))

    def both(x: bt.Tensor, t: bt.Tensor) -> list[bt.Tensor]:
        loss, top, log_sum = cross_entropy(x, t, -100, reduction)
        upstream = bt.full(loss.shape, 0.5, dtype=loss.dtype, device=x.device)
        return [loss, private("cross_entropy_backward")(upstream, x, t, top, log_sum, -100, reduction)]

    tx = to_torch(torch, logits).requires_grad_()
    tt = torch.from_numpy(targets).cuda()
    tl = torch.nn.functional.cross_entropy(tx.double() if dtype == "float64" else tx.float(), tt, reduction=reduction)
    tl.backward(torch.full_like(tl, 0.5))
    want = [exact(t) for t in both(logits.astype("float64"), ids)]
    loss_dtype = "float64" if dtype == "float64" else "float32"
    ours = both(logits.cuda(), ids.cuda())
    check_all(["loss", "dlogits"], ours, want, [from_torch(tl), from_torch(tx.grad)], [loss_dtype, dtype], shape[1])


def test_cross_entropy_of_ignored_rows() -> None:
    logits = bt.asarray(np.random.default_rng(0).standard_normal((4, 6))).astype("float32")
    targets = bt.full((4,), -100, dtype="int64")
    loss, top, log_sum = cross_entropy(logits.cuda(), targets.cuda())
    assert np.isnan(loss.item())
    backward = private("cross_entropy_backward")
    assert not exact(backward(loss, logits.cuda(), targets.cuda(), top, log_sum)).any()
    assert cross_entropy(logits.cuda(), targets.cuda(), reduction="sum")[0].item() == 0.0
    strided = bt.zeros((4, 12), device="cuda")[:, ::2]
    strided.copy_(logits.cuda())
    ids = bt.asarray([1, 2, 0, 5], dtype="int64")
    for reduction in ("mean", "none"):
        got, want = (cross_entropy(x, t, reduction=reduction) for x, t in ((strided, ids.cuda()), (logits, ids)))
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(exact(a), exact(b), rtol=2e-6)


def test_target_out_of_range_is_an_index_error() -> None:
    logits = bt.zeros((3, 5), device="cuda")
    for bad in (5, -1):
        loss = cross_entropy(logits, bt.asarray([0, bad, 1], device="cuda"))[0]
        with pytest.raises(IndexError, match=rf"\[cross_entropy\] expected targets from 0 to 4 .*got {bad} on cuda:0"):
            loss.item()
    assert cross_entropy(logits, bt.asarray([0, 4, 1], device="cuda"))[0].item() == pytest.approx(np.log(5))


def test_same_bits_again() -> None:
    logits = bt.asarray(np.random.default_rng(1).standard_normal((300, 5000))).astype("bfloat16").cuda()
    targets = bt.asarray(np.random.default_rng(2).integers(0, 5000, 300)).cuda()
    first = cross_entropy(logits, targets)
    for _ in range(100):
        assert all(same_bits(a, b) for a, b in zip(cross_entropy(logits, targets), first, strict=True))
