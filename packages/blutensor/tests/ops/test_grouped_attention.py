"""Attention whose query heads share key heads: the bits of repeating keys and values, without doing so.

Legend: B batch, H heads, G query heads of one key head, T queries, S keys, D head dimension.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from layer_checks import (  # fmt: skip
    Array,
    assert_as_good_as,
    available_isas,
    normal,
    parameter,
    require_torch,
    same_bits_for_any_threads,
    using_isa,
)

import blutensor as bt
from blutensor import _operators
from blutensor.nn import functional as F

# (B, H_kv, G, T, S, D, causal)
CASES = [
    (2, 2, 3, 5, 5, 16, True),
    (1, 1, 4, 70, 70, 32, True),
    (2, 3, 2, 33, 65, 24, False),
    (1, 2, 2, 1, 9, 7, False),
    (1, 2, 8, 130, 130, 64, True),
]


def operands(case: tuple[Any, ...], dtype: str = "float32", seed: int = 1) -> tuple[list[Array], bool]:
    batch, heads, group, queries, keys, width, causal = case
    rng = np.random.default_rng(seed)
    shapes = [
        (batch, heads * group, queries, width),
        *[(batch, heads, keys, width)] * 2,
        (batch, heads * group, queries, width),
    ]
    return [normal(rng, *s).astype(dtype) for s in shapes], causal


def repeated(values: Array, group: int) -> Array:
    return np.repeat(values, group, axis=1)


@pytest.mark.parametrize("isa", available_isas())
@pytest.mark.parametrize("case", CASES)
def test_repeated_keys_have_the_same_bits(case: tuple[Any, ...], isa: str) -> None:
    (q, k, v, upstream), causal = operands(case)
    group = case[2]
    with using_isa(isa):
        few = [parameter(a) for a in (q, k, v)]
        many = [parameter(a) for a in (q, repeated(k, group), repeated(v, group))]
        outputs = [F.scaled_dot_product_attention(*leaves, is_causal=causal) for leaves in (few, many)]
        for output in outputs:
            output.backward(bt.asarray(upstream))
    np.testing.assert_array_equal(outputs[0].detach().numpy(), outputs[1].detach().numpy())
    assert outputs[0].strides == outputs[1].strides
    np.testing.assert_array_equal(few[0].grad.numpy(), many[0].grad.numpy())
    for a, b in zip(few[1:], many[1:], strict=True):
        whole = b.grad.numpy().reshape(*case[:3], *b.shape[-2:])
        # The sum over a group in float64, rounded.
        np.testing.assert_allclose(a.grad.numpy(), whole.astype(np.float64).sum(2), rtol=2.0**-23, atol=1e-30)


@pytest.mark.parametrize("case", CASES)
def test_beside_pytorch(case: tuple[Any, ...]) -> None:
    """The largest error of eight draws: of one with so few numbers it is luck, PyTorch's as well as ours."""
    torch = require_torch()

    def theirs(arrays: list[Array], causal: bool, dtype: Any) -> list[Array]:
        *leaves, upstream = [torch.tensor(a, dtype=dtype, requires_grad=True) for a in arrays]
        y = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=causal, enable_gqa=True)
        return [y.detach().numpy(), *(g.numpy() for g in torch.autograd.grad(y, leaves, upstream.detach()))]

    def ours(arrays: list[Array], causal: bool) -> list[Array]:
        *leaves, upstream = [parameter(a) for a in arrays]
        y = F.scaled_dot_product_attention(*leaves, is_causal=causal)
        return [y.detach().numpy(), *(g.numpy() for g in bt.grad([y], leaves, [upstream.detach()]))]

    draws = [operands(case, seed=seed) for seed in range(8)]
    results = zip(*(ours(*draw) for draw in draws), strict=True)
    peers = zip(*(theirs(*draw, torch.float32) for draw in draws), strict=True)
    exact = zip(*(theirs(*draw, torch.float64) for draw in draws), strict=True)
    for got, peer, true in zip(results, peers, exact, strict=True):
        assert_as_good_as(np.stack(got), np.stack(peer), np.stack(true))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_other_dtypes(dtype: str) -> None:
    (q, k, v, upstream), causal = operands(CASES[0])
    few = [bt.asarray(a).astype(dtype).requires_grad_() for a in (q, k, v)]
    exact = [t.detach().astype("float64").requires_grad_() for t in few]
    for leaves in (few, exact):
        y = F.scaled_dot_product_attention(*leaves, is_causal=causal)
        y.backward(bt.asarray(upstream).astype(dtype).astype(y.dtype))
    for a, b in zip(few, exact, strict=True):
        assert a.grad.shape == a.shape
        # A few roundings of 16-bit numbers of the size of the largest: of P and dS, of each head's part, of the sum.
        bound = {"bfloat16": 2.0**-6, "float16": 2.0**-9, "float64": 1e-14}[dtype]
        scale = np.abs(b.grad.numpy()).max()
        assert np.abs(a.grad.astype("float64").numpy() - b.grad.numpy()).max() <= bound * scale


