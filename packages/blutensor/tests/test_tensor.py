"""Tensor: description, values on the host, arithmetic with numbers, copies, writes in place."""

from __future__ import annotations

import copy
import math
import pickle
import threading

import numpy as np
import pytest
from dtype_names import DTYPES

import blutensor as bt
from blutensor import nn


def test_description() -> None:
    x = bt.zeros((2, 3, 4), dtype=bt.int32)
    assert (x.shape, x.strides, x.ndim, x.size, x.nbytes) == ((2, 3, 4), (12, 4, 1), 3, 24, 96)
    assert x.dtype is bt.int32
    assert x.device == "cpu"
    assert x.is_contiguous()
    assert x.is_leaf
    assert not x.requires_grad
    assert x.grad_fn is None
    assert len(x) == 2
    turned = x.permute_dims(2, 0, 1)
    assert turned.shape == (4, 2, 3)
    assert turned.strides == (1, 12, 4)
    assert not turned.is_contiguous()
    assert turned.storage_id == x.storage_id
    assert turned.contiguous().is_contiguous()


def test_tensor_cannot_be_called() -> None:
    with pytest.raises(TypeError, match="asarray"):
        bt.Tensor()


@pytest.mark.parametrize("dtype", DTYPES)
def test_values_of_every_dtype(dtype: str) -> None:
    values = [0.0, 1.0, 1.0] if dtype == "bool" else [0.0, 1.0, 2.0]
    x = bt.asarray(values, dtype=dtype)
    assert x.dtype.name == dtype
    assert x.nbytes == 3 * x.dtype.itemsize
    assert [float(v) for v in x.tolist()] == values
    assert float(x[1]) == 1.0
    assert repr(x).startswith("Tensor([")
    assert dtype in repr(x)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0, 2), (2, 3), (1, 1, 1, 1, 1, 1, 1, 2)])
def test_creation(dtype: str, shape: tuple[int, ...]) -> None:
    for made, value in (
        (bt.zeros(shape, dtype=dtype), 0),
        (bt.ones(shape, dtype=dtype), 1),
        (bt.full(shape, 1, dtype=dtype), 1),
    ):
        assert made.shape == shape
        assert made.dtype.name == dtype
        assert all(v == value for v in made.reshape(-1).tolist())
    assert bt.empty_like(bt.zeros(shape, dtype=dtype)).shape == shape
    assert bt.zeros_like(bt.ones(shape, dtype=dtype)).dtype.name == dtype
    assert bt.ones_like(bt.zeros(shape), dtype=dtype).dtype.name == dtype
    assert bt.full_like(bt.zeros(shape), 1).dtype is bt.float32


def test_dtype_of_python_values() -> None:
    assert bt.full((), 1.5).dtype is bt.float32
    assert bt.full((), 1).dtype is bt.int64
    assert bt.full((), True).dtype is bt.bool_
    assert bt.asarray([1.5, 2]).dtype is bt.float32
    assert bt.asarray([1, 2]).dtype is bt.int64
    assert bt.asarray(True).dtype is bt.bool_
    assert bt.arange(3).tolist() == [0, 1, 2]
    assert bt.arange(1.0, 2.0, 0.5).dtype is bt.float32
    assert bt.arange(5, 0, -2).tolist() == [5, 3, 1]


def test_numbers_take_the_dtype_of_the_tensor() -> None:
    f, i, b = bt.ones(2, dtype="float64"), bt.ones(2, dtype="int32"), bt.ones(2, dtype="bool")
    assert (f + 1).dtype is bt.float64
    assert (i + 1).dtype is bt.int32
    assert (i + 1.5).dtype is bt.float32
    assert (b + 1).dtype is bt.int64
    assert (1.5 * f).dtype is bt.float64
    assert (f * np.float32(2)).dtype is bt.float64
    assert (np.float32(2) * f).tolist() == [2.0, 2.0]
    assert (np.int64(2) * i).dtype is bt.int32


def test_arithmetic_agrees_with_numpy() -> None:
    a, b = np.array([1.5, -2.0, 3.0]), np.array([2.0, 0.5, -1.0])
    x, y = bt.asarray(a.copy()), bt.asarray(b.copy())
    for got, expected in (
        (x + y, a + b), (x - y, a - b), (x * y, a * b), (x / y, a / b), (abs(x), abs(a)), (-x, -a),
        (2 - x, 2 - a), (2 / x, 2 / a), (abs(x) ** y, np.abs(a) ** b), (2**y, 2**b), (1 + x, 1 + a),
        (x == y, a == b), (x != y, a != b), (x < y, a < b), (x <= y, a <= b), (x > y, a > b), (x >= y, a >= b),
    ):  # fmt: skip
        np.testing.assert_allclose(got.numpy(), expected, rtol=1e-15)
    np.testing.assert_allclose((x.reshape(1, 3) @ y.reshape(3, 1)).numpy(), [[a @ b]], rtol=1e-15)
    assert x.sum().item() == a.sum()
    assert x.mean().item() == pytest.approx(a.mean(), rel=1e-15)
    assert x.max().item() == 3.0


def test_conversions_to_python() -> None:
    x = bt.asarray(3)
    assert (int(x), float(x), bool(x), range(5)[x]) == (3, 3.0, True, 3)
    assert [row.tolist() for row in bt.asarray([[1, 2], [3, 4]])] == [[1, 2], [3, 4]]
    assert math.isnan(bt.asarray(math.nan).item())
    with pytest.raises(ValueError, match=r"one element, got shape \(2,\)"):
        bool(bt.zeros(2))
    with pytest.raises(TypeError, match="integer"):
        bt.asarray(1.5).__index__()
    with pytest.raises(TypeError, match="rank 0"):
        len(x)


