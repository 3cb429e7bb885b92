"""The plain product: sizes, layouts, dtypes, batches, scalars, against float64 beside the peer."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from formula import ROUNDOFF, Array, Case, assert_as_good_as, bfloat16_values, chain, exact, peer
from hypothesis import given, settings
from hypothesis import strategies as st
from layouts import LAYOUTS

import blublas

# Around the tiles of every kernel set (rows 4, 6, 14; columns 8, 16, 32), primes, 0 and 1.
ROWS = [0, 1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 14, 15, 16, 27, 28, 29, 31]
COLUMNS = [0, 1, 2, 6, 7, 8, 9, 10, 14, 15, 16, 17, 18, 30, 31, 32, 33, 34, 61, 67]
DEPTHS = [0, 7, 127]  # test_depths has 1, 2 and the edges of the blocks


def normal(rng: np.random.Generator, *shape: int, dtype: str = "float32") -> Array:
    return rng.standard_normal(shape).astype(dtype)


def poisoned(*shape: int, dtype: str = "float32") -> Array:
    """What the product must overwrite everywhere."""
    return np.full(shape, np.nan, dtype)


def check(case: Case, ours: Array, torch: Any, dtype: str, what: str = "") -> None:
    assert_as_good_as(ours, peer(case, torch, dtype).out, exact(case).out, dtype, what)


def check_product(kernel: str, a: Array, b: Array, ours: Array, torch: Any, what: str = "") -> None:
    """STYLE's rule for a plain product; the truth is in extended precision, which float64 needs."""
    dtype = str(a.dtype)
    wide = np.float64 if dtype == "float32" else np.longdouble
    truth = a.astype(wide) @ b.astype(wide)
    theirs = [peer(Case(a, b), torch, dtype).out]
    if torch is None or (kernel == "reference" and 1 in ours.shape[-2:]):
        # Small products: PyTorch adds an element in a few chains, NumPy's library in dozens, the reference kernels,
        # plain on purpose, in one. One chain is what those are held to, and all where there is only NumPy.
        theirs.append(chain(a, b))
    error, *allowed = (np.abs(x - truth).max(initial=0) for x in (ours, *theirs))
    assert error <= 2 * max(allowed) + ROUNDOFF[dtype] * np.abs(truth).max(initial=0), what


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_tile_edges(kernel: str, dtype: str, rng: np.random.Generator, peer_torch: Any) -> None:
    for m, n, k in itertools.product(ROWS, COLUMNS, DEPTHS):
        # Eight products: the largest error of a single small one says little.
        a, b = normal(rng, 8, m, k, dtype=dtype), normal(rng, 8, k, n, dtype=dtype)
        out = blublas.gemm(a, b, poisoned(8, m, n, dtype=dtype))
        check_product(kernel, a, b, out, peer_torch, f"{m} {n} {k}")


@pytest.mark.parametrize("k", [1, 2, 8, 9, 255, 256, 257, 511, 513, 1535, 1536, 1537, 4099])
def test_depths(kernel: str, k: int, rng: np.random.Generator, peer_torch: Any) -> None:
    a, b = normal(rng, 37, k), normal(rng, k, 53)
    check(Case(a, b), blublas.gemm(a, b, poisoned(37, 53)), peer_torch, "float32")


@pytest.mark.parametrize("shape", [(3, 1031, 20011), (130, 17, 65537), (1, 5, 200003)])
def test_large_depth(shape: tuple[int, int, int], rng: np.random.Generator, peer_torch: Any) -> None:
    m, n, k = shape
    a, b = normal(rng, m, k), normal(rng, k, n)
    check(Case(a, b), blublas.gemm(a, b, poisoned(m, n)), peer_torch, "float32")


@pytest.mark.parametrize("shape", [(257, 769, 385), (1000, 3, 700), (2, 2048, 129), (513, 1, 513), (1, 513, 513)])
def test_large_sizes(kernel: str, shape: tuple[int, int, int], rng: np.random.Generator, peer_torch: Any) -> None:
    m, n, k = shape
    for dtype in ("float32", "float64"):
        a, b = normal(rng, m, k, dtype=dtype), normal(rng, k, n, dtype=dtype)
        check_product(kernel, a, b, blublas.gemm(a, b, poisoned(m, n, dtype=dtype)), peer_torch)


