"""Philox, the distributions and dropout."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from layer_checks import available_isas, gradients, normal, parameter, poison, same_bits_for_any_threads, using_isa

import blutensor as bt
from blutensor import _operators

Array = np.ndarray[Any, Any]
MASK = 2**32 - 1


@pytest.fixture(autouse=True)
def seeded() -> None:
    bt.manual_seed(1234)


def philox(counter: list[int], key: list[int]) -> list[int]:
    """Philox4x32-10 as the paper states it."""
    for _ in range(10):
        a, b = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [(b >> 32) ^ counter[1] ^ key[0], b & MASK, (a >> 32) ^ counter[3] ^ key[1], a & MASK]
        key = [(key[0] + 0x9E3779B9) & MASK, (key[1] + 0xBB67AE85) & MASK]
    return counter


# Random123's kat_vectors for philox4x32-10: counter, key, result.
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text: str) -> list[int]:
    return [int(w, 16) for w in text.split()]


@pytest.mark.parametrize(("counter", "key", "result"), KNOWN_ANSWERS)
def test_the_reference_of_these_tests(counter: str, key: str, result: str) -> None:
    assert philox(words(counter), words(key)) == words(result)


def draw(name: str, shape: tuple[int, ...], *attrs: Any, seed: int = 7, step: int = 3, op_id: int = 5) -> Array:
    bt.manual_seed(seed)
    for _ in range(step):
        bt.default_generator.advance()
    bt.default_generator.op_id = op_id
    return getattr(_operators, name)(shape, *attrs).numpy()


def test_uniform_numbers_are_words_of_philox() -> None:
    seed, step, op_id, n = 0x123456789ABCDEF, 3, 5, 1003
    bits = np.array(
        [philox([i, 0, op_id, step], [seed & MASK, seed >> 32]) for i in range(-(-n // 4))], np.uint32
    ).ravel()
    for isa in available_isas():
        with using_isa(isa):
            poison(n)
            ours = draw("uniform", (n,), seed=seed, step=step, op_id=op_id)
            assert np.array_equal(ours, (bits[:n] >> 8).astype(np.float32) * np.float32(2.0**-24))
    wide = draw("uniform", (bits.size // 2,), 0.0, 1.0, "float64", seed=seed, step=step, op_id=op_id)
    joined = bits[0::2].astype(np.uint64) << np.uint64(32) | bits[1::2]
    assert np.array_equal(wide, (joined >> np.uint64(11)).astype(np.float64) * 2.0**-53)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_normal_numbers_are_box_muller_of_philox(dtype: str) -> None:
    n = 2050
    bits = np.array([philox([i, 0, 5, 3], [7, 0]) for i in range(n)], np.uint32).ravel()
    if dtype == "float32":
        k = (bits >> 8).astype(np.float32)
        u, v = (k[0:n:2] + np.float32(0.5)) * np.float32(2.0**-24), k[1:n:2] * np.float32(2.0**-24)
    else:
        joined = bits[0::2].astype(np.uint64) << np.uint64(32) | bits[1::2]
        unit = (joined >> np.uint64(11)).astype(np.float64) * 2.0**-53
        u, v = unit[0:n:2] + 2.0**-54, unit[1:n:2]
    u, v = u.astype(np.float64), v.astype(np.float64)
    radius = np.sqrt(-2 * np.log(u))
    exact = np.stack([radius * np.cos(2 * np.pi * v), radius * np.sin(2 * np.pi * v)], 1).ravel() * 3 + 0.5
    for isa in available_isas():
        with using_isa(isa):
            ours = draw("normal", (n,), 0.5, 3.0, dtype)
            # Logarithm, root, two products, sine or cosine and the sum round once each: at most 4 units.
            assert np.all(np.abs(ours - exact) <= 4 * np.finfo(dtype).eps * (3 * np.repeat(radius, 2) + 0.5))


@pytest.mark.parametrize("name", ["uniform", "normal"])
def test_a_number_depends_on_its_index_alone(name: str) -> None:
    whole = draw(name, (5000,))
    for shape in [(1,), (3,), (511,), (513,), (7, 71), (2, 3, 5), (4999,)]:
        size = math.prod(shape)
        assert np.array_equal(draw(name, shape).ravel(), whole[:size])
    same_bits_for_any_threads(lambda: [draw(name, (50_001,))])
    for isa in available_isas():
        with using_isa(isa):
            assert np.array_equal(draw(name, (5000,)), whole)


@pytest.mark.parametrize("name", ["uniform", "normal"])
def test_seed_step_and_operator_each_change_the_numbers(name: str) -> None:
    base = {"seed": 7, "step": 3, "op_id": 5}
    reference = draw(name, (64,), **base)
    for change in ({"seed": 8}, {"step": 4}, {"op_id": 6}, {"seed": 7 + 2**32}):
        assert not np.intersect1d(reference, draw(name, (64,), **{**base, **change})).size
    assert np.array_equal(reference, draw(name, (64,), **base))


def test_distributions() -> None:
    n = 200_000
    u = draw("uniform", (n,), -2.0, 6.0)
    assert u.min() >= -2
    assert u.max() < 6
    # Mean and variance within five standard errors of 2 and 64 / 12.
    assert abs(u.mean() - 2) < 5 * math.sqrt(64 / 12 / n)
    assert abs(u.var() - 64 / 12) < 5 * math.sqrt((8**4 / 80 - (64 / 12) ** 2) / n)
    z = draw("normal", (n,))
    assert abs(z.mean()) < 5 / math.sqrt(n)
    assert abs(z.var() - 1) < 5 * math.sqrt(2 / n)
    assert abs((z**3).mean()) < 5 * math.sqrt(15 / n)
    assert abs((z**4).mean() - 3) < 5 * math.sqrt(96 / n)
    # Neighbours, which come from one pair, are uncorrelated, and so are their squares.
    assert abs(np.corrcoef(z[0::2], z[1::2])[0, 1]) < 5 / math.sqrt(n / 2)
    assert abs(np.corrcoef(z[0::2] ** 2, z[1::2] ** 2)[0, 1]) < 5 / math.sqrt(n / 2)
    counts = np.histogram(draw("uniform", (n,)), 64, (0, 1))[0]
    # Chi-square with 63 degrees of freedom: mean 63, standard deviation 11.2.
    assert ((counts - n / 64) ** 2 / (n / 64)).sum() < 63 + 5 * 11.3


def test_uniform_never_reaches_the_open_end() -> None:
    high = float(np.nextafter(np.float32(1), np.float32(2)))
    assert set(draw("uniform", (1000,), 1.0, high).tolist()) == {1.0}
    assert draw("uniform", (1000,), 1e8, 1e8 + 8).max() < 1e8 + 8
    assert set(draw("uniform", (9,), 2.0, 2.0).tolist()) == {2.0}


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize("shape", [(0,), (1,), (37, 41), (5, 513), (3, 4, 5)], ids=str)
def test_dropout(dtype: str, shape: tuple[int, ...]) -> None:
    x = bt.asarray(np.abs(normal(np.random.default_rng(1), *shape)) + np.float32(0.5)).astype(dtype)
    bt.manual_seed(3)
    kept = bt.random.uniform(shape).numpy() < np.float32(0.75)
    exact = (x * bt.full((), 4 / 3, dtype=dtype)).astype("float64").numpy() * kept
    results = []
    for isa in available_isas():
        with using_isa(isa):
            bt.manual_seed(3)
            poison(x.size)
            results.append(bt.dropout(x, 0.25).astype("float64").numpy())
    turned = bt.contiguous(x.permute_dims(*reversed(range(x.ndim)))).permute_dims(*reversed(range(x.ndim)))
    bt.manual_seed(3)
    results.append(bt.dropout(turned, 0.25).astype("float64").numpy())
    for ours in results:
        assert np.array_equal(ours != 0, kept)
        # Narrow dtypes multiply in float32 by 4/3 there and by its rounding here: one unit.
        unit = {"float32": 2.0**-23, "float64": 2.0**-52, "bfloat16": 2.0**-7, "float16": 2.0**-10}[dtype]
        assert np.all(np.abs(ours - exact) <= unit * np.abs(exact))
        assert np.array_equal(ours, results[0])


def test_dropout_gradient_uses_the_same_mask() -> None:
    x = normal(np.random.default_rng(2), 40, 33)
    leaf = parameter(x)
    y = bt.dropout(leaf, 0.4)
    bt.random.uniform((3,))  # other draws in between change nothing
    (gradient,) = bt.grad([y], [leaf], [bt.ones((40, 33))])
    scale = np.float32(1 / (1 - 0.4))
    assert np.array_equal(gradient.numpy() != 0, y.detach().numpy() != 0)
    assert set(np.unique(gradient.numpy())) == {np.float32(0), scale}


def test_dropout_notices_that_the_step_ended() -> None:
    leaf = parameter(np.ones(8, np.float32))
    y = bt.dropout(leaf, 0.5)
    bt.default_generator.advance()
    with pytest.raises(RuntimeError, match=r"'dropout' saved its input 1 .* but 'rng_advance_' wrote to it"):
        bt.grad([y], [leaf], [bt.ones((8,))])


def test_dropout_edges() -> None:
    x = normal(np.random.default_rng(3), 1000)
    assert np.array_equal(bt.dropout(bt.asarray(x), 0.0).numpy(), x)
    assert not bt.dropout(bt.asarray(x), 1.0).numpy().any()
    rate = (bt.dropout(bt.ones((200_000,)), 0.1).numpy() == 0).mean()
    assert abs(rate - 0.1) < 5 * math.sqrt(0.1 * 0.9 / 200_000)
    (gradient,) = gradients(lambda t: bt.dropout(t, 0.0), [parameter(x)], x)
    assert np.array_equal(gradient, x)


def test_advance_counts_steps() -> None:
    bt.manual_seed(5)
    first = bt.random.uniform((4,)).numpy().copy()
    bt.default_generator.advance()
    assert bt.default_generator.state.tolist() == [5, 1]
    assert not np.intersect1d(first, bt.random.uniform((4,)).numpy()).size


def test_errors() -> None:
    x = bt.zeros((2, 3))
    with pytest.raises(ValueError, match=r"\[dropout\] expected p from 0 to 1, got 1.5"):
        bt.dropout(x, 1.5)
    with pytest.raises(TypeError, match=r"\[dropout\] expected a floating-point tensor, got int64"):
        bt.dropout(bt.zeros((2,), dtype="int64"), 0.5)
    with pytest.raises(ValueError, match=r"\[uniform\] expected finite low <= high"):
        bt.random.uniform((3,), 2.0, 1.0)
    with pytest.raises(ValueError, match=r"\[normal\] expected finite mean and std >= 0"):
        bt.random.normal((3,), 0.0, -1.0)
    with pytest.raises(TypeError, match=r"\[normal\] expected a floating-point dtype"):
        bt.random.normal((3,), dtype="int32")
