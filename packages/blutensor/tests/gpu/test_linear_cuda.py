"""linear, mlp and matmul on the device against float64 on the cpu, beside PyTorch on the device.

Every precision that trains: float32 with IEEE products ("fp32"), float32 with tf32 products, bfloat16 with float32
gradients. Operands are rounded to the dtype first, so that the reference gets what the device gets.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu_compare import nearest_tf32

sys.path.insert(0, str(Path(__file__).parent.parent / "ops"))
from layer_checks import ROUNDOFF, Array, assert_as_good_as, layouts, normal, poison

import blutensor as bt
from blutensor import _operators, nn
from blutensor.nn import functional as F

# (leading axes, K, N): around tiles and vectors of every GEMM kernel, primes, ranks, empty.
SIZES = [
    ((), 5, 3),
    ((1,), 1, 1),
    ((13,), 31, 33),
    ((64,), 64, 64),
    ((2, 8), 63, 65),
    ((2, 3, 5), 97, 101),
    ((127,), 129, 258),
    ((4, 96), 768, 136),
    ((257,), 1023, 515),
    ((0,), 4, 3),
    ((3, 0), 4, 3),
    ((3,), 0, 4),
    ((3,), 4, 0),
]
PRECISIONS = {"fp32": ("float32", "ieee"), "tf32": ("float32", "tf32"), "bf16": ("bfloat16", "ieee")}
each_precision = pytest.mark.parametrize("precision", PRECISIONS)

Function = Callable[..., Any]


def to_numpy(t: bt.Tensor) -> Array:
    return np.array(t.detach().cpu().astype("float64").numpy())


def on_device(values: Array, dtype: str) -> bt.Tensor:
    return bt.asarray(np.array(values)).astype(dtype).to("cuda")


def exact_results(function: Function, values: list[Array | None], dtype: str, upstream: Array | None) -> list[Array]:
    """The result and the gradients of all operands, in float64 on the cpu; of all ones without an upstream gradient."""
    leaves = [None if v is None else bt.asarray(np.array(v)).astype(dtype).astype("float64") for v in values]
    given = [leaf for leaf in leaves if leaf is not None]
    for leaf in given:
        leaf.requires_grad = True
    y = function(*leaves)
    seed = bt.ones(y.shape, dtype="float64")
    if upstream is not None:
        seed = bt.asarray(upstream).astype(dtype).astype("float64")
    return [np.array(t.detach().numpy()) for t in (y, *bt.grad([y], given, [seed]))]


def own_results(function: Function, values: list[Array | None], dtype: str, upstream: Array) -> list[bt.Tensor]:
    """The same on the device; gradients of leaves by `backward`, in float32 buffers."""
    leaves = [None if v is None else nn.Parameter(on_device(v, dtype)) for v in values]
    given = [leaf for leaf in leaves if leaf is not None]
    for leaf in given:
        leaf.grad_dtype = "float32" if dtype in ("bfloat16", "float16") else dtype
    y = function(*leaves)
    y.backward(on_device(upstream, dtype))
    return [y.detach(), *(leaf.grad for leaf in given)]


def peer_results(function: Function, values: list[Array | None], dtype: str, upstream: Array) -> list[Array]:
    """The same by PyTorch at the same precision on the device, where it is installed."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: no comparison with it")
    kind = getattr(torch, dtype)
    leaves = [None if v is None else torch.tensor(v, device="cuda").to(kind).requires_grad_() for v in values]
    y = function(*leaves)
    given = [leaf for leaf in leaves if leaf is not None]
    grads = torch.autograd.grad(y, given, torch.tensor(upstream, device="cuda").to(kind))
    return [t.detach().double().cpu().numpy() for t in (y, *grads)]


def compare(ours: Function, theirs: Function, values: list[Array | None], precision: str) -> None:
    """Result and gradients by the error rule; gradients of leaves in a 16-bit run are float32 sums."""
    dtype, math = PRECISIONS[precision]
    bt.set_float32_math(math)
    shape = exact_results(ours, values, dtype, None)[0].shape
    upstream = normal(np.random.default_rng(9), *shape)
    exact = exact_results(ours, values, dtype, upstream)
    with bt.default_device("cuda"):
        poison(*(e.size for e in exact))
    got = own_results(ours, values, dtype, upstream)
    peer = peer_results(theirs, values, dtype, upstream)
    for i, (a, e) in enumerate(zip(got, exact, strict=True)):
        assert a.shape == e.shape
        assert_as_good_as(to_numpy(a), peer[i], e, dtype)