@pytest.mark.parametrize("shape", [(29, 67, 31), (7, 19, 300), (64, 5, 17)])
def test_layouts(kernel: str, shape: tuple[int, int, int], rng: np.random.Generator, peer_torch: Any) -> None:
    m, n, k = shape
    a, b, c = normal(rng, m, k), normal(rng, k, n), normal(rng, m, n)
    case = Case(a, b, c, alpha=0.7, beta=-1.3)
    truth, theirs = exact(case).out, peer(case, peer_torch, "float32").out
    for (name_a, of_a), (name_b, of_b), (name_c, of_c) in itertools.product(LAYOUTS.items(), repeat=3):
        for transpose_a, transpose_b in ((False, False), (True, True)) if name_c == "rows" else ((False, False),):
            out = of_c(c.copy())
            laid_a, laid_b = of_a(a.T if transpose_a else a), of_b(b.T if transpose_b else b)
            returned = blublas.gemm(
                laid_a, laid_b, out, alpha=0.7, beta=-1.3, transpose_a=transpose_a, transpose_b=transpose_b
            )
            assert returned is out
            assert_as_good_as(out, theirs, truth, "float32", f"{name_a} {name_b} {name_c}")
            if out.base is not None and name_c in ("padded_rows", "spread"):
                assert np.isnan(out.base).sum() == out.base.size - out.size  # nothing beside the view was written


