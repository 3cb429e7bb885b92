"""Attention on CUDA: against our CPU operators in float64, beside PyTorch on the same device at the same precision.

Legend: B batch, H heads, T queries, S keys, D head dimension. Precisions: bf16 (bfloat16 tensors), tf32 and ieee
(float32 tensors, blutensor.set_float32_math).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from gpu_compare import nearest_tf32

import blutensor as bt
from blutensor import _operators

Array = npt.NDArray[Any]

PRECISIONS = ["bf16", "tf32", "ieee"]
DTYPE = {"bf16": "bfloat16", "tf32": "float32", "ieee": "float32"}
ROUNDOFF = {"float32": 2.0**-24, "float64": 2.0**-53, "bfloat16": 2.0**-9, "float16": 2.0**-11}

# Around the tiles of 16 to 128 rows; every head dimension that has kernels, and such as are padded to one.
LENGTHS = [1, 2, 17, 63, 64, 65, 127, 128, 129, 200, 1000]
HEAD_DIMS = [8, 32, 48, 64, 80, 96, 128]
# (T, S): one longer than the other.
RECTANGLES = [(5, 130), (130, 5), (300, 77), (77, 300), (257, 511)]
# (T, S, D): no 16-byte rows, or wider than the tiles: the kernel for anything.
ODD = [(65, 65, 20), (130, 70, 33), (70, 130, 160), (33, 40, 256), (1, 1, 1), (40, 200, 7)]


def draw(*shape: int, dtype: str, seed: int = 0) -> Array:
    """Normal numbers that `dtype` can hold, in float64."""
    values = np.random.default_rng(seed + sum(shape)).standard_normal(shape).astype(np.float32)
    if dtype == "float64":
        return values.astype(np.float64)
    return bt.asarray(values).astype(dtype).astype("float64").numpy()


def on_device(values: Array, dtype: str) -> bt.Tensor:
    return bt.asarray(values).astype(dtype).to("cuda")


@contextmanager
def math_of(precision: str) -> Iterator[None]:
    bt.set_float32_math("tf32" if precision == "tf32" else "ieee")
    yield
    bt.set_float32_math("ieee")


def poison(*sizes: int) -> None:
    """Leaves NaN in device memory that the next allocations of these sizes (in bytes) are likely to get."""
    for size in sizes:
        bt.full((max(size // 4, 1),), float("nan"), device="cuda")


def attend(
    operands: list[bt.Tensor], upstream: bt.Tensor, causal: bool, scale: float = 0.0, of_logsumexp: Any = None
) -> list[bt.Tensor]:
    """Output, logsumexp and the gradients of query, key and value."""
    leaves = [x.detach() for x in operands]
    for leaf in leaves:
        leaf.requires_grad = True
    output, logsumexp = _operators.scaled_dot_product_attention(*leaves, causal, scale)
    if of_logsumexp is None:
        gradients = bt.grad([output], leaves, [upstream])
    else:
        gradients = bt.grad([output, logsumexp], leaves, [upstream, of_logsumexp])
    return [output.detach(), logsumexp.detach(), *gradients]


def exact(operands: list[Array], upstream: Array, causal: bool, scale: float = 0.0, of_logsumexp: Any = None) -> Any:
    """The same in float64 on the CPU."""
    extra = None if of_logsumexp is None else bt.asarray(of_logsumexp)
    results = attend([bt.asarray(x) for x in operands], bt.asarray(upstream), causal, scale, extra)
    return [x.numpy() for x in results]


def by_torch(torch: Any, operands: list[Array], upstream: Array, causal: bool, how: str, dtype: str) -> list[Array]:
    """Output and gradients by PyTorch on the GPU.

    `how`: its attention ("fused"), its matrix products and softmax ("products"), or these in tf32 ("tf32").
    """
    if how == "tf32":
        return by_torch_in_tf32(torch, operands, upstream, causal)
    leaves = [torch.tensor(x, device="cuda", dtype=getattr(torch, dtype)).requires_grad_() for x in operands]
    up = torch.tensor(upstream, device="cuda", dtype=getattr(torch, dtype))
    if how == "fused":
        output = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=causal)
    else:
        scores = leaves[0] @ leaves[1].transpose(-1, -2) / math.sqrt(operands[0].shape[-1])
        if causal:
            seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device="cuda").tril()
            scores = scores.masked_fill(~seen, -math.inf)
        output = torch.softmax(scores, -1) @ leaves[2]
    gradients = torch.autograd.grad(output, leaves, up)
    return [x.detach().double().cpu().numpy() for x in (output, *gradients)]


def by_torch_in_tf32(torch: Any, operands: list[Array], upstream: Array, causal: bool) -> list[Array]:
    """Output and gradients where the factors of every product are rounded to the nearest tf32, and all else is exact.

    PyTorch's own tf32 is no measure: it takes IEEE float32 for some shapes.
    """

    def multiply(x: Any, y: Any) -> Any:
        return nearest_tf32(x) @ nearest_tf32(y)

    query, key, value, up = (torch.tensor(x, device="cuda", dtype=torch.float64) for x in (*operands, upstream))
    scale = 1 / math.sqrt(query.shape[-1])
    scores = multiply(query, key.mT) * scale
    if causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device="cuda").tril()
        scores = scores.masked_fill(~seen, -math.inf)
    weights = torch.softmax(scores, -1)
    output = multiply(weights, value)
    of_scores = weights * (multiply(up, value.mT) - (output * up).sum(-1, keepdim=True)) * scale
    gradients = [multiply(of_scores, key), multiply(of_scores.mT, query), multiply(weights.mT, up)]
    return [x.cpu().numpy() for x in (output, *gradients)]


def numbers(tensor: bt.Tensor) -> Array:
    return tensor.cpu().astype("float64").numpy()


def check(
    torch: Any,
    results: list[bt.Tensor],
    operands: list[Array],
    upstream: Array,
    causal: bool,
    precision: str,
    dtype: str,
) -> None:
    """STYLE 26 for output and gradients; logsumexp, which PyTorch does not give, to its own roundings."""
    true = exact(operands, upstream, causal)
    ways = {"tf32": ["tf32"], "ieee": ["fused", "products"], "bf16": ["fused"]}[precision]
    peers = [by_torch(torch, operands, upstream, causal, way, dtype) for way in ways]
    names = ["output", "logsumexp", "dq", "dk", "dv"]
    for i, (name, ours, values) in enumerate(zip(names, results, true, strict=True)):
        if values.size == 0:
            continue
        error, largest = np.abs(numbers(ours) - values).max(), np.abs(values).max()
        if name == "logsumexp":
            # float32 sums of at most 256 products and of S weights around 1; tf32: both factors of every product are
            # rounded by 2^-11 at most, and roundings of D products of |q k| / sqrt(D) add up to a few of the largest.
            bound = (2.0**-9 if precision == "tf32" else 2.0**-19) * max(1.0, largest)
        else:
            rounding = (2.0**-11 if precision == "tf32" else 2 * ROUNDOFF[dtype]) * largest
            bound = 2 * max(np.abs(p[i - (i > 1)] - values).max() for p in peers) + rounding
        assert error <= bound, (name, error, bound, largest)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("d", HEAD_DIMS)
@pytest.mark.parametrize("t", LENGTHS)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_values_and_gradients(precision: str, t: int, d: int, causal: bool, torch: Any) -> None:
    dtype = DTYPE[precision]
    packed = draw(2, t, 3, 3, d, dtype=dtype)  # q, k and v are views of one buffer
    operands = [packed[:, :, i].swapaxes(1, 2) for i in range(3)]
    upstream = draw(2, t, 3, d, dtype=dtype, seed=1).swapaxes(1, 2)
    there = on_device(packed, dtype).permute_dims(2, 0, 3, 1, 4)
    up = on_device(upstream, dtype)
    poison(*[packed.size // 3 * up.dtype.itemsize] * 4)
    with math_of(precision):
        results = attend([there[i] for i in range(3)], up, causal)
    check(torch, results, operands, upstream, causal, precision, dtype)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("t", "s"), RECTANGLES)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_more_queries_or_more_keys(precision: str, t: int, s: int, causal: bool, torch: Any) -> None:
    dtype = DTYPE[precision]
    operands = [draw(1, 2, n, 64, dtype=dtype, seed=i) for i, n in enumerate((t, s, s))]
    upstream = draw(1, 2, t, 64, dtype=dtype, seed=9)
    with math_of(precision):
        results = attend([on_device(x, dtype) for x in operands], on_device(upstream, dtype), causal)
    check(torch, results, operands, upstream, causal, precision, dtype)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("t", "s", "d"), ODD)
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_odd_head_dimensions(dtype: str, t: int, s: int, d: int, causal: bool, torch: Any) -> None:
    operands = [draw(1, 2, n, d, dtype=dtype, seed=i) for i, n in enumerate((t, s, s))]
    upstream = draw(1, 2, t, d, dtype=dtype, seed=9)
    results = attend([on_device(x, dtype) for x in operands], on_device(upstream, dtype), causal)
    if dtype == "float64":  # sums of 256 products in another order
        for ours, values in zip(results, exact(operands, upstream, causal), strict=True):
            np.testing.assert_allclose(numbers(ours), values, rtol=0, atol=2.0**-45 * np.abs(values).max())
        return
    check(torch, results, operands, upstream, causal, "ieee", dtype)


def layouts(values: Array, dtype: str) -> dict[str, bt.Tensor]:
    """One [B, H, T, D] operand in memory in several ways."""
    wide = np.repeat(values, 3, axis=-1)
    return {
        "row-major": on_device(values, dtype),
        "tokens before heads": on_device(np.ascontiguousarray(values.swapaxes(1, 2)), dtype).permute_dims(0, 2, 1, 3),
        "columns first": on_device(np.ascontiguousarray(values.swapaxes(2, 3)), dtype).permute_dims(0, 1, 3, 2),
        "every third column": on_device(wide, dtype)[..., ::3],
        "odd start": on_device(np.concatenate([values[..., :1], values], -1), dtype)[..., 1:],
        "backwards": on_device(np.ascontiguousarray(values[:, :, ::-1]), dtype)[:, :, ::-1],
    }


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_layouts(dtype: str, torch: Any) -> None:
    operands = [draw(2, 2, 70, 64, dtype=dtype, seed=i) for i in range(3)]
    upstream = draw(2, 2, 70, 64, dtype=dtype, seed=9)
    ups, each = layouts(upstream, dtype), [layouts(x, dtype) for x in operands]
    for name, up in ups.items():
        results = attend([x[name] for x in each], up, True)
        check(torch, results, operands, upstream, True, "ieee", dtype)


@pytest.mark.parametrize("scale", [0.3, -0.7, 4.0])
@pytest.mark.parametrize("precision", ["bf16", "ieee"])
def test_scale_and_gradient_of_logsumexp(precision: str, scale: float) -> None:
    dtype = DTYPE[precision]
    operands = [draw(2, 2, 70, 64, dtype=dtype, seed=i) / 4 for i in range(3)]  # exact: a power of two
    upstream, of_logsumexp = draw(2, 2, 70, 64, dtype=dtype, seed=9), draw(2, 2, 70, dtype="float32", seed=8)
    results = attend(
        [on_device(x, dtype) for x in operands],
        on_device(upstream, dtype),
        True,
        scale,
        on_device(of_logsumexp, "float32"),
    )
    for ours, true in zip(results, exact(operands, upstream, True, scale, of_logsumexp), strict=True):
        # bfloat16: of weights and of dS, each at most 2^-9 of itself, and of the result; float32: sums of 70 and of 64
        # products, and an exponential of scores of up to 2^4 whose rounding is 2^-20.
        bound = (2.0**-6 if precision == "bf16" else 2.0**-18) * np.abs(true).max()
        np.testing.assert_allclose(numbers(ours), true, rtol=0, atol=bound)


@pytest.mark.parametrize("t", [1000, 4096])
def test_logsumexp_of_many_blocks(t: int) -> None:
    """No error grows with the number of blocks of keys: a correction of almost 1 after each of them would show."""
    operands = [draw(1, 2, t, 64, dtype="float32", seed=i) for i in range(3)]
    _, logsumexp = _operators.scaled_dot_product_attention(*(on_device(x, "float32") for x in operands))
    true = _operators.scaled_dot_product_attention(*(bt.asarray(x) for x in operands))[1].numpy()
    # Of its own value half a rounding, of scores and sums a few.
    assert np.abs(numbers(logsumexp) - true).max() <= 4 * ROUNDOFF["float32"] * np.abs(true).max()


def test_tf32_rounds_to_nearest() -> None:
    """On positive operands truncation would make every product, and so every sum, smaller by 2^-11 on average."""
    operands = [np.abs(draw(1, 2, 512, 64, dtype="float32", seed=i)) + 0.5 for i in range(3)]
    with math_of("tf32"):
        output, logsumexp = _operators.scaled_dot_product_attention(*(on_device(x, "float32") for x in operands))
    true = _operators.scaled_dot_product_attention(
        *(bt.asarray(x.astype(np.float32)).astype("float64") for x in operands)
    )
    for ours, values in ((output, true[0].numpy()), (logsumexp, true[1].numpy())):
        assert abs(np.mean((numbers(ours) - values) / values)) < 2.0**-13


@pytest.mark.parametrize("d", [64, 128])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_same_bits_every_time(precision: str, d: int) -> None:
    dtype = DTYPE[precision]
    operands = [on_device(draw(2, 4, 777, d, dtype=dtype, seed=i), dtype) for i in range(3)]
    upstream = on_device(draw(2, 4, 777, d, dtype=dtype, seed=9), dtype)

    def bits() -> list[bytes]:
        return [numbers(x).tobytes() for x in attend(operands, upstream, True)]

    with math_of(precision):
        first = bits()
        assert all(bits() == first for _ in range(10))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_qkv_attention_equals_its_views(precision: str) -> None:
    b, t, h, d = 2, 200, 3, 64
    dtype = DTYPE[precision]
    qkv = on_device(draw(b, t, 3 * h * d, dtype=dtype), dtype)
    upstream = on_device(draw(b, t, h * d, dtype=dtype, seed=9), dtype)
    qkv.requires_grad = True
    with math_of(precision):
        output, logsumexp = _operators.qkv_attention(qkv, h, True, 0.0)
        (gradient,) = bt.grad([output], [qkv], [upstream])
        parts = qkv.detach().reshape((b, t, 3, h, d)).permute_dims(2, 0, 3, 1, 4)
        views = attend([parts[i] for i in range(3)], upstream.reshape((b, t, h, d)).permute_dims(0, 2, 1, 3), True)
    heads = numbers(output.detach()).reshape(b, t, h, d).swapaxes(1, 2)
    np.testing.assert_array_equal(heads, numbers(views[0]))
    np.testing.assert_array_equal(numbers(logsumexp.detach()), numbers(views[1]))
    packed = numbers(gradient).reshape(b, t, 3, h, d)
    for i in range(3):
        np.testing.assert_array_equal(packed[:, :, i].swapaxes(1, 2), numbers(views[2 + i]))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_nan_and_infinity(precision: str) -> None:
    dtype = DTYPE[precision]
    q, k, v = (draw(1, 1, 200, 64, dtype=dtype, seed=i) for i in range(3))
    with math_of(precision):
        spoiled = k.copy()
        spoiled[0, 0, 150] = np.nan
        output, logsumexp = _operators.scaled_dot_product_attention(
            *(on_device(x, dtype) for x in (q, spoiled, v)), True
        )
        # Behind the mask it does not count, in front of it it spoils the row.
        assert np.isfinite(numbers(output)[0, 0, :150]).all()
        assert np.isfinite(numbers(logsumexp)[0, 0, :150]).all()
        assert np.isnan(numbers(output)[0, 0, 150:]).all()
        assert np.isnan(numbers(logsumexp)[0, 0, 150:]).all()
        q[0, 0, 3] = -np.inf
        output, logsumexp = _operators.scaled_dot_product_attention(*(on_device(x, dtype) for x in (q, np.abs(k), v)))
        # Only -inf: no weight is defined.
        assert np.isnan(numbers(output)[0, 0, 3]).all()
        assert numbers(logsumexp)[0, 0, 3] == -np.inf
        assert np.isfinite(numbers(output)[0, 0, 4:]).all()


@pytest.mark.parametrize("precision", PRECISIONS)
def test_nothing_to_attend_to(precision: str) -> None:
    dtype = DTYPE[precision]
    some, none = draw(1, 2, 70, 64, dtype=dtype), np.zeros((1, 2, 0, 64))
    with math_of(precision):
        output, logsumexp, dq, dk, _ = attend(
            [on_device(x, dtype) for x in (some, none, none)], on_device(some, dtype), True
        )
        assert (numbers(output) == 0).all()
        assert (numbers(logsumexp) == -np.inf).all()
        assert (numbers(dq) == 0).all()
        assert dk.shape == (1, 2, 0, 64)
        _, _, _, dk, dv = attend([on_device(x, dtype) for x in (none, some, some)], on_device(none, dtype), True)
        assert (numbers(dk) == 0).all()
        assert (numbers(dv) == 0).all()


def softmax_average(module: Any, query: Any, keys: Any, values: Any) -> Any:
    """Attention of one query by NumPy or PyTorch, in the precision of the operands."""
    scores = query @ keys.swapaxes(-1, -2) / math.sqrt(query.shape[-1])
    weights = module.exp(scores - module.amax(scores, -1)[..., None])
    return weights / weights.sum(-1)[..., None] @ values


@pytest.mark.parametrize("position", [0, 5, 31, 32, 700, 1023])
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_decode(dtype: str, position: int, torch: Any) -> None:
    query, keys, values = (draw(2, 3, n, 64, dtype=dtype, seed=n) for n in (1, 1024, 1024))
    at = np.asarray(position, np.int32 if position % 2 else np.int64)
    ours = bt.attention_decode(*(on_device(x, dtype) for x in (query, keys, values)), bt.asarray(at).to("cuda"))
    seen = [query, *(x[:, :, : position + 1] for x in (keys, values))]
    true = softmax_average(np, *(x.astype(np.longdouble) for x in seen)).astype(np.float64)
    theirs = softmax_average(torch, *(torch.tensor(x, device="cuda", dtype=getattr(torch, dtype)) for x in seen))
    peer = np.abs(theirs.double().cpu().numpy() - true).max()
    assert np.abs(numbers(ours) - true).max() <= 2 * peer + 2 * ROUNDOFF[dtype] * np.abs(true).max()


@pytest.mark.parametrize("position", [-1, 64, 1 << 40])
def test_decode_behind_the_cache(position: int) -> None:
    query, cache = (on_device(draw(1, 2, n, 32, dtype="float32"), "float32") for n in (1, 64))
    output = bt.attention_decode(query, cache, cache, bt.asarray(np.int64(position)).to("cuda"))
    with pytest.raises(IndexError, match="attention_decode"):
        output.cpu()
