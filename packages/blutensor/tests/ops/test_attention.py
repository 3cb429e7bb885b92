"""scaled_dot_product_attention against float64, beside NumPy and PyTorch in float32.

Legend: B batch, H heads, T queries, S keys, D head dimension.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attention_truth import attention, attention_gradients, packed
from layer_checks import (
    Array,
    assert_as_good_as,
    available_isas,
    normal,
    parameter,
    poison,
    require_torch,
    same_bits_for_any_threads,
    using_isa,
)
from peers import both_peers, by_numpy, torch_leaves

import blualloc
import blutensor as bt
from blutensor import _operators
from blutensor.nn import functional as F

# (B, H, T, S, D, causal): around blocks of 64 and groups of 16, either side longer, every width of the kernels' tiles.
CASES = [
    (2, 2, 5, 5, 3, True),
    (1, 2, 14, 14, 16, True),
    (1, 1, 17, 18, 15, False),
    (1, 2, 37, 37, 32, True),
    (1, 1, 62, 62, 64, True),
    (1, 1, 63, 63, 17, False),
    (1, 2, 64, 64, 64, True),
    (1, 1, 65, 65, 64, True),
    (1, 1, 66, 66, 31, True),
    (2, 3, 128, 128, 32, True),
    (1, 2, 130, 130, 40, True),
    (1, 1, 100, 200, 64, True),
    (1, 1, 200, 100, 64, True),
    (1, 1, 200, 70, 48, False),
    (1, 1, 70, 211, 80, False),
    (1, 1, 17, 33, 256, True),
    (1, 2, 97, 97, 255, False),
    (1, 1, 193, 193, 128, True),
    (1, 1, 513, 513, 64, True),
]


def operands(b: int, h: int, t: int, s: int, d: int) -> tuple[list[Array], Array]:
    rng = np.random.default_rng(t * 1000 + d)
    qkv = packed(rng, b, h, t, d) if s == t else [normal(rng, b, h, n, d) for n in (t, s, s)]
    return qkv, normal(rng, b, t, h, d).swapaxes(1, 2)


def run(qkv: list[Array], upstream: Array, causal: bool, scale: float = 0.0) -> tuple[Array, Array, list[Array]]:
    """Output, logsumexp and gradients by blutensor; the operands keep their strides."""
    leaves = [bt.asarray(v) for v in qkv]
    for leaf in leaves:
        leaf.requires_grad = True
    output, logsumexp = _operators.scaled_dot_product_attention(*leaves, causal, scale)
    gradients = bt.grad([output], leaves, [bt.asarray(upstream)])
    return output.detach().numpy(), logsumexp.detach().numpy(), [g.numpy() for g in gradients]


@pytest.mark.parametrize("isa", available_isas())
def test_logsumexp_of_many_blocks(isa: str) -> None:
    """No error grows with the number of blocks of keys: a correction of almost 1 after each of them would show."""
    rng = np.random.default_rng(7)
    leaves = [bt.asarray(normal(rng, 1, 2, 1000, 64).astype(np.float32)) for _ in range(3)]
    true = _operators.scaled_dot_product_attention(*(x.astype("float64") for x in leaves))[1].numpy()
    with using_isa(isa):
        logsumexp = _operators.scaled_dot_product_attention(*leaves)[1].numpy()
    # Of its own value half a rounding, of scores and sums a few.
    assert np.abs(logsumexp - true).max() <= 4 * 2.0**-24 * np.abs(true).max()


@both_peers
@pytest.mark.parametrize("isa", available_isas())
@pytest.mark.parametrize(("b", "h", "t", "s", "d", "causal"), CASES)
def test_values_and_gradients(b: int, h: int, t: int, s: int, d: int, causal: bool, isa: str, peer: str) -> None:
    qkv, upstream = operands(b, h, t, s, d)
    their_output, their_logsumexp, _ = by_numpy(lambda *a: attention(*a, causal), *qkv)
    if peer == "torch":
        torch = require_torch()
        leaves = torch_leaves(*qkv)
        result = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=causal)
        result.backward(torch.tensor(np.array(upstream)))
        their_output, their_gradients = result.detach().numpy(), [leaf.grad.numpy() for leaf in leaves]
    else:
        their_gradients = by_numpy(lambda *a: attention_gradients(*a, causal), *qkv, upstream)
    poison(b * h * t * d, b * h * t, b * h * s * d, b * h * s * d)
    with using_isa(isa):
        output, logsumexp, gradients = run(qkv, upstream, causal)
    exact_output, exact_logsumexp, _ = by_numpy(lambda *a: attention(*a, causal), *qkv, dtype=np.float64)
    assert_as_good_as(output, their_output, exact_output)
    assert_as_good_as(logsumexp, their_logsumexp, exact_logsumexp)
    exact_gradients = by_numpy(lambda *a: attention_gradients(*a, causal), *qkv, upstream, dtype=np.float64)
    for got, theirs, exact in zip(gradients, their_gradients, exact_gradients, strict=True):
        if peer == "torch":  # it computes gradients as we do: from a float32 logsumexp
            assert_as_good_as(got, theirs, exact)
        else:  # probabilities from a logsumexp of up to 2^3 are off by 2^-21 of themselves
            np.testing.assert_allclose(got, exact, rtol=0, atol=2.0**-19 * np.abs(exact).max())


@pytest.mark.parametrize("isa", available_isas())
@pytest.mark.parametrize("scale", [0.3, -0.7, 4.0])
def test_scale(scale: float, isa: str) -> None:
    qkv, upstream = operands(1, 2, 70, 70, 24)
    with using_isa(isa):
        output, logsumexp, gradients = run(qkv, upstream, True, scale)
        by_name = F.scaled_dot_product_attention(*(bt.asarray(v) for v in qkv), is_causal=True, scale=scale)
    theirs = by_numpy(lambda *a: attention(*a, True, scale), *qkv)
    exact = by_numpy(lambda *a: attention(*a, True, scale), *qkv, dtype=np.float64)
    assert_as_good_as(output, theirs[0], exact[0])
    assert_as_good_as(logsumexp, theirs[1], exact[1])
    np.testing.assert_array_equal(by_name.numpy(), output)
    exact_gradients = by_numpy(lambda *a: attention_gradients(*a, True, scale), *qkv, upstream, dtype=np.float64)
    for got, true in zip(gradients, exact_gradients, strict=True):
        # Scores up to 2^6 at the largest scale: their rounding moves probabilities by 2^-18.
        np.testing.assert_allclose(got, true, rtol=0, atol=2.0**-16 * np.abs(true).max())


@pytest.mark.parametrize("isa", available_isas())
def test_gradient_of_logsumexp(isa: str) -> None:
    rng = np.random.default_rng(1)
    (q, k, v), upstream = operands(2, 2, 70, 70, 20)
    of_logsumexp = normal(rng, 2, 2, 70)
    exact = by_numpy(
        lambda *a: attention_gradients(*a, True, of_logsumexp=of_logsumexp), q, k, v, upstream, dtype=np.float64
    )
    alone = by_numpy(
        lambda *a: attention_gradients(*a, True, of_logsumexp=of_logsumexp), q, k, v, 0 * upstream, dtype=np.float64
    )
    with using_isa(isa):
        leaves = [parameter(a) for a in (q, k, v)]
        output, logsumexp = _operators.scaled_dot_product_attention(*leaves, True)
        both = bt.grad([output, logsumexp], leaves, [bt.asarray(upstream), bt.asarray(of_logsumexp)], retain_graph=True)
        one = bt.grad([logsumexp], leaves, [bt.asarray(of_logsumexp)])
    for got, true in zip([*both, *one], [*exact, *alone], strict=True):
        np.testing.assert_allclose(got.numpy(), true, rtol=0, atol=2.0**-19 * np.abs(true).max())


@pytest.mark.parametrize("isa", available_isas())
def test_one_key(isa: str) -> None:
    """The only key has weight 1, exactly; queries and keys get no gradient."""
    qkv, upstream = operands(2, 2, 20, 1, 8)
    with using_isa(isa):
        output, _, (dq, dk, dv) = run(qkv, upstream, True)
    np.testing.assert_array_equal(output, np.broadcast_to(qkv[2], output.shape))
    # What is left of dP - delta: two float32 sums of eight products of up to 2^3.
    assert max(np.abs(dq).max(), np.abs(dk).max()) < 2.0**-15
    np.testing.assert_allclose(dv[..., 0, :], upstream.astype(np.float64).sum(2), rtol=0, atol=2.0**-19)


@pytest.mark.parametrize("isa", available_isas())
@pytest.mark.parametrize(("t", "s", "d"), [(70, 70, 64), (33, 90, 20)])
def test_layouts_give_the_same_bits(t: int, s: int, d: int, isa: str) -> None:
    qkv, upstream = operands(2, 2, t, s, d)

    def bits(operands: list[Array], up: Array) -> list[bytes]:
        output, logsumexp, gradients = run(operands, up, True)
        return [np.ascontiguousarray(a).tobytes() for a in (output, logsumexp, *gradients)]

    with using_isa(isa):
        expected = bits([np.ascontiguousarray(a) for a in qkv], np.ascontiguousarray(upstream))
        assert bits(qkv, upstream) == expected
        assert bits([np.asfortranarray(a) for a in qkv], np.asfortranarray(upstream)) == expected
        wide = [np.repeat(a, 3, axis=-1)[..., ::3] for a in (*qkv, upstream)]
        assert bits(wide[:3], wide[3]) == expected
        backwards = [np.ascontiguousarray(a[..., ::-1, ::-1])[..., ::-1, ::-1] for a in (*qkv, upstream)]
        assert bits(backwards[:3], backwards[3]) == expected
        # rows a multiple of 4 KiB apart: the kernels copy such blocks
        far = [np.zeros((*a.shape[:-1], 1024), np.float32) for a in (*qkv, upstream)]
        for buffer, a in zip(far, (*qkv, upstream), strict=True):
            buffer[..., :d] = a
        assert bits([f[..., :d] for f in far[:3]], far[3][..., :d]) == expected


def test_shared_keys_by_stride_0() -> None:
    """One head of keys for all heads: broadcast views; the gradient sums over them."""
    rng = np.random.default_rng(2)
    q, k, v, upstream = (normal(rng, 2, h, 30, 16) for h in (4, 1, 1, 4))
    leaves = [parameter(a) for a in (q, k, v)]
    wide = [leaves[0], *(bt.broadcast_to(t, (2, 4, 30, 16)) for t in leaves[1:])]
    output, _ = _operators.scaled_dot_product_attention(*wide, True)
    gradients = bt.grad([output], leaves, [bt.asarray(upstream)])
    repeated = [q, np.repeat(k, 4, 1), np.repeat(v, 4, 1)]
    exact = by_numpy(lambda *a: attention_gradients(*a, True), *repeated, upstream, dtype=np.float64)
    np.testing.assert_allclose(output.detach().numpy(), attention(*repeated, True)[0], atol=2.0**-20)
    for got, true in zip(
        gradients, (exact[0], exact[1].sum(1, keepdims=True), exact[2].sum(1, keepdims=True)), strict=True
    ):
        np.testing.assert_allclose(got.numpy(), true, rtol=0, atol=2.0**-19 * np.abs(true).max())


def test_ranks() -> None:
    rng = np.random.default_rng(3)
    for lead in ((), (3,), (2, 3), (2, 1, 3)):
        q, k, v = (normal(rng, *lead, n, 8) for n in (5, 7, 7))
        output, logsumexp = _operators.scaled_dot_product_attention(*(bt.asarray(a) for a in (q, k, v)))
        assert output.shape == (*lead, 5, 8)
        assert logsumexp.shape == (*lead, 5)
        np.testing.assert_allclose(output.numpy(), attention(q, k, v, False)[0], atol=2.0**-20)


def test_output_lies_as_tokens_by_heads() -> None:
    """Merging heads is a view; so is it for the gradients of q, k and v."""
    q, k, v = (parameter(a) for a in packed(np.random.default_rng(4), 2, 3, 10, 8))
    output = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    merged = output.permute_dims(0, 2, 1, 3).reshape(2, 10, 24)
    assert merged.storage_id == output.storage_id
    assert merged.is_contiguous()
    for gradient in bt.grad([merged], [q, k, v], [bt.ones((2, 10, 24))]):
        assert gradient.permute_dims(0, 2, 1, 3).is_contiguous()


@pytest.mark.parametrize("isa", available_isas())
def test_empty(isa: str) -> None:
    with using_isa(isa):
        for b, h, t, s, d in ((0, 2, 3, 3, 4), (2, 0, 3, 3, 4), (1, 1, 0, 3, 4), (1, 2, 3, 3, 0)):
            qkv = [np.zeros((b, h, n, d), np.float32) for n in (t, s, s)]
            output, logsumexp, gradients = run(qkv, np.zeros((b, h, t, d), np.float32), True)
            assert output.shape == (b, h, t, d)
            assert logsumexp.shape == (b, h, t)
            for gradient, operand in zip(gradients, qkv, strict=True):
                np.testing.assert_array_equal(gradient, np.zeros_like(operand))
        poison(2 * 5 * 4)
        qkv = [normal(np.random.default_rng(5), 1, 2, n, 4) for n in (5, 0, 0)]  # no keys: nothing to attend to
        output, logsumexp, gradients = run(qkv, np.ones((1, 2, 5, 4), np.float32), False)
        np.testing.assert_array_equal(output, np.zeros_like(output))
        np.testing.assert_array_equal(logsumexp, np.full_like(logsumexp, -np.inf))
        np.testing.assert_array_equal(gradients[0], np.zeros_like(output))


@pytest.mark.parametrize("isa", available_isas())
def test_special_values(isa: str) -> None:
    """NaN and infinities stay with the queries that see them; a query that sees only -inf is NaN, as in PyTorch."""
    (q, k, v), _ = operands(1, 1, 150, 150, 16)
    q, k, v = (np.abs(np.array(a)) for a in (q, k, v))
    clean = attention(q, k, v, True)[0]
    with using_isa(isa):

        def output(q: Array, k: Array, v: Array) -> Array:
            return _operators.scaled_dot_product_attention(*(bt.asarray(a) for a in (q, k, v)), True)[0].numpy()

        for bad in (np.nan, np.inf):
            broken = q.copy()
            broken[0, 0, 70, 3] = bad
            got = output(broken, k, v)
            assert np.isnan(got[0, 0, 70]).all()
            np.testing.assert_allclose(np.delete(got, 70, 2), np.delete(clean, 70, 2), atol=2.0**-20)
            broken = k.copy()
            broken[0, 0, 70, 3] = bad
            got = output(q, broken, v)
            np.testing.assert_allclose(got[:, :, :70], clean[:, :, :70], atol=2.0**-20)
            assert np.isnan(got[:, :, 70:]).all()
        # a key at -inf has weight 0 for every query
        hidden = k.copy()
        hidden[0, 0, 1::2] = -np.inf
        got = output(q, hidden, v)
        visible = np.where(np.tri(150, dtype=bool)[:, ::2], (q @ np.swapaxes(k, -1, -2))[..., ::2] * 0.25, -np.inf)
        weights = np.exp(visible - visible.max(-1, keepdims=True))
        np.testing.assert_allclose(got, weights / weights.sum(-1, keepdims=True) @ v[:, :, ::2], atol=2.0**-20)
        hidden[...] = -np.inf
        assert np.isnan(output(q, hidden, v)).all()


@pytest.mark.parametrize("isa", available_isas())
def test_large_scores_do_not_overflow(isa: str) -> None:
    (q, k, v), upstream = operands(1, 1, 80, 80, 16)
    with using_isa(isa):
        output, logsumexp, gradients = run([q * 40, k * 40, v], upstream, True)
    exact = by_numpy(lambda *a: attention(*a, True), q * 40, k * 40, v, dtype=np.float64)
    assert np.isfinite(output).all()
    assert all(np.isfinite(g).all() for g in gradients)
    np.testing.assert_allclose(logsumexp, exact[1], rtol=2.0**-20)


@pytest.mark.parametrize("isa", available_isas())
@pytest.mark.parametrize(("b", "h", "t", "d"), [(2, 3, 130, 32), (1, 1, 300, 20)])
def test_same_bits_for_any_threads(b: int, h: int, t: int, d: int, isa: str) -> None:
    qkv, upstream = operands(b, h, t, t, d)

    def compute() -> list[Array]:
        output, logsumexp, gradients = run(qkv, upstream, True)
        return [output, logsumexp, *gradients]

    with using_isa(isa):
        same_bits_for_any_threads(compute)


def test_memory_does_not_grow_with_queries_times_keys() -> None:
    t = 2048
    q, k, v = (parameter(normal(np.random.default_rng(6), 1, 1, t, 16)) for _ in range(3))
    before = blualloc.stats().live_bytes
    blualloc.reset_peak()
    output, _ = _operators.scaled_dot_product_attention(q, k, v, True)
    bt.grad([output], [q, k, v], [bt.ones(output.shape)])
    # Output, its gradient, three gradients and statistics: 5 t 16 floats and a few times t; scores would be t t floats.
    assert blualloc.stats().peak_live_bytes - before < 8 * t * 16 * 4 < t * t * 4 // 8


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bit(dtype: str) -> None:
    qkv, upstream = operands(1, 2, 70, 70, 16)
    leaves = [bt.asarray(np.array(a)).astype(dtype) for a in qkv]
    for leaf in leaves:
        leaf.requires_grad = True
    output, logsumexp = _operators.scaled_dot_product_attention(*leaves, True)
    assert output.dtype.name == dtype
    assert logsumexp.dtype.name == "float32"
    rounded = [leaf.detach().astype("float64").numpy() for leaf in leaves]
    assert_as_good_as(output.detach().astype("float32").numpy(), None, attention(*rounded, True)[0], dtype)
    up = bt.asarray(np.array(upstream)).astype(dtype)
    exact = attention_gradients(*rounded, up.astype("float64").numpy(), True)
    for got, true in zip(bt.grad([output], leaves, [up]), exact, strict=True):
        assert got.dtype.name == dtype
        # The output that delta is taken from was rounded to the dtype.
        relative = 2.0**-6 if dtype == "bfloat16" else 2.0**-9
        np.testing.assert_allclose(got.astype("float32").numpy(), true, rtol=0, atol=relative * np.abs(true).max())


def test_gradcheck_and_decomposition() -> None:
    rng = np.random.default_rng(7)
    for lead, t, s, d, causal, scale in (
        ((1, 2), 5, 5, 3, True, 0.0),
        ((2,), 3, 5, 4, False, 0.7),
        ((), 4, 2, 3, True, -0.5),
    ):
        values: list[Any] = [rng.standard_normal((*lead, n, d)) for n in (t, s, s)]
        bt.gradcheck(
            lambda *a, c=causal, f=scale: _operators.scaled_dot_product_attention(*a, c, f),
            [parameter(v) for v in values],
        )
        decomposed = bt.capture(
            lambda *a, c=causal, f=scale: _operators.scaled_dot_product_attention(*a, c, f), level="primitive"
        )
        for _ in range(2):
            results = decomposed(*(bt.asarray(v) for v in values))
            expected = _operators.scaled_dot_product_attention(*(bt.asarray(v) for v in values), causal, scale)
            for got, true in zip(results, expected, strict=True):
                np.testing.assert_allclose(got.numpy(), true.numpy(), rtol=1e-12, atol=1e-13)
        assert "scaled_dot_product_attention" not in str(decomposed.program)


def test_errors() -> None:
    x = bt.zeros((2, 3, 5, 4))
    with pytest.raises(TypeError, match=r"expected floating-point query, key and value, got int32"):
        _operators.scaled_dot_product_attention(*(bt.zeros((3, 4), dtype="int32") for _ in range(3)))
    with pytest.raises(TypeError, match=r"expected key of dtype float32 like query, got float64"):
        _operators.scaled_dot_product_attention(x, bt.zeros((2, 3, 5, 4), dtype="float64"), x)
    for shape in ((2, 3, 5, 8), (2, 2, 5, 4), (3, 5, 4)):
        with pytest.raises(ValueError, match=r"expected key \[..., S, D\] with the leading axes and the D of query"):
            _operators.scaled_dot_product_attention(x, bt.zeros(shape), x)
    with pytest.raises(ValueError, match=r"expected key and value of one shape"):
        _operators.scaled_dot_product_attention(x, x, bt.zeros((2, 3, 6, 4)))
    with pytest.raises(ValueError, match=r"expected a head dimension of at most 256, got 257"):
        _operators.scaled_dot_product_attention(*(bt.zeros((2, 257)) for _ in range(3)))
    with pytest.raises(ValueError, match=r"expected query \[..., T, D\], got shape \(4\)|expected query"):
        _operators.scaled_dot_product_attention(*(bt.zeros((4,)) for _ in range(3)))
    with pytest.raises(ValueError, match=r"expected a finite scale, got nan"):
        _operators.scaled_dot_product_attention(x, x, x, False, float("nan"))