def test_transposes(kernel: str, rng: np.random.Generator, peer_torch: Any) -> None:
    a, b = normal(rng, 29, 41), normal(rng, 41, 67)
    for transpose_a, transpose_b in itertools.product((False, True), repeat=2):
        ours = blublas.gemm(
            np.ascontiguousarray(a.T) if transpose_a else a,
            np.ascontiguousarray(b.T) if transpose_b else b,
            transpose_a=transpose_a,
            transpose_b=transpose_b,
        )
        check(Case(a, b), ours, peer_torch, "float32")


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_any_strides(data: st.DataObject) -> None:
    """Any slice of any transposed array is read and written in place, and nothing else is."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    m, n, k = (data.draw(st.integers(1, 40), label=name) for name in "mnk")

    def matrix(rows: int, cols: int, written: bool = False) -> Array:
        step = st.sampled_from([1, 1, 2, 3, -1, -2])
        row_step, col_step = data.draw(step), data.draw(step)
        base = normal(rng, rows * abs(row_step), cols * abs(col_step))
        if data.draw(st.booleans()):
            base = np.asfortranarray(base)
        if not written and data.draw(st.integers(0, 5)) == 0:
            base = np.broadcast_to(base[:1], base.shape)
        return base[::row_step, ::col_step]

    a, b, c = matrix(m, k), matrix(k, n), matrix(m, n, written=True)
    whole = c
    while isinstance(whole.base, np.ndarray):
        whole = whole.base
    before = whole.copy()
    case = Case(a.copy(), b.copy(), c.copy(), beta=2.0)
    blublas.gemm(a, b, c, beta=2.0)
    truth = exact(case).out
    # An exact sum of k products of normal numbers, rounded once per addition: the textbook's bound, which no order of
    # summation exceeds.
    magnitude = np.abs(case.a.astype(np.float64)) @ np.abs(case.b.astype(np.float64)) + 2 * np.abs(case.c)
    assert np.all(np.abs(c - truth) <= (k + 2) * 2.0**-24 * magnitude)
    touched = c.copy()
    c[...] = case.c
    assert np.array_equal(whole, before)
    c[...] = touched


def test_scalars(kernel: str, rng: np.random.Generator, peer_torch: Any) -> None:
    a, b, c = normal(rng, 33, 40), normal(rng, 40, 35), normal(rng, 33, 35)
    for alpha, beta in itertools.product([0.0, 1.0, -1.0, 0.37], repeat=2):
        out = c.copy()
        blublas.gemm(a, b, out, alpha=alpha, beta=beta)
        check(Case(a, b, c, alpha=alpha, beta=beta), out, peer_torch, "float32", f"{alpha} {beta}")


def test_zero_beta_never_reads(kernel: str, rng: np.random.Generator) -> None:
    for m, n, k in [(1, 7, 9), (14, 32, 8), (15, 70, 600), (5, 5, 0)]:
        out = blublas.gemm(normal(rng, m, k), normal(rng, k, n), poisoned(m, n), alpha=0.5)
        assert np.isfinite(out).all()


BATCHES = [
    ((3,), (3,)),
    ((3,), ()),
    ((), (4,)),
    ((2, 3), (2, 3)),
    ((2, 1), (1, 3)),
    ((1,), (5,)),
    ((0,), (0,)),
    ((2, 1, 3), (4, 1)),
]


@pytest.mark.parametrize("batches", BATCHES, ids=str)
def test_batches(batches: tuple[tuple[int, ...], tuple[int, ...]], rng: np.random.Generator, peer_torch: Any) -> None:
    batch_a, batch_b = batches
    for m, n, k in [(5, 9, 7), (33, 40, 17), (1, 20, 30), (150, 130, 140)]:
        a, b = normal(rng, *batch_a, m, k), normal(rng, *batch_b, k, n)
        check(Case(a, b), blublas.gemm(a, b), peer_torch, "float32")


def test_batch_of_heads(rng: np.random.Generator, peer_torch: Any) -> None:
    """[B, T, H, D] seen as [B, H, T, D]: no single stride, so it goes by pointers, output included."""
    query, key = (normal(rng, 2, 37, 3, 16).transpose(0, 2, 1, 3) for _ in range(2))
    check(Case(query, key.swapaxes(-1, -2)), blublas.gemm(query, key, transpose_b=True), peer_torch, "float32")
    weights = normal(rng, 2, 3, 37, 37)
    whole = poisoned(2, 37, 3, 16)
    blublas.gemm(weights, key, whole.transpose(0, 2, 1, 3))
    check(Case(weights, key), whole.transpose(0, 2, 1, 3), peer_torch, "float32")


def test_batch_layouts_of_every_operand(rng: np.random.Generator, peer_torch: Any) -> None:
    """Batch axes that no native call walks at once, for the operands that have no pointers."""
    batch, m, n, k = (2, 3), 6, 10, 8

    def swapped(*core: int) -> Array:
        return np.moveaxis(normal(rng, *core, *batch[::-1]), (-1, -2), (0, 1)).copy(order="K")

    a, b, c = swapped(m, k), swapped(k, n), swapped(m, n)
    bias, residual = normal(rng, 3, n), normal(rng, 2, 1, m, n)
    out = c.copy(order="K")
    preactivation = np.full_like(c, np.nan)
    column_sum = np.full((3, 2, n), np.nan, np.float32).swapaxes(0, 1)
    case = Case(a, b, c, beta=0.5, bias=bias, activation="gelu_erf", residual=residual)
    blublas.gemm(
        *(a, b, out),
        beta=0.5,
        bias=bias,
        activation="gelu_erf",
        preactivation=preactivation,
        residual=residual,
        column_sum=column_sum,
    )
    truth, theirs = exact(case), peer(case, peer_torch, "float32")
    assert_as_good_as(out, theirs.out, truth.out, "float32")
    assert_as_good_as(preactivation, theirs.preactivation, truth.preactivation, "float32")
    assert_as_good_as(column_sum, theirs.column_sum, truth.column_sum, "float32")


@pytest.mark.torch
@pytest.mark.parametrize("out_dtype", ["bfloat16", "float32"])
def test_bfloat16(kernel: str, out_dtype: str, rng: np.random.Generator, torch: Any) -> None:
    for m, n, k in [(1, 1, 1), (3, 40, 65), (29, 67, 31), (100, 33, 2000), (14, 32, 0), (2, 3, 4096), (40, 1, 77)]:
        for transposed in (False, True):
            a, b = (bfloat16_values(normal(rng, *shape)) for shape in ((m, k), (k, n)))
            tensor_a, tensor_b = (torch.from_numpy(x.copy()).bfloat16() for x in (a, b))
            out = torch.full((m, n), float("nan"), dtype=getattr(torch, out_dtype))
            left = tensor_a.T.contiguous() if transposed else tensor_a
            assert blublas.gemm(left, tensor_b, out, transpose_a=transposed) is out
            # The peer sums in float32 and rounds once to out's dtype, as ours has to.
            theirs = (tensor_a.float() @ tensor_b.float()).to(out.dtype).double().numpy()
            assert_as_good_as(out.double().numpy(), theirs, exact(Case(a, b)).out, out_dtype, f"{m} {n} {k}")


@pytest.mark.torch
def test_bfloat16_returns_float32(torch: Any) -> None:
    out = blublas.gemm(torch.ones(2, 3, dtype=torch.bfloat16), torch.ones(3, 4, dtype=torch.bfloat16))
    assert isinstance(out, np.ndarray)
    assert out.dtype == np.float32
    assert np.array_equal(out, np.full((2, 4), 3))


@pytest.mark.torch
def test_dlpack_shares_memory(torch: Any, rng: np.random.Generator) -> None:
    a, b = torch.randn(5, 7), torch.randn(9, 7).double().float()
    out = torch.zeros(12, 5)
    returned = blublas.gemm(a, b.T, out.T[:, 3:])
    assert returned.data_ptr() == out[3:].data_ptr()
    assert torch.equal(out[:3], torch.zeros(3, 5))
    torch.testing.assert_close(out[3:].T, a @ b.T)
    mixed = np.empty((5, 9))
    assert blublas.gemm(a.double(), b.double().numpy().T, mixed) is mixed
    assert np.allclose(mixed, (a.double() @ b.double().T).numpy(), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("m", [1, 14, 40])
def test_special_values(kernel: str, m: int, rng: np.random.Generator) -> None:
    n, k = 37, 21
    a, b = normal(rng, m, k), normal(rng, k, n)
    for value in (np.nan, np.inf, -np.inf):
        for spot in [(0, 0), (m - 1, k - 1)]:
            bad = a.copy()
            bad[spot] = value
            with np.errstate(invalid="ignore"):
                truth = bad.astype(np.float64) @ b
            ours = blublas.gemm(bad, b)
            assert np.array_equal(np.isnan(ours), np.isnan(truth))
            assert np.array_equal(ours[np.isinf(truth)], truth[np.isinf(truth)])
            assert np.isfinite(ours[np.isfinite(truth)]).all()
    bad = b.copy()
    bad[3, 5] = np.nan
    assert np.array_equal(np.isnan(blublas.gemm(a, bad)), np.tile(np.arange(n) == 5, (m, 1)))
    # Inf * 0 is NaN, also where alpha is 0: IEEE says so, and a product that is skipped would hide it.
    assert np.isnan(blublas.gemm(np.full((m, k), np.inf, np.float32), np.zeros((k, n), np.float32))).all()


def test_overflow_and_denormals(kernel: str) -> None:
    big = np.full((15, 3), 1e38, np.float32)
    assert np.all(np.isposinf(blublas.gemm(big, np.full((3, 33), 2, np.float32))))
    tiny = np.full((15, 3), 2.0**-130, np.float32)  # a denormal
    assert np.array_equal(blublas.gemm(tiny, np.ones((3, 33), np.float32)), np.full((15, 33), 3 * 2.0**-130))
    half = blublas.gemm(np.full((15, 1), 2.0**-100, np.float32), np.full((1, 33), 2.0**-40, np.float32))
    assert np.array_equal(half, np.full((15, 33), 2.0**-140, np.float32))


def test_negative_zero(kernel: str) -> None:
    """The product itself starts from +0, so it can be +0 where all terms are -0; what is added to it keeps its sign."""
    out = np.full((3, 5), -0.0, np.float32)
    blublas.gemm(np.ones((3, 2), np.float32), np.zeros((2, 5), np.float32), out)
    assert not np.signbit(out).any()
    assert np.array_equal(out, np.zeros((3, 5)))
    one = blublas.gemm(np.full((3, 1), -1, np.float32), np.full((1, 5), 2.0**-149, np.float32), alpha=1.0)
    assert np.array_equal(one, np.full((3, 5), -(2.0**-149), np.float32))