@pytest.mark.parametrize("isa", available_isas())
def test_decoding(isa: str) -> None:
    rng = np.random.default_rng(3)
    q, k, v = normal(rng, 2, 6, 1, 16), normal(rng, 2, 2, 9, 16), normal(rng, 2, 2, 9, 16)
    with using_isa(isa):
        few = F.attention_decode(bt.asarray(q), bt.asarray(k), bt.asarray(v), bt.asarray(4))
        many = F.attention_decode(*(bt.asarray(a) for a in (q, repeated(k, 3), repeated(v, 3))), bt.asarray(4))
    np.testing.assert_array_equal(few.numpy(), many.numpy())


def test_keys_in_other_layouts() -> None:
    (q, k, v, _), causal = operands(CASES[0])
    expected = F.scaled_dot_product_attention(*(bt.asarray(a) for a in (q, k, v)), is_causal=causal).numpy()
    inside = [bt.asarray(np.ascontiguousarray(a.transpose(0, 2, 1, 3))).permute_dims(0, 2, 1, 3) for a in (q, k, v)]
    np.testing.assert_array_equal(F.scaled_dot_product_attention(*inside, is_causal=causal).numpy(), expected)
    three = [bt.asarray(a[0]) for a in (q, k, v)]
    np.testing.assert_array_equal(F.scaled_dot_product_attention(*three, is_causal=causal).numpy(), expected[0])


def test_same_bits_for_any_number_of_threads() -> None:
    (q, k, v, upstream), causal = operands(CASES[2])

    def compute() -> list[Array]:
        leaves = [parameter(a) for a in (q, k, v)]
        y = F.scaled_dot_product_attention(*leaves, is_causal=causal)
        return [y.detach().numpy(), *(g.numpy() for g in bt.grad([y], leaves, [bt.asarray(upstream)]))]

    same_bits_for_any_threads(compute)


def test_gradients_of_the_logsumexp() -> None:
    (q, k, v, _), causal = operands(CASES[0], "float64")
    bt.gradcheck(
        lambda *t: _operators.scaled_dot_product_attention(*t, is_causal=causal)[1], [parameter(a) for a in (q, k, v)]
    )


def test_heads_that_do_not_divide() -> None:
    q, k = bt.zeros((1, 4, 2, 8)), bt.zeros((1, 3, 2, 8))
    with pytest.raises(bt.ShapeError, match=r"heads.*may be fewer by a whole factor.*got \(1, 3, 2, 8\)"):
        F.scaled_dot_product_attention(q, k, k)
    with pytest.raises(bt.ShapeError, match="whole factor"):
        F.scaled_dot_product_attention(k, q, q)
    with pytest.raises(bt.ShapeError, match="whole factor"):
        F.scaled_dot_product_attention(bt.zeros((4, 4, 2, 8)), bt.zeros((2, 4, 2, 8)), bt.zeros((2, 4, 2, 8)))
    deep = [bt.zeros((1,) * 4 + s) for s in ((1, 4, 2, 8), (1, 2, 2, 8), (1, 2, 2, 8))]
    with pytest.raises(bt.ShapeError, match="at most 7 axes"):
        F.scaled_dot_product_attention(*deep)
