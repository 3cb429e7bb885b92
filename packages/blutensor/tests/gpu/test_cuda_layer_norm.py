"""layer_norm on the GPU against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gpu_compare import EPSILON, check_all, exact, from_torch, rounded, same_bits, to_torch

import blutensor as bt
from blutensor._operators import layer_norm, private

backward, backward_ = private("layer_norm_backward"), private("layer_norm_backward_")
FLOATS = ["float32", "bfloat16", "float16", "float64"]
# Every shape of a row in registers, the edges between them, rows without packs, and one that fits no registers.
COLUMNS = [1, 7, 8, 64, 768, 776, 1024, 1025, 1032, 1600, 2048, 2056, 4096, 8192, 8200, 20000]


def operands(shape: tuple[int, ...], dtype: str) -> list[bt.Tensor]:
    """x, weight, bias and an upstream gradient, on the cpu."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal(shape) * 3 + 5
    return [rounded(v, dtype) for v in (x, *rng.standard_normal((2, shape[-1])), rng.standard_normal(shape))]


def run(x: bt.Tensor, w: bt.Tensor | None, b: bt.Tensor | None, dy: bt.Tensor, axes: int = 1) -> list[bt.Tensor]:
    """y, mean, rstd, dx, dweight, dbias."""
    y, mean, rstd = layer_norm(x, w, b, 1e-5, axes)
    return [y, mean, rstd, *backward(dy, x, mean, rstd, w, axes)]


def check_case(torch: Any, x: bt.Tensor, w: bt.Tensor, b: bt.Tensor, dy: bt.Tensor) -> None:
    dtype = x.dtype.name
    ours = run(x.cuda(), w.cuda(), b.cuda(), dy.cuda())
    want = [exact(t) for t in run(*(t.astype("float64") for t in (x, w, b, dy)))]
    tx, tw, tb, tdy = (to_torch(torch, t).requires_grad_() for t in (x, w, b, dy))
    ty = torch.nn.functional.layer_norm(tx, x.shape[-1:], tw, tb, 1e-5)
    ty.backward(tdy)
    peer = [from_torch(ty), None, None, from_torch(tx.grad), from_torch(tw.grad), from_torch(tb.grad)]
    statistics = "float64" if dtype == "float64" else "float32"
    names = ["y", "mean", "rstd", "dx", "dweight", "dbias"]
    check_all(names, ours, want, peer, [dtype, statistics, statistics, dtype, dtype, dtype], x.shape[-1])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("columns", COLUMNS)
def test_columns(torch: Any, columns: int, dtype: str) -> None:
    check_case(torch, *operands((37, columns), dtype))


@pytest.mark.parametrize("rows", [1, 2, 127, 4099])
def test_rows(torch: Any, rows: int) -> None:
    check_case(torch, *operands((rows, 768), "float32"))
    check_case(torch, *operands((rows, 768), "bfloat16"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_layouts(dtype: str) -> None:
    x, w, b, dy = operands((6, 5, 64), dtype)
    plain = run(x.cuda(), w.cuda(), b.cuda(), dy.cuda())
    wide = bt.zeros((6, 5, 70), dtype=dtype, device="cuda")
    for shift in (0, 3, 6):  # packs, and none
        part = wide[:, :, shift : shift + 64]
        part.copy_(x.cuda())
        for got, want in zip(run(part, w.cuda(), b.cuda(), dy.cuda()), plain, strict=True):
            np.testing.assert_allclose(exact(got), exact(want), rtol=0.02 if dtype == "bfloat16" else 2e-5, atol=1e-2)
    turned = bt.permute_dims(bt.permute_dims(x, (2, 0, 1)).contiguous().cuda(), (1, 2, 0))
    assert not turned.is_contiguous()
    for got, want in zip(run(turned, w.cuda(), b.cuda(), dy.cuda()), plain, strict=True):
        assert same_bits(got, want)


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_axes_and_absent_parameters(axes: int) -> None:
    x, *_, dy = operands((3, 4, 8), "float32")
    ours = run(x.cuda(), None, None, dy.cuda(), axes)
    want = [exact(t) for t in run(x.astype("float64"), None, None, dy.astype("float64"), axes)]
    check_all([str(i) for i in range(6)], ours, want, [None] * 6, ["float32"] * 6, 96)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradient_buffers(dtype: str) -> None:
    x, w, b, dy = operands((50, 96), dtype)
    _, mean, rstd, dx, *_ = run(x.cuda(), w.cuda(), b.cuda(), dy.cuda())
    wide = [exact(t) for t in run(*(t.astype("float64") for t in (x, w, b, dy)))]
    buffers = [bt.full((96,), 7.0, device="cuda"), bt.full((192,), 5.0, device="cuda")[::2]]
    for accumulate in (False, True):
        got = backward_(
            dy.cuda(),
            x.cuda(),
            mean,
            rstd,
            *buffers,
            w.cuda(),
            accumulate_weight=accumulate,
            accumulate_bias=accumulate,
        )
        assert same_bits(got, dx)
        for buffer, want in zip(buffers, wide[4:], strict=True):
            scale = np.max(np.abs(want))
            np.testing.assert_allclose(exact(buffer), want * (2 if accumulate else 1), atol=1e-5 * scale, rtol=0)
    only = bt.zeros((96,), device="cuda")
    backward_(dy.cuda(), x.cuda(), mean, rstd, bias_grad=only, weight=w.cuda())
    np.testing.assert_allclose(exact(only), wide[5], atol=1e-5 * np.max(np.abs(wide[5])), rtol=0)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("columns", [9, 768, 1600, 9000])
def test_gradient_is_added_to_that_of_the_residual_stream(columns: int, dtype: str) -> None:
    x, w, b, dy = (t.cuda() for t in operands((70, columns), dtype))
    _, mean, rstd = layer_norm(x, w, b)
    alone = backward(dy, x, mean, rstd, w)[0]
    stream = rounded(np.random.default_rng(3).standard_normal((70, columns)), dtype).cuda()
    want = exact(stream) + exact(alone)
    assert backward_(dy, x, mean, rstd, weight=w, x_grad=stream).shape == (0,)
    np.testing.assert_allclose(exact(stream), want, rtol=0, atol=2 * EPSILON[dtype] * np.abs(want).max())


def test_empty() -> None:
    x = bt.zeros((0, 16), device="cuda")
    w = bt.ones((16,), device="cuda")
    *_, dx, dweight, dbias = run(x, w, w, x)
    assert dx.shape == (0, 16)
    assert exact(dweight).tolist() == exact(dbias).tolist() == [0.0] * 16


def test_not_a_number_stays_in_its_row() -> None:
    x, w, b, _ = operands((4, 768), "float32")
    x[1, 5] = float("nan")
    x[2, 700] = float("inf")
    y = exact(layer_norm(x.cuda(), w.cuda(), b.cuda())[0])
    assert np.isnan(y[1]).all()
    assert np.isnan(y[2]).all()
    assert np.isfinite(y[[0, 3]]).all()


def test_large_mean_costs_no_digits(torch: Any) -> None:
    rng = np.random.default_rng(4)
    x = rounded(rng.standard_normal((16, 768)) + 4096, "float32")
    w, b, dy = (rounded(rng.standard_normal(s), "float32") for s in ((768,), (768,), (16, 768)))
    check_case(torch, x, w, b, dy)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_same_bits_again(dtype: str) -> None:
    x, w, b, dy = (t.cuda() for t in operands((3000, 768), dtype))
    first = run(x, w, b, dy)
    for _ in range(100):
        assert all(same_bits(a, c) for a, c in zip(run(x, w, b, dy)[3:], first[3:], strict=True))
