"""qkv_attention, attention on packed queries, keys and values: the same bits as attention on its parts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from layer_checks import available_isas, normal, parameter, poison, using_isa

import blutensor as bt
from blutensor import _operators


@pytest.mark.parametrize("isa", available_isas())
@pytest.mark.parametrize(
    ("lead", "t", "heads", "d", "causal"), [((2,), 70, 3, 16, True), ((), 5, 1, 3, False), ((2, 3), 65, 2, 8, True)]
)
def test_qkv_attention_is_attention(lead: tuple[int, ...], t: int, heads: int, d: int, causal: bool, isa: str) -> None:
    """The same bits as splitting, attention and merging, in every output and gradient."""
    rng = np.random.default_rng(10)
    channels = heads * d
    values, upstream = normal(rng, *lead, t, 3 * channels), normal(rng, *lead, t, channels)
    of_logsumexp = normal(rng, *lead, heads, t)

    def by_parts(qkv: bt.Tensor) -> tuple[bt.Tensor, bt.Tensor]:
        rank = len(lead)
        swapped = (*range(rank), rank + 1, rank, rank + 2)
        parts = [p.reshape(*lead, t, heads, d).permute_dims(*swapped) for p in bt.split(qkv, (3,), rank + 1)]
        output, logsumexp = _operators.scaled_dot_product_attention(*parts, causal)
        return output.permute_dims(*swapped).reshape(*lead, t, channels), logsumexp

    def results(function: Any) -> list[bytes]:
        leaf = parameter(values)
        outputs = function(leaf)
        gradients = bt.grad(list(outputs), [leaf], [bt.asarray(upstream), bt.asarray(of_logsumexp)], retain_graph=True)
        alone = bt.grad([outputs[0]], [leaf], [bt.asarray(upstream)])
        return [x.detach().contiguous().numpy().tobytes() for x in (*outputs, *gradients, *alone)]

    with using_isa(isa):
        poison(values.size, upstream.size, of_logsumexp.size)
        assert results(lambda x: _operators.qkv_attention(x, heads, causal)) == results(by_parts)


def test_qkv_attention_gradcheck_layouts_and_decomposition() -> None:
    rng = np.random.default_rng(11)
    values: Any = rng.standard_normal((2, 5, 18))
    bt.gradcheck(lambda x: _operators.qkv_attention(x, 2, True, 0.7), [parameter(values)])
    expected = [x.numpy() for x in _operators.qkv_attention(bt.asarray(values), 2, True, 0.7)]
    for strided in (np.asfortranarray(values), np.repeat(values, 2, -1)[..., ::2], np.flip(np.flip(values).copy())):
        for got, true in zip(_operators.qkv_attention(bt.asarray(strided), 2, True, 0.7), expected, strict=True):
            np.testing.assert_array_equal(got.numpy(), true)
    decomposed = bt.capture(lambda x: _operators.qkv_attention(x, 2, True, 0.7), level="primitive")
    for _ in range(2):
        for got, true in zip(decomposed(bt.asarray(values)), expected, strict=True):
            np.testing.assert_allclose(got.numpy(), true, rtol=1e-12, atol=1e-13)
    assert "attention" not in str(decomposed.program)


def test_qkv_attention_errors() -> None:
    with pytest.raises(ValueError, match=r"\[qkv_attention\] expected a last axis that 3 \* num_heads = 6 divides"):
        _operators.qkv_attention(bt.zeros((2, 5, 9)), 2)
    with pytest.raises(ValueError, match=r"\[qkv_attention\] expected num_heads of at least 1, got 0"):
        _operators.qkv_attention(bt.zeros((2, 5, 9)), 0)
    with pytest.raises(ValueError, match=r"\[qkv_attention\] expected qkv \[..., T, 3 C\], got shape"):
        _operators.qkv_attention(bt.zeros((9,)), 1)
    with pytest.raises(TypeError, match=r"\[qkv_attention\] expected floating-point qkv, got int32"):
        _operators.qkv_attention(bt.zeros((2, 9), dtype="int32"), 1)