def test_transposes() -> None:
    x = bt.asarray(np.arange(24).reshape(2, 3, 4))
    np.testing.assert_array_equal(x.mT.numpy(), np.arange(24).reshape(2, 3, 4).swapaxes(1, 2))
    np.testing.assert_array_equal(x.transpose(0, -1).numpy(), np.arange(24).reshape(2, 3, 4).swapaxes(0, 2))
    assert x[0].T.shape == (4, 3)
    for wrong in (lambda: x.T, lambda: x[0, 0].mT, lambda: x.transpose(0, 3)):
        with pytest.raises(ValueError, match="expected"):
            wrong()


def test_writes_in_place_count() -> None:
    x = bt.zeros((2, 3))
    view = x[1]
    before = x.version
    view.fill_(2.0)
    x.add_(bt.ones(3))
    x[0, 1:] = 7
    x[0, 0] = bt.asarray(5.0)
    x[1] = np.array([1.0, 2.0, 3.0])
    assert x.tolist() == [[5, 7, 7], [1, 2, 3]]
    assert x.version == before + 5
    assert view.version == x.version
    assert x.zero_().tolist() == [[0] * 3] * 2
    assert x.copy_(bt.asarray([1, 2, 3])).tolist() == [[1, 2, 3]] * 2


def test_asarray_copies_when_asked() -> None:
    values = np.zeros(3)
    assert bt.asarray(values).numpy().ctypes.data == values.ctypes.data
    assert bt.asarray(values, copy=False).numpy().ctypes.data == values.ctypes.data
    assert bt.asarray(values, copy=True).numpy().ctypes.data != values.ctypes.data
    x = bt.asarray(values)
    assert bt.asarray(x) is x
    assert bt.asarray(x, copy=True).storage_id != x.storage_id
    assert bt.asarray(x, dtype="float32").dtype is bt.float32
    for source, dtype in ((values, "float32"), ([1.0], None), (x, "int32"), (values, "bfloat16")):
        with pytest.raises(ValueError, match="a copy is needed"):
            bt.asarray(source, dtype=dtype, copy=False)


def test_casts() -> None:
    x = bt.asarray([1.7, -2.2])
    assert x.astype("float32") is x
    assert x.astype(bt.int64).tolist() == [1, -2]
    assert x.astype(np.float64).dtype is bt.float64
    assert x.astype("bfloat16").astype("float32").tolist() == pytest.approx([1.7, -2.2], rel=2**-8)


@pytest.mark.parametrize("make", [copy.copy, copy.deepcopy, lambda t: pickle.loads(pickle.dumps(t))])
def test_copies_do_not_share_memory(make: object) -> None:
    assert callable(make)
    x = bt.asarray(np.arange(6.0).reshape(2, 3)).permute_dims(1, 0)
    x.requires_grad = True
    for original in (x, nn.Parameter(bt.ones(2, dtype="bfloat16")), bt.asarray(3)):
        twin = make(original)
        assert type(twin) is type(original)
        assert twin.dtype is original.dtype
        assert twin.requires_grad == original.requires_grad
        assert twin.tolist() == original.tolist()
        assert twin.storage_id != original.storage_id
        del twin
        assert original.tolist() == original.tolist()
    with pytest.raises(ValueError, match="detach"):
        make(x * 2)


def test_a_module_can_be_copied() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    twin = copy.deepcopy(model)
    x = bt.ones((5, 3))
    assert twin(x).tolist() == model(x).tolist()
    with bt.no_grad():
        next(twin.parameters()).fill_(0.0)
    assert twin(x).tolist() != model(x).tolist()


def test_tensors_are_identities_in_sets() -> None:
    x, y = bt.zeros(2), bt.zeros(2)
    assert len({x, y, x}) == 2


def test_threads_have_their_own_modes_and_errors() -> None:
    seen = {}

    def other() -> None:
        seen["enabled"] = bt.is_grad_enabled()
        try:
            bt.zeros((2,)) + bt.zeros((3,))
        except ValueError as error:
            seen["message"] = str(error)

    with bt.no_grad():
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert seen["enabled"]
    assert "[add]" in seen["message"]


def test_many_threads_compute_at_once() -> None:
    results: list[float] = []

    def work(seed: int) -> None:
        x = bt.asarray(np.random.default_rng(seed).standard_normal((40, 40)))
        x.requires_grad = True
        for _ in range(20):
            y = bt.tanh(x @ x).sum()
            (gradient,) = bt.grad(y, x)
            assert gradient is not None
        results.append(seed)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [0, 1, 2, 3]


def test_formatting_and_comparing_with_what_is_no_number() -> None:
    loss = bt.asarray(1.25)
    assert f"{loss:.1f} {loss}" == f"1.2 {loss!s}"
    with pytest.raises(ValueError, match="one element"):
        format(bt.ones(3), ".2f")
    assert (loss == None) is False  # noqa: E711
    assert (loss != "text") is True
    with pytest.raises(TypeError, match=r"\[grad\] expected a tensor or None, got int"):
        loss.grad = 3  # type: ignore[assignment]


@pytest.mark.parametrize(("dtype", "value"), [("int8", 300), ("uint8", -1), ("int32", 2**31), ("bool", 2**70)])
def test_integers_that_a_dtype_does_not_hold_are_not_filled_in(dtype: str, value: int) -> None:
    x = bt.zeros(3, dtype=dtype)
    if dtype == "bool":
        x.fill_(value)
        assert x.numpy().all()
        return
    with pytest.raises(ValueError, match=str(value)):
        x.fill_(value)
    with pytest.raises(ValueError, match=str(value)):
        x[0] = value
    assert not x.numpy().any()
