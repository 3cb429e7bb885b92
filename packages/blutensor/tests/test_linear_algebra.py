"""einsum, tensordot, vecdot, outer and matmul's broadcasting against NumPy, with gradients."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import blutensor as bt

SIZES = {"i": 2, "j": 3, "k": 4, "l": 1, "b": 2, "c": 5}


def normal(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def tensors(*arrays: np.ndarray) -> list[bt.Tensor]:
    return [bt.asarray(a).requires_grad_() for a in arrays]


EQUATIONS = [
    "ij,jk->ik", "ij,jk", "ij,kj->ki", "bij,bjk->bik", "ij->ji", "ij->", "ij->j", "ii->i", "ii", "iij->ij", "ij,ij->ij",
    "ij,ij->", "i,j->ij", "i,i->i", "ij,j->i", "ijk,jil->kl", "ij,jk,kc->ic", "ij,jk,kc,ci->", "bij,bkj->bik",
    "...ij,...jk->...ik", "i...->...", "...i,...i", "...,...->...", "ij,k->ikj", "l,i->il", "jl,kl->jk",
    "ikj,kjb->bi", "i j , j k -> i k", "kb,bb->k", "bb,bb->b", "ij,ij,ij->i",
]  # fmt: skip


@pytest.mark.parametrize("equation", EQUATIONS)
def test_einsum(equation: str) -> None:
    names = equation.replace(" ", "").split("->")[0].split(",")
    inner = [(2, 1), (2, 3)]
    arrays = [
        normal(*(n for c in name.replace("...", ".") for n in (inner[k % 2] if c == "." else (SIZES[c],))), seed=k)
        for k, name in enumerate(names)
    ]
    operands = tensors(*arrays)
    got, expected = bt.einsum(equation, *operands), np.einsum(equation, *arrays)
    assert got.shape == expected.shape
    # Sums of at most 120 products of normal numbers in another order: some roundings of their partial sums.
    np.testing.assert_allclose(got.detach().numpy(), expected, rtol=1e-12, atol=1e-12)
    bt.gradcheck(lambda *t: bt.einsum(equation, *t), operands)


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_einsum_of_anything(data: st.DataObject) -> None:
    letters = "ijklb"
    names = data.draw(st.lists(st.text(letters, max_size=4), min_size=1, max_size=4))
    used = sorted(set("".join(names)))
    result = "".join(data.draw(st.permutations(used))[: data.draw(st.integers(0, len(used)))])
    equation = ",".join(names) + "->" + result
    arrays = [normal(*(SIZES[c] for c in name), seed=k) for k, name in enumerate(names)]
    got = bt.einsum(equation, *(bt.asarray(a) for a in arrays))
    expected = np.einsum(equation, *arrays)
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-11, atol=1e-11)


def test_einsum_pairs_operands_cheaply() -> None:
    """Left to right this would make a matrix of 4 million numbers."""
    a, b, c = (bt.ones((1, 2000)), bt.ones((2000, 2000)), bt.ones((2000, 1)))
    before = bt.einsum("ij,jk,kl->il", a, b, c)
    assert before.tolist() == [[4e6]]


def test_einsum_of_integers_and_empties() -> None:
    a = np.arange(6).reshape(2, 3)
    got = bt.einsum("ij,kj->ik", bt.asarray(a), bt.asarray(a))
    assert got.dtype is bt.int64
    assert got.tolist() == (a @ a.T).tolist()
    assert bt.einsum("ij->i", bt.asarray(a)).tolist() == [3, 12]
    assert bt.einsum("ij,jk->ik", bt.zeros((2, 0)), bt.zeros((0, 3))).tolist() == [[0, 0, 0]] * 2
    assert bt.einsum(",->", bt.asarray(2.0), bt.asarray(3.0)).item() == 6


@pytest.mark.parametrize(
    ("equation", "shapes", "message"),
    [
        ("ij,jk->ik", [(2, 3)], "subscripts of 1 operands"),
        ("ij->i", [(2,)], "2 axes|letters"),
        ("ij,jk->ik", [(2, 3), (4, 5)], "equal sizes for 'j'"),
        ("ii->i", [(2, 3)], "equal sizes for 'i'"),
        ("ij->ik", [(2, 3)], "operands' and occur once"),
        ("ij->ii", [(2, 3)], "occur once"),
        ("i1->i", [(2, 3)], "letters"),
        ("...i->i", [(2, 3)], "ellipsis in the result"),
        ("i......", [(2, 3)], "letters|ellipsis"),
    ],
)
def test_wrong_subscripts(equation: str, shapes: list[tuple[int, ...]], message: str) -> None:
    with pytest.raises(bt.ShapeError, match=message):
        bt.einsum(equation, *(bt.zeros(s) for s in shapes))


@pytest.mark.parametrize(
    ("a", "b"),
    [((4,), (4,)), ((3, 4), (4,)), ((4,), (4, 3)), ((2, 3, 4), (4, 5)), ((2, 1, 3, 4), (5, 4, 2)), ((4,), (2, 4, 3)),
     ((5, 1, 3, 4), (4,)), ((0, 3, 4), (4, 2)), ((2, 3, 0), (2, 0, 4)), ((1, 1), (1, 1))],
)  # fmt: skip
def test_matmul(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    left, right = normal(*a), normal(*b, seed=2)
    operands = tensors(left, right)
    got = operands[0] @ operands[1]
    np.testing.assert_allclose(got.detach().numpy(), left @ right, rtol=1e-12, atol=1e-13)
    if got.size:
        bt.gradcheck(bt.matmul, operands)


def test_tensordot() -> None:
    a, b = normal(2, 3, 4), normal(4, 3, 5, seed=2)
    for axes in (0, 1, ((1, 2), (1, 0)), ([-1], [0]), ((), ())):
        operands = tensors(a, b)
        got = bt.tensordot(*operands, axes=axes)  # type: ignore[arg-type]
        np.testing.assert_allclose(got.detach().numpy(), np.tensordot(a, b, axes), rtol=1e-12, atol=1e-13)  # type: ignore[arg-type]
    bt.gradcheck(lambda x, y: bt.tensordot(x, y, axes=((1, 2), (1, 0))), tensors(a, b))
    with pytest.raises(bt.ShapeError, match="equal sizes"):
        bt.tensordot(bt.asarray(a), bt.asarray(b), axes=2)
    with pytest.raises(bt.ShapeError, match="at most 3 axes"):
        bt.tensordot(bt.asarray(a), bt.asarray(b), axes=4)


def test_vecdot_outer_and_transpose() -> None:
    a, b = normal(2, 3, 4), normal(3, 4, seed=2)
    for axis in (-1, -2):
        got = bt.vecdot(bt.asarray(a), bt.asarray(b), axis=axis)
        np.testing.assert_allclose(got.numpy(), (a * b).sum(axis), rtol=1e-12)
    bt.gradcheck(lambda x, y: bt.vecdot(x, y, axis=-2), tensors(a, b))
    assert bt.vecdot(bt.asarray([1, 2]), bt.asarray([3, 4])).item() == 11
    with pytest.raises(bt.ShapeError, match="one size along axis -1"):
        bt.vecdot(bt.zeros(3), bt.zeros(4))
    bt.gradcheck(bt.outer, tensors(normal(3), normal(2, seed=2)))
    np.testing.assert_array_equal(bt.outer(bt.asarray([1, 2]), bt.asarray([3, 4])).numpy(), [[3, 4], [6, 8]])
    with pytest.raises(bt.ShapeError, match="1-d"):
        bt.outer(bt.zeros((2, 2)), bt.zeros(2))
    assert bt.matrix_transpose(bt.asarray(a)).shape == (2, 4, 3)
    with pytest.raises(bt.ShapeError, match="at least 2 axes"):
        bt.matrix_transpose(bt.zeros(3))


def test_captured_with_the_same_bits() -> None:
    q, k, v = (bt.asarray(normal(2, 3, 5, 4, seed=s).astype(np.float32)) for s in range(3))

    def attention(q: bt.Tensor, k: bt.Tensor, v: bt.Tensor) -> Any:
        weights = bt.softmax(bt.einsum("bhid,bhjd->bhij", q, k), -1)
        return bt.einsum("bhij,bhjd->bihd", weights, v)

    captured = bt.capture(attention)
    for _ in range(4):
        np.testing.assert_array_equal(captured(q, k, v).numpy(), attention(q, k, v).numpy())


# ---- operands of different dtypes --------------------------------------------------------------------------------

PRODUCTS = {
    "matmul": (lambda a, b: bt.matmul(a, b), np.matmul, (2, 3), (3, 4)),
    "@": (lambda a, b: a @ b, np.matmul, (2, 3), (3, 4)),
    "@ batches": (lambda a, b: a @ b, np.matmul, (2, 2, 3), (3, 4)),
    "@ vectors": (lambda a, b: a @ b, np.matmul, (3,), (3,)),
    "einsum": (lambda a, b: bt.einsum("ij,jk->ki", a, b), lambda a, b: (a @ b).T, (2, 3), (3, 4)),
    "einsum of a sum": (lambda a, b: bt.einsum("ij,k->k", a, b), lambda a, b: a.sum() * b, (2, 3), (4,)),
    "tensordot": (lambda a, b: bt.tensordot(a, b, axes=1), lambda a, b: np.tensordot(a, b, 1), (2, 3), (3, 4)),
    "vecdot": (lambda a, b: bt.vecdot(a, b), lambda a, b: (a * b).sum(-1), (2, 3), (2, 3)),
}
NUMBERS = ["float32", "float64", "float16", "bfloat16", "int8", "int16", "int32", "int64", "uint8", "uint32", "uint64"]


@pytest.mark.parametrize("name", PRODUCTS)
def test_dtypes_meet_as_in_elementwise_operators(name: str) -> None:
    ours, exact, *shapes = PRODUCTS[name]
    a, b = (np.random.default_rng(k).integers(0, 4, shape) for k, shape in enumerate(shapes))
    for first, second in itertools.product(NUMBERS, NUMBERS):
        x, y = bt.asarray(a, dtype=first), bt.asarray(b, dtype=second)
        if "uint64" in (first, second) and {first, second} & {"int8", "int16", "int32", "int64"}:
            with pytest.raises(bt.DTypeError, match="uint64"):
                ours(x, y)
            continue
        got = ours(x, y)
        assert got.dtype is (x.reshape(-1)[:1] * y.reshape(-1)[:1]).dtype
        assert got.tolist() == exact(a, b).tolist()  # small integers are exact in all of them


@pytest.mark.parametrize("name", PRODUCTS)
def test_gradients_come_back_in_the_operands_dtypes(name: str) -> None:
    ours, _, *shapes = PRODUCTS[name]
    a, b = (normal(*shape, seed=k) for k, shape in enumerate(shapes))
    narrow = bt.asarray(a.astype(np.float32)).requires_grad_()
    wide = bt.asarray(b).requires_grad_()
    exact = bt.asarray(narrow.detach().numpy().astype(np.float64)).requires_grad_()
    result, reference = ours(narrow, wide), ours(exact, bt.asarray(b))
    assert result.dtype is bt.float64
    assert result.tolist() == reference.tolist()  # computed in float64, not in float32
    for y in (result, reference):
        bt.sum(y * y).backward()
    assert narrow.grad is not None
    assert wide.grad is not None
    assert exact.grad is not None
    assert (narrow.grad.dtype, wide.grad.dtype) == (bt.float32, bt.float64)
    assert narrow.grad.tolist() == exact.grad.astype("float32").tolist()  # rounded once


def test_what_no_product_takes() -> None:
    with pytest.raises(bt.DTypeError, match=r"\[matmul\] expected a blutensor.Tensor for 'x2', got ndarray"):
        bt.matmul(bt.ones((2, 2)), np.ones((2, 2)))  # type: ignore[arg-type]
    with pytest.raises(bt.DTypeError, match=r"\[einsum\] expected a blutensor.Tensor for 'x2', got ndarray"):
        bt.einsum("i,i->", bt.ones(2), np.zeros(2))  # type: ignore[arg-type]
    with pytest.raises(bt.DTypeError, match=r"\[matmul\] expected numbers"):
        bt.ones((2, 2), dtype="bool") @ bt.ones((2, 2), dtype="bool")


def test_reflected_product() -> None:
    x, y = bt.asarray([[1, 2], [3, 4]], dtype="int8"), bt.asarray([[5, 6], [7, 8]])
    assert y.__rmatmul__(x).tolist() == [[19, 22], [43, 50]]
    assert y.__rmatmul__(x).dtype is bt.int64