def chain(a: Any, b: Any) -> Any:
    """A [..., M, K] @ b [..., K, N] with one chain of additions per element.

    cuBLAS cuts K into parts where there are few tiles, and is then nearer to the truth than PyTorch is elsewhere.
    """
    out = (a[..., :, :1] * 0) @ (b[..., :1, :] * 0)
    for k in range(a.shape[-1]):
        out.addcmul_(a[..., :, k, None], b[..., None, k, :])
    return out


def torch_matmul(a: Any, b: Any) -> Any:
    """PyTorch's product at the precision that is set; float32 is spelled out.

    For IEEE products as a chain of additions. PyTorch takes tf32 for some shapes only: for tf32 with operands, in
    backward too, rounded to the nearest, and all else exact.
    """
    import torch

    if a.dtype != torch.float32:
        return a @ b
    if a.ndim == 1:
        return torch_matmul(a[None], b).squeeze(-2 if b.ndim > 1 else -1)
    if b.ndim == 1:
        return torch_matmul(a, b[:, None]).squeeze(-1)
    if b.ndim == 2 and a.ndim > 2:
        return torch_matmul(a.reshape(-1, a.shape[-1]), b).reshape(*a.shape[:-1], b.shape[-1])
    is_tf32 = bt.float32_math() == "tf32"

    def multiply(x: Any, y: Any) -> Any:
        return (nearest_tf32(x) @ nearest_tf32(y)).float() if is_tf32 else chain(x, y)

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, y: Any) -> Any:
            ctx.save_for_backward(x, y)
            return multiply(x, y)

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            x, y = ctx.saved_tensors
            return multiply(grad, y.mT).sum_to_size(x.shape), multiply(x.mT, grad).sum_to_size(y.shape)

    return Product.apply(a, b)


def torch_linear(x: Any, weight: Any, bias: Any = None, residual: Any = None) -> Any:
    y = torch_matmul(x, weight.T)
    y = y if bias is None else y + bias
    return y if residual is None else y + residual


def torch_mlp(approximate: str) -> Function:
    def mlp(x: Any, w1: Any, b1: Any, w2: Any, b2: Any, residual: Any) -> Any:
        import torch

        hidden = torch.nn.functional.gelu(torch_linear(x, w1, b1), approximate=approximate)
        return torch_linear(hidden, w2, b2, residual)

    return mlp


# ---------------------------------------------------------------- linear and mlp


@each_precision
@pytest.mark.parametrize("extras", ["plain", "bias", "bias and residual", "residual"])
@pytest.mark.parametrize(("leading", "k", "n"), SIZES)
def test_linear(leading: tuple[int, ...], k: int, n: int, extras: str, precision: str) -> None:
    rng = np.random.default_rng(1)
    bias = normal(rng, n) if "bias" in extras else None
    residual = normal(rng, *leading, n) if "residual" in extras else None
    values = [normal(rng, *leading, k), normal(rng, n, k), bias, residual]
    compare(F.linear, torch_linear, values, precision)


@each_precision
@pytest.mark.parametrize("approximate", ["tanh", "none"])
@pytest.mark.parametrize("extras", [True, False])
@pytest.mark.parametrize(("leading", "k", "n"), [s for s in SIZES if s[1]])
def test_mlp(leading: tuple[int, ...], k: int, n: int, extras: bool, approximate: str, precision: str) -> None:
    rng = np.random.default_rng(2)
    hidden = 2 * k + 1
    values = [
        normal(rng, *leading, k),
        normal(rng, hidden, k, scale=k**-0.5),
        normal(rng, hidden) if extras else None,
        normal(rng, n, hidden, scale=hidden**-0.5),
        normal(rng, n) if extras else None,
        normal(rng, *leading, n) if extras else None,
    ]
    compare(lambda *a: F.mlp(*a, approximate=approximate), torch_mlp(approximate), values, precision)


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_other_dtypes(dtype: str) -> None:
    """float64 in its own arithmetic; float16 through float32, rounded once per result."""
    rng = np.random.default_rng(3)
    sizes = ((30, 200), (401, 200), (401,), (90, 401), (90,), (30, 90))
    values = [normal(rng, *s, scale=0.1) for s in sizes]
    upstream = normal(rng, 30, 90)
    exact = exact_results(F.mlp, values, dtype, upstream)
    for got, true in zip(own_results(F.mlp, values, dtype, upstream), exact, strict=True):
        # Two products deep: each of 401 terms is off by a few roundings, and float16 rounds what passes between them.
        np.testing.assert_allclose(to_numpy(got), true, rtol=0, atol=16 * ROUNDOFF[dtype] * (1 + np.abs(true).max()))


