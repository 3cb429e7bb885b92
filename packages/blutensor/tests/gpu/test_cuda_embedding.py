"""embedding on the GPU: gathering rows, and the deterministic sum of their gradients."""

from __future__ import annotations

import numpy as np
import pytest
from gpu_compare import EPSILON, exact, rounded, same_bits

import blutensor as bt
from blutensor._operators import private

backward, backward_ = private("embedding_backward"), private("embedding_backward_")
FLOATS = ["float32", "bfloat16", "float16", "float64"]


def some_ids(count: int, rows: int, kind: str) -> np.ndarray:
    """Ids as text has them ("zipf"), all alike, in order, or spread evenly."""
    rng = np.random.default_rng(7)
    if kind == "zipf":
        return np.minimum(rng.zipf(1.2, count) - 1, rows - 1)
    if kind == "one":
        return np.full(count, rows - 1)
    if kind == "order":
        return np.arange(count) % rows
    return rng.integers(0, rows, count)


@pytest.mark.parametrize("dtype", [*FLOATS, "int64", "int32", "uint8", "bool"])
@pytest.mark.parametrize("columns", [1, 3, 64, 768])
def test_forward(columns: int, dtype: str) -> None:
    rng = np.random.default_rng(1)
    table = bt.asarray(rng.integers(0, 2, (50, columns)) if dtype == "bool" else rng.integers(0, 99, (50, columns)))
    table = table.astype(dtype)
    ids = bt.asarray(rng.integers(0, 50, (6, 7)))
    for i in (ids, ids.astype("int32")):
        got = bt.embedding(i.cuda(), table.cuda())
        np.testing.assert_array_equal(exact(got), exact(bt.embedding(i, table)))
    turned = bt.embedding(ids.cuda().T, table.T.contiguous().cuda().T)
    np.testing.assert_array_equal(exact(turned), exact(bt.embedding(ids.T, table)))


@pytest.mark.parametrize("kind", ["zipf", "one", "order", "even"])
@pytest.mark.parametrize(
    ("count", "rows"), [(1, 1), (33, 3), (1000, 257), (5000, 50304), (20000, 50304), (300, 90000), (70, 3000000)]
)
def test_backward(count: int, rows: int, kind: str) -> None:
    columns = 1 if rows > 100000 else 40
    ids = some_ids(count, rows, kind)
    rng = np.random.default_rng(2)
    for dtype, buffer in (("float32", "float32"), ("bfloat16", "float32"), ("bfloat16", "bfloat16")):
        grad = rounded(rng.standard_normal((count, columns)), dtype)
        want = np.zeros((rows, columns))
        np.add.at(want, ids, exact(grad))
        largest = np.zeros((rows, columns))
        np.add.at(largest, ids, np.abs(exact(grad)))
        # A sum in runs of 16: at most 16 + n / 16 roundings follow one another.
        occurs = np.bincount(ids).max()
        bound = (largest * EPSILON["float32"] * (16 + occurs / 16)).max() + EPSILON[buffer] * np.abs(want).max()
        target = bt.full((rows, columns), 3.0, dtype=buffer, device="cuda")
        device_ids = bt.asarray(ids.astype(np.int32 if count % 2 else np.int64)).cuda()
        backward_(target, grad.cuda(), device_ids)
        assert np.abs(exact(target) - want).max() <= bound
        backward_(target, grad.cuda(), device_ids, True)
        assert np.abs(exact(target) - 2 * want).max() <= 4 * bound


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("columns", [1, 7, 8, 769, 2048])
def test_columns(columns: int, dtype: str) -> None:
    ids = some_ids(500, 100, "zipf")
    grad = rounded(np.random.default_rng(3).standard_normal((500, columns)), dtype)
    want = np.zeros((100, columns))
    np.add.at(want, ids, exact(grad))
    got = backward(grad.cuda(), bt.asarray(ids).cuda(), 100)
    assert np.abs(exact(got) - want).max() <= EPSILON[dtype] * np.abs(want).max() * (
        40 if "64" in dtype or "32" in dtype else 1
    )
    wide = bt.full((200, 2 * columns), 1.0, dtype=dtype, device="cuda")
    backward_(wide[::2, ::2], grad.cuda(), bt.asarray(ids).cuda())
    assert same_bits(wide[::2, ::2].contiguous(), got)
    assert (exact(wide)[1::2] == 1).all()
    assert (exact(wide)[:, 1::2] == 1).all()


def test_empty() -> None:
    grad, ids = bt.zeros((0, 4), device="cuda"), bt.zeros((0,), dtype="int32", device="cuda")
    assert exact(backward(grad, ids, 3)).tolist() == [[0.0] * 4] * 3
    assert bt.embedding(ids, bt.zeros((5, 4), device="cuda")).shape == (0, 4)


@pytest.mark.parametrize("bad", [50, -1, 1 << 40])
def test_id_out_of_range_is_an_index_error(bad: int) -> None:
    ids = bt.asarray([3, bad, 3], dtype="int64", device="cuda")
    y = bt.embedding(ids, bt.ones((50, 4), device="cuda"))
    with pytest.raises(IndexError, match=rf"\[embedding\] expected ids from 0 to 49, got {bad} on cuda:0"):
        y.cpu()
    target = bt.zeros((50, 4), device="cuda")
    backward_(target, bt.ones((3, 4), device="cuda"), ids)
    with pytest.raises(IndexError, match=rf"got {bad}"):
        target.cpu()
    assert exact(target)[3].tolist() == [2.0] * 4  # what was right is there; and the report is gone


@pytest.mark.parametrize("bad", [40, 49, 50])
def test_rows_behind_num_ids_are_padding(bad: int) -> None:
    table = bt.ones((50, 4), device="cuda")
    assert bt.embedding(bt.asarray([39, 0], device="cuda"), table, 40).cpu().tolist() == [[1.0] * 4] * 2
    y = bt.embedding(bt.asarray([3, bad], device="cuda"), table, 40)
    with pytest.raises(IndexError, match=rf"\[embedding\] expected ids from 0 to 39, got {bad} on cuda:0"):
        y.cpu()


def test_same_bits_again() -> None:
    ids = bt.asarray(some_ids(20000, 50304, "zipf").astype(np.int32)).cuda()
    grad = rounded(np.random.default_rng(1).standard_normal((20000, 64)), "bfloat16").cuda()
    target = bt.zeros((50304, 64), device="cuda")
    backward_(target, grad, ids)
    first = target.cpu()
    for _ in range(100):
        backward_(target, grad, ids)
        assert same_bits(target, first)
