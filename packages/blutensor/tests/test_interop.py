"""NumPy and DLPack both ways: shared memory, lifetimes, strides, read-only memory, byte order."""

from __future__ import annotations

import gc
import pickle
import weakref
from typing import Any

import numpy as np
import pytest
from dtype_names import NUMPY_DTYPES

import blualloc
import blutensor as bt


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 3, 4)])
def test_numpy_shares_memory_both_ways(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.ones(shape, dtype)
    tensor = bt.asarray(array)
    back = tensor.numpy()
    assert back.dtype == array.dtype
    assert back.shape == shape
    if array.size:
        assert np.shares_memory(array, back)
        array[...] = 0
        assert not back.any()


class Tracked(np.ndarray):
    """An array that can be watched: ndarray itself takes no weak references."""


def tracked(count: int) -> Tracked:
    """0, 1, ... in memory of its own."""
    array = Tracked(count, np.float64)
    array[...] = range(count)
    return array


def test_a_tensor_keeps_the_array_and_gives_it_back() -> None:
    array = tracked(6)
    alive = weakref.ref(array)
    tensor = bt.asarray(array)
    view = tensor[2:]
    del array, tensor
    gc.collect()
    assert alive() is not None
    assert view.tolist() == [2, 3, 4, 5]
    del view
    gc.collect()
    assert alive() is None


def test_an_array_keeps_the_tensor() -> None:
    before = blualloc.stats().live_bytes
    array = bt.full((1000,), 7.0).numpy()[10:20]
    gc.collect()
    other = bt.zeros(1000)
    assert array.tolist() == [7.0] * 10
    del array, other
    gc.collect()
    assert blualloc.stats().live_bytes == before


@pytest.mark.parametrize(
    "view",
    [
        lambda a: a[::-1], lambda a: a[::2], lambda a: a.T, lambda a: a[:, ::-2], lambda a: a[1:1],
        lambda a: np.broadcast_to(a[:, :1], (4, 9)), lambda a: a[::-1, ::-1].T, lambda a: a[2, 3],
    ],
)  # fmt: skip
def test_strides(view: Any) -> None:
    array = view(np.arange(24.0).reshape(4, 6))
    if not isinstance(array, np.ndarray):
        array = np.asarray(array)
    if array.flags.writeable:
        tensor = bt.asarray(array, copy=False)
        if array.size:
            assert tensor.strides == tuple(s // 8 for s in array.strides)
            assert np.shares_memory(tensor.numpy(), array)
    else:
        tensor = bt.asarray(array)
    np.testing.assert_array_equal(tensor.numpy(), array)
    np.testing.assert_array_equal((tensor + 1).numpy(), array + 1)
    np.testing.assert_array_equal(tensor.contiguous().numpy(), array)


def test_zero_strides_of_our_own() -> None:
    x = bt.broadcast_to(bt.asarray([1.0, 2.0]).reshape(2, 1), (2, 3))
    assert x.strides == (1, 0)
    np.testing.assert_array_equal(x.numpy(), [[1, 1, 1], [2, 2, 2]])
    np.testing.assert_array_equal(np.from_dlpack(x), x.numpy())


def test_memory_that_cannot_be_shared() -> None:
    read_only = np.arange(3.0)
    read_only.flags.writeable = False
    swapped = np.arange(3, dtype=np.dtype(np.float32).newbyteorder())
    odd = np.zeros(3, np.dtype([("tag", np.int8), ("value", np.float64)]))["value"]
    for array in (read_only, swapped, odd):
        with pytest.raises(ValueError, match="a copy is needed"):
            bt.asarray(array, copy=False)
        tensor = bt.asarray(array)
        np.testing.assert_array_equal(tensor.numpy(), array)
        assert not np.shares_memory(tensor.numpy(), array)
    with pytest.raises(ValueError, match=r"copy=True|does not export"):
        bt.from_dlpack(read_only)


@pytest.mark.parametrize(
    "value",
    [np.ones(2, np.complex64), np.array(["a"]), np.array([None]), np.ones(2, np.longdouble), "text", 1j, object()],
)
def test_values_without_a_counterpart(value: Any) -> None:
    with pytest.raises(TypeError, match=r"\[asarray\] expected (one of float32|real numbers)"):
        bt.asarray(value)


def test_numpy_protocol() -> None:
    x = bt.asarray([1.0, 2.0])
    assert np.asarray(x).dtype == np.float32
    assert np.shares_memory(np.asarray(x), x.numpy())
    assert np.asarray(x, dtype=np.float64).tolist() == [1.0, 2.0]
    assert not np.shares_memory(np.array(x, copy=True), x.numpy())
    with pytest.raises(ValueError, match="a copy is needed"):
        np.array(x, dtype=np.float64, copy=False)
    assert np.asarray(x.requires_grad_()).tolist() == [1.0, 2.0]
    with pytest.raises(bt.AutogradError, match="detach"):
        x.numpy()


def test_bfloat16_is_seen_as_its_bits() -> None:
    x = bt.asarray([1.0, -2.0], dtype="bfloat16")
    assert x.numpy().tolist() == [0x3F80, 0xC000]
    x.numpy()[0] = 0x4040
    assert x.tolist() == [3.0, -2.0]


def all_bfloat16() -> bt.Tensor:
    """Every bfloat16 but NaN, in a layout with strides."""
    x = bt.empty((2, 1 << 15), dtype="bfloat16")
    x.numpy()[...] = np.arange(1 << 16, dtype=np.uint16).reshape(2, -1)
    return x[:, :0x7F81].permute_dims(1, 0)


def test_bfloat16_goes_to_numpy_and_back() -> None:
    x = all_bfloat16()
    array = np.asarray(x)
    assert array.dtype == np.float32
    assert np.array_equal(array.ravel().view(np.uint32) >> 16, x.numpy().ravel())  # the same numbers
    for back in (bt.asarray(array, dtype="bfloat16"), bt.asarray(array).astype("bfloat16")):
        assert back.dtype is bt.bfloat16
        assert np.array_equal(back.numpy(), x.numpy())
    assert np.asarray(x, dtype=np.float64).tolist() == array.tolist()
    assert np.array(x).tolist() == array.tolist()
    assert np.asarray(bt.asarray([2.0, 3.0], dtype="bfloat16"), dtype=np.uint16).tolist() == [2, 3]
    with pytest.raises(bt.ShapeError, match="a copy is needed to go from bfloat16"):
        np.array(x, copy=False)
    assert pickle.loads(pickle.dumps(x)).tolist() == x.tolist()
    other = bt.zeros(x.shape, dtype="bfloat16")
    other.copy_(array)
    assert np.array_equal(other.numpy(), x.numpy())
    other[:] = np.zeros((), np.float16)
    other[...] = array
    assert np.array_equal(other.numpy(), x.numpy())


def test_ml_dtypes_bfloat16_is_known() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = all_bfloat16()
    shared = np.asarray(x, dtype=ml_dtypes.bfloat16)
    assert shared.dtype == ml_dtypes.bfloat16
    assert np.shares_memory(shared, x.numpy())
    assert np.array_equal(shared.astype(np.float32), np.asarray(x))
    back = bt.asarray(shared)
    assert back.dtype is bt.bfloat16
    assert np.shares_memory(back.numpy(), x.numpy())
    assert np.array_equal(back.numpy(), x.numpy())
    assert bt.asarray(shared, dtype="float32").tolist() == x.tolist()
    copied = bt.asarray(shared, copy=True)
    assert not np.shares_memory(copied.numpy(), x.numpy())
    assert np.array_equal(copied.numpy(), x.numpy())
    assert bt.zeros(2, dtype=ml_dtypes.bfloat16).dtype is bt.bfloat16
    assert bt.asarray(ml_dtypes.bfloat16(1.5)).item() == 1.5
    x = bt.zeros((3,))
    x[:] = np.array([1, 2, 3], ml_dtypes.bfloat16)
    assert x.tolist() == [1, 2, 3]


@pytest.mark.parametrize("dtype", ["float64", "int64", "uint64", "float16"])
def test_numbers_are_rounded_to_bfloat16_once(dtype: str) -> None:
    # 1 + 2^-8 + 2^-40 lies above the middle of two bfloat16; rounded to float32 first it would be the middle.
    values = {"float64": [1 + 2.0**-8 + 2.0**-40, -1e300, 3.0], "float16": [1 + 2.0**-8, 65504.0, 2.0**-24]}.get(
        dtype, [2**40 + 2**32 + 1, 257, 259]
    )
    array = np.array(values, dtype)
    exact = bt.asarray(array).astype("bfloat16").tolist()
    assert bt.asarray(array, dtype="bfloat16").tolist() == exact
    if dtype == "float64":
        assert exact[0] == 1 + 2.0**-7


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
def test_dlpack_with_numpy(dtype: str) -> None:
    x = bt.asarray(np.arange(6).reshape(2, 3).astype(dtype)).permute_dims(1, 0)
    array = np.from_dlpack(x)
    assert array.dtype == dtype
    assert np.shares_memory(array, x.numpy())
    np.testing.assert_array_equal(array, x.numpy())
    again = bt.from_dlpack(np.arange(6).astype(dtype)[::-2])
    assert again.tolist() == np.arange(6).astype(dtype)[::-2].tolist()


def test_dlpack_lifetimes() -> None:
    before = blualloc.stats().live_bytes
    array = np.from_dlpack(bt.full((100,), 3.0))
    gc.collect()
    assert array.sum() == 300
    capsule = bt.full((100,), 3.0).__dlpack__()  # nobody takes it
    del array, capsule
    gc.collect()
    assert blualloc.stats().live_bytes == before
    source = tracked(5)
    alive = weakref.ref(source)
    tensor = bt.from_dlpack(source)
    del source
    gc.collect()
    assert tensor.tolist() == [0, 1, 2, 3, 4]
    del tensor
    gc.collect()
    assert alive() is None


def test_a_capsule_that_dies_of_an_error_takes_its_memory_along() -> None:
    """Its destructor runs while the exception is on its way, which comes out as it was."""
    before = blualloc.stats().live_bytes
    for _ in range(3):
        with pytest.raises((RuntimeError, BufferError), match=r"(?i)bfloat|type|dlpack"):
            np.from_dlpack(bt.ones((1000,), dtype="bfloat16"))  # which NumPy does not have

        def lose() -> None:
            capsule = bt.ones((1000,)).__dlpack__()
            del capsule
            held = bt.ones((1000,)).__dlpack__()
            raise KeyError(held is None)

        with pytest.raises(KeyError):
            lose()
    assert blualloc.stats().live_bytes == before


def test_dlpack_misuse() -> None:
    class Nowhere:
        def __dlpack__(self) -> object:
            raise AssertionError("must not be asked")

        def __dlpack_device__(self) -> object:
            raise ValueError("Unknown device type meta for Dlpack")

    with pytest.raises(TypeError, match="Nowhere has no device that DLPack knows: Unknown device type meta"):
        bt.from_dlpack(Nowhere())
    with pytest.raises(TypeError, match="__dlpack__"):
        bt.from_dlpack(3)
    with pytest.raises(bt.AutogradError, match="detach"):
        bt.zeros(2).requires_grad_().__dlpack__()

    class Elsewhere:
        def __dlpack__(self) -> object:
            raise AssertionError("must not be asked")

        def __dlpack_device__(self) -> tuple[int, int]:
            return (4, 0)

    class Used:
        def __init__(self) -> None:
            self.capsule = bt.ones(3).__dlpack__()

        def __dlpack__(self) -> object:
            return self.capsule

    with pytest.raises(TypeError, match="cpu"):
        bt.from_dlpack(Elsewhere())
    used = Used()
    assert bt.from_dlpack(used).tolist() == [1, 1, 1]
    with pytest.raises(TypeError, match="fresh"):
        bt.from_dlpack(used)
    copied = bt.ones(3)
    assert not np.shares_memory(bt.from_dlpack(_Copy(copied)).numpy(), copied.numpy())


class _Copy:
    def __init__(self, tensor: bt.Tensor) -> None:
        self.tensor = tensor

    def __dlpack__(self) -> object:
        return self.tensor.__dlpack__(copy=True)


@pytest.mark.torch
def test_dlpack_with_torch(torch: Any) -> None:
    x = bt.asarray(np.arange(6, dtype=np.float32).reshape(2, 3))
    theirs = torch.from_dlpack(x.permute_dims(1, 0))
    assert tuple(theirs.stride()) == (1, 3)
    theirs[0, 1] = 40
    assert x[1, 0].item() == 40
    for dtype in (torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool):
        source = torch.ones(4, 3, dtype=dtype).t()[1:]
        ours = bt.from_dlpack(source)
        assert ours.shape == (2, 4)
        assert ours.dtype.name == str(dtype).removeprefix("torch.")
        assert ours.astype("float32").tolist() == [[1.0] * 4] * 2
        assert torch.from_dlpack(ours).data_ptr() == source.data_ptr()
    with pytest.raises(ValueError, match="does not export"):
        bt.from_dlpack(torch.ones(3, requires_grad=True))
    assert bt.asarray(torch.ones(2, dtype=torch.float64)).dtype is bt.float64


def adder(constant: bt.Tensor) -> Any:
    return lambda x: x + constant


def test_foreign_memory_is_given_back_outside_of_a_replay() -> None:
    """A program keeps what it reads: the array dies with the program, not while one runs."""
    array = tracked(4)
    alive = weakref.ref(array)
    program = bt.capture(adder(bt.asarray(array)))
    del array
    for _ in range(4):
        result = program(bt.ones(4, dtype="float64"))
    assert result.tolist() == [1, 2, 3, 4]
    del program, result
    gc.collect()
    assert alive() is None
