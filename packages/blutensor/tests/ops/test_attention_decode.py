"""attention_decode, one query against a cache of keys and values, against float64.

Legend: B batch, H heads, D head dimension.
"""

from __future__ import annotations

import numpy as np
import pytest
from attention_truth import attention, packed
from layer_checks import assert_as_good_as, available_isas, normal, poison, same_bits_for_any_threads, using_isa
from peers import by_numpy

import blutensor as bt
from blutensor import _operators
from blutensor.nn import functional as F


@pytest.mark.parametrize("isa", available_isas())
@pytest.mark.parametrize(
    ("b", "h", "capacity", "d"), [(4, 2, 5, 3), (2, 3, 130, 64), (3, 2, 64, 32), (1, 12, 100, 40), (1, 2, 300, 256)]
)
def test_decode(b: int, h: int, capacity: int, d: int, isa: str) -> None:
    rng = np.random.default_rng(capacity)
    q, k, v = (normal(rng, b, h, n, d) for n in (1, capacity, capacity))
    for position in sorted({0, 1, 62, 63, 64, capacity // 2, capacity - 1}):
        if position >= capacity:
            continue
        # Rows that are not there yet are never read.
        k[:, :, position + 1 :], v[:, :, position + 1 :] = np.nan, np.nan
        seen = (q, k[:, :, : position + 1], v[:, :, : position + 1])
        exact = by_numpy(lambda *a: attention(*a, False)[0], *seen, dtype=np.float64)
        poison(b * h * d)
        with using_isa(isa):
            for dtype in ("int32", "int64"):
                got = F.attention_decode(
                    *(bt.asarray(a) for a in (q, k, v)), bt.asarray(np.array(position, dtype))
                ).numpy()
                assert_as_good_as(got, by_numpy(lambda *a: attention(*a, False)[0], *seen), exact)
        k, v = (normal(rng, b, h, capacity, d) for _ in range(2))


@pytest.mark.parametrize("isa", available_isas())
def test_decode_of_strided_caches(isa: str) -> None:
    rng = np.random.default_rng(8)
    position = bt.asarray(np.int32(40))
    q = normal(rng, 2, 1, 3, 20).swapaxes(1, 2)
    k, v = (normal(rng, 2, 50, 3, 20).swapaxes(1, 2) for _ in range(2))
    with using_isa(isa):
        expected = bt.attention_decode(*(bt.asarray(np.array(a)) for a in (q, k, v)), position).numpy().tobytes()
        assert bt.attention_decode(*(bt.asarray(a) for a in (q, k, v)), position).numpy().tobytes() == expected
        assert (
            bt.attention_decode(*(bt.asarray(np.asfortranarray(a)) for a in (q, k, v)), position).numpy().tobytes()
            == expected
        )
        same_bits_for_any_threads(lambda: [bt.attention_decode(*(bt.asarray(a) for a in (q, k, v)), position).numpy()])


def test_decode_agrees_with_attention() -> None:
    rng = np.random.default_rng(9)
    q, k, v = packed(rng, 2, 3, 20, 16)
    whole = _operators.scaled_dot_product_attention(*(bt.asarray(a) for a in (q, k, v)), True)[0].numpy()
    for t in range(20):
        one = bt.attention_decode(bt.asarray(q[:, :, t : t + 1]), bt.asarray(k), bt.asarray(v), bt.asarray(np.int64(t)))
        np.testing.assert_allclose(one.numpy()[:, :, 0], whole[:, :, t], atol=2.0**-20)


def test_decode_errors() -> None:
    q, cache = bt.zeros((1, 2, 1, 4)), bt.zeros((1, 2, 8, 4))
    for position in (-1, 8, 1 << 40):
        with pytest.raises(
            IndexError,
            match=rf"\[attention_decode\] expected a position in \[0, 8\), the rows of the cache, got {position}",
        ):
            bt.attention_decode(q, cache, cache, bt.asarray(np.int64(position)))
    with pytest.raises(TypeError, match=r"expected an int32 or int64 position, got float32"):
        bt.attention_decode(q, cache, cache, bt.zeros(()))
    with pytest.raises(ValueError, match=r"expected a 0-d position, got shape"):
        bt.attention_decode(q, cache, cache, bt.zeros((1,), dtype="int32"))
    with pytest.raises(ValueError, match=r"expected query \[..., 1, D\]"):
        bt.attention_decode(cache, cache, cache, bt.zeros((), dtype="int32"))