@each_precision
def test_tf32_rounds_to_nearest(precision: str) -> None:
    """On positive operands truncation would show as a mean signed error near 2^-11; nearest keeps it far below."""
    dtype, math = PRECISIONS[precision]
    bt.set_float32_math(math)
    rng = np.random.default_rng(4)
    values = [rng.uniform(0.5, 1.5, s).astype(np.float32) for s in ((256, 512), (384, 512))]
    exact = exact_results(F.linear, values, dtype, None)[0]
    got = to_numpy(F.linear(*(on_device(v, dtype) for v in values)))
    assert abs(((got - exact) / exact).mean()) < 2.0**-13
    if precision == "fp32":
        # 512 additions of positive numbers, each rounded to 2^-24: at most 512 roundings, were they all one way.
        assert np.abs((got - exact) / exact).max() < 512 * 2.0**-24


@each_precision
def test_operands_of_every_layout(precision: str) -> None:
    dtype, math = PRECISIONS[precision]
    bt.set_float32_math(math)
    rng = np.random.default_rng(7)
    x, w, r, bias = normal(rng, 2, 9, 16), normal(rng, 24, 16), normal(rng, 2, 9, 24), normal(rng, 24)
    exact = exact_results(F.linear, [x, w, bias, r], dtype, None)[0]
    scale = {"fp32": 2.0**-24, "tf32": 2.0**-11, "bf16": 2.0**-8}[precision]
    with bt.default_device("cuda"):
        for x_name, x_view in layouts(x):
            for w_name, w_view in layouts(w):
                for (r_name, r_view), (_, b_view) in zip(layouts(r), layouts(bias), strict=True):
                    operands = (t.astype(dtype) if dtype != "float32" else t for t in (x_view, w_view, b_view, r_view))
                    got = to_numpy(F.linear(*operands))
                    # 19 roundings of terms and sums below 32
                    np.testing.assert_allclose(
                        got, exact, rtol=0, atol=19 * 32 * scale, err_msg=f"{x_name}, {w_name}, {r_name}"
                    )


def test_strided_bfloat16_operands() -> None:
    """astype() makes copies: slices of bfloat16 memory itself, in the orders that a GEMM can and cannot read."""
    rng = np.random.default_rng(8)
    big = normal(rng, 6, 40, 96)
    whole = on_device(big, "bfloat16")
    host = bt.asarray(big).astype("bfloat16").astype("float64").numpy()
    w = on_device(normal(rng, 24, 32), "bfloat16")
    exact_w = to_numpy(w)
    picks: list[Any] = [
        (slice(None), slice(None), slice(0, 32)),
        (slice(None, None, 2), slice(None, None, 3), slice(32, 64)),
        (slice(1, 5), slice(None, None, -1), slice(1, 65, 2)),
        (slice(None), slice(3, 4), slice(None, 32)),
    ]
    for pick in picks:
        expected = host[pick] @ exact_w.T
        got = to_numpy(F.linear(whole[pick], w))
        np.testing.assert_allclose(got, expected, rtol=2.0**-7, atol=2.0**-8)
        permuted = whole[pick].permute_dims(1, 0, 2)
        np.testing.assert_allclose(
            to_numpy(F.linear(permuted, w)), expected.transpose(1, 0, 2), rtol=2.0**-7, atol=2.0**-8
        )


@each_precision
def test_gradients_accumulate_in_their_buffers(precision: str) -> None:
    dtype, math = PRECISIONS[precision]
    bt.set_float32_math(math)
    rng = np.random.default_rng(11)
    # Products and sums of small integers are exact in every precision.
    x, dy = (rng.integers(-8, 9, s).astype(np.float32) for s in ((513, 72), (513, 40)))
    w, b = nn.Parameter(on_device(np.ones((40, 72)), dtype)), nn.Parameter(on_device(np.ones(40), dtype))
    w.grad_dtype = b.grad_dtype = "float32"
    for passes in (1, 2, 3):
        F.linear(on_device(x, dtype), w, b).backward(on_device(dy, dtype))
        assert w.grad is not None
        assert b.grad is not None
        assert w.grad.dtype is bt.float32
        np.testing.assert_array_equal(w.grad.cpu().numpy(), passes * (dy.T @ x))
        np.testing.assert_array_equal(b.grad.cpu().numpy(), passes * dy.sum(0))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_gradients_in_16_bit_buffers(dtype: str) -> None:
    rng = np.random.default_rng(12)
    x, dy = normal(rng, 300, 72), normal(rng, 300, 40)
    w, b = (nn.Parameter(on_device(normal(rng, *s), dtype)) for s in ((40, 72), (40,)))
    exact_x, exact_dy = to_numpy(on_device(x, dtype)), to_numpy(on_device(dy, dtype))
    for passes in (1, 2):
        F.linear(on_device(x, dtype), w, b).backward(on_device(dy, dtype))
        for p, once in ((w, exact_dy.T @ exact_x), (b, exact_dy.sum(0))):
            assert p.grad is not None
            assert p.grad.dtype.name == dtype
            # Rounded once per pass.
            np.testing.assert_allclose(
                to_numpy(p.grad), passes * once, rtol=2 * ROUNDOFF[dtype], atol=4 * ROUNDOFF[dtype] * np.abs(once).max()
            )


@each_precision
def test_two_runs_have_the_same_bits(precision: str) -> None:
    dtype, math = PRECISIONS[precision]
    bt.set_float32_math(math)
    rng = np.random.default_rng(14)
    values = [normal(rng, *s) for s in ((1301, 130), (517, 130), (517,), (131, 517), (131,), (1301, 131))]
    upstream = normal(rng, 1301, 131)
    runs = []
    for padding in (1, 12345):
        other = bt.full((padding,), float("nan"), device="cuda")  # other addresses
        runs.append([t.cpu().numpy().tobytes() for t in own_results(F.mlp, values, dtype, upstream)])
        del other
    assert runs[0] == runs[1]


def test_special_values_propagate() -> None:
    x = np.ones((2, 3), np.float32)
    x[0, 1] = np.nan
    x[1, 2] = np.inf
    for precision in PRECISIONS:
        dtype, math = PRECISIONS[precision]
        bt.set_float32_math(math)
        y = to_numpy(F.linear(on_device(x, dtype), on_device(np.ones((4, 3)), dtype)))
        assert np.isnan(y[0]).all()
        assert np.isposinf(y[1]).all()


# ---------------------------------------------------------------- matmul

PRODUCTS = [
    ((4,), (4,)),
    ((4,), (2, 4, 3)),
    ((2, 3, 4), (4,)),
    ((33, 65), (65, 17)),
    ((5, 33, 65), (65, 17)),
    ((5, 33, 65), (5, 65, 17)),
    ((2, 1, 33, 65), (3, 65, 17)),
    ((3, 1, 9, 8), (1, 4, 8, 16)),
    ((0, 3, 4), (4, 5)),
    ((3, 0), (0, 5)),
]


@each_precision
@pytest.mark.parametrize(("a_shape", "b_shape"), PRODUCTS)
def test_matmul(a_shape: tuple[int, ...], b_shape: tuple[int, ...], precision: str) -> None:
    rng = np.random.default_rng(20)
    compare(bt.matmul, torch_matmul, [normal(rng, *a_shape), normal(rng, *b_shape)], precision)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_matmul_of_views(dtype: str) -> None:
    """Heads that were never laid out: batch strides that no single number describes."""
    rng = np.random.default_rng(21)
    qkv = on_device(normal(rng, 3, 17, 3, 4, 8), dtype)  # [B, T, 3, H, D]
    host = to_numpy(qkv)
    q, k, _ = (qkv[:, :, i].permute_dims(0, 2, 1, 3) for i in range(3))
    expected = host[:, :, 0].transpose(0, 2, 1, 3) @ host[:, :, 1].transpose(0, 2, 3, 1)
    got = to_numpy(q @ k.permute_dims(0, 1, 3, 2))
    # 8 products of normal numbers, then one rounding of their sum to the dtype.
    tolerance = 16 * (
        ROUNDOFF[dtype] * np.abs(expected).max() + 8 * ROUNDOFF["float64" if dtype == "float64" else "float32"]
    )
    np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint16", "uint8"])
@pytest.mark.parametrize(("a_shape", "b_shape"), PRODUCTS)
def test_integer_matmul(a_shape: tuple[int, ...], b_shape: tuple[int, ...], dtype: str) -> None:
    rng = np.random.default_rng(22)
    a, b = (rng.integers(0, 200, s).astype(dtype) for s in (a_shape, b_shape))
    got = bt.matmul(bt.asarray(a, device="cuda"), bt.asarray(b, device="cuda"))
    np.testing.assert_array_equal(got.cpu().numpy(), bt.matmul(bt.asarray(a), bt.asarray(b)).numpy())


def test_mlp_second_output_is_the_preactivation() -> None:
    rng = np.random.default_rng(23)
    x, w1, b1, w2 = (on_device(normal(rng, *s), "float32") for s in ((5, 6), (7, 6), (7,), (4, 7)))
    _, preactivation = _operators.mlp(x, w1, w2, b1)
    np.testing.assert_array_equal(to_numpy(preactivation), to_numpy(F.linear(x, w1, b1)))
