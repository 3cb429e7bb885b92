"""Tensors on a CUDA device: where they are made, copies between devices, reading values, pinned memory."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from dtype_names import DTYPES

import blutensor as bt


def values(shape: tuple[int, ...], dtype: str) -> Any:
    rng = np.random.default_rng(3)
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(np.bool_)
    if dtype in ("float32", "float16", "float64"):
        return rng.standard_normal(shape).astype(dtype)
    if dtype == "bfloat16":
        return rng.standard_normal(shape).astype(np.float32)
    return rng.integers(0, 100, shape).astype(dtype)


def test_properties() -> None:
    assert bt.cuda.is_available()
    assert bt.cuda.device_count() >= 1
    assert bt.cuda.unavailable_reason() == ""
    properties = bt.cuda.device_properties()
    assert properties.capability >= (8, 0)
    assert properties.total_bytes > 2**30
    assert properties.multiprocessors > 0
    assert properties.name
    assert tuple(map(int, properties.driver.split("."))) >= (13, 0)
    assert bt.cuda.compute_stream() != 0
    assert bt.cuda.compute_stream() == bt.cuda.compute_stream("cuda")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0, 3), (1,), (7, 5), (1 << 20,)])
def test_round_trip(shape: tuple[int, ...], dtype: str) -> None:
    host = bt.asarray(values(shape, dtype), dtype=dtype)
    there = host.to("cuda")
    assert (there.device, there.shape, there.dtype) == ("cuda:0", shape, host.dtype)
    assert there.is_contiguous()
    back = there.cpu()
    assert back.device == "cpu"
    np.testing.assert_array_equal(back.numpy(), host.numpy())
    assert there.to("cuda:0") is there
    assert host.cpu() is host


def test_views_of_the_host_arrive_row_major() -> None:
    host = bt.asarray(values((6, 8), "float32"))
    there = host[1:5:2, ::-1].T.cuda()
    assert there.is_contiguous()
    np.testing.assert_array_equal(there.cpu().numpy(), host.numpy()[1:5:2, ::-1].T)


def test_reading_values() -> None:
    x = bt.asarray([1.5, -2.0], device="cuda")
    assert x.tolist() == [1.5, -2.0]
    assert bt.asarray(7, device="cuda").item() == 7
    assert "device=cuda:0" in repr(x)
    with pytest.raises(
        TypeError, match=r"\[numpy\] expected a tensor on the cpu, got float32\(2,\) on cuda:0; use .cpu"
    ):
        x.numpy()
    with pytest.raises(TypeError, match=r"use .cpu\(\)"):
        np.asarray(x)


def test_writing_values() -> None:
    x = bt.empty((2, 3), device="cuda")
    array = values((2, 3), "float32")
    x.copy_(array)
    np.testing.assert_array_equal(x.cpu().numpy(), array)
    x.copy_(bt.asarray(2 * array))
    np.testing.assert_array_equal(x.cpu().numpy(), 2 * array)
    host = bt.empty((2, 3))
    before = host.version
    host.copy_(x)
    np.testing.assert_array_equal(host.numpy(), 2 * array)
    assert host.version > before


def test_making_tensors() -> None:
    for make in (bt.zeros, bt.ones):
        x = make((3, 2), device="cuda")
        assert x.device == "cuda:0"
        np.testing.assert_array_equal(x.cpu().numpy(), make((3, 2)).numpy())
    np.testing.assert_array_equal(bt.arange(5, device="cuda").cpu().numpy(), np.arange(5))
    x = bt.full((2,), 7, dtype="int32", device="cuda")
    assert bt.zeros_like(x).device == bt.ones_like(x).device == bt.empty_like(x).device == "cuda:0"
    assert bt.zeros_like(x, device="cpu").device == "cpu"


def test_default_device() -> None:
    assert bt.get_default_device() == "cpu"
    with bt.default_device("cuda"):
        assert bt.get_default_device() == "cuda:0"
        assert bt.zeros(2).device == bt.asarray(np.ones(3)).device == bt.arange(2).device == "cuda:0"
        assert bt.random.uniform(3).device == "cuda:0"
        assert bt.zeros(2, device="cpu").device == "cpu"
        host = bt.ones(2, device="cpu")
        assert (host + 1.5).device == "cpu"
    assert bt.zeros(2).device == "cpu"


def test_scalars_join_the_tensor() -> None:
    x = bt.asarray([1.0, 2.0], device="cuda")
    np.testing.assert_array_equal((2.0 * x + 1).cpu().numpy(), [3.0, 5.0])
    x.add_(3)
    assert x.tolist() == [4.0, 5.0]


def test_mixed_devices() -> None:
    x, y = bt.ones(2), bt.ones(2, device="cuda")
    with pytest.raises(TypeError, match=r"\[add\] expected all tensors on one device, got cpu and cuda:0"):
        x + y


def test_devices_that_do_not_exist() -> None:
    count = bt.cuda.device_count()
    with pytest.raises(bt.UnsupportedError, match=rf"cuda:{count} does not exist: this process sees {count} GPU"):
        bt.zeros(2, device=f"cuda:{count}")
    with pytest.raises(TypeError, match=r"expected device 'cpu' or 'cuda:<index>', got 'cuda:x'"):
        bt.zeros(2, device="cuda:x")


def test_copies() -> None:
    x = bt.asarray(values((5, 4), "float32"), device="cuda")
    twin = copy.deepcopy(x)
    assert twin.device == "cuda:0"
    assert twin.storage_id != x.storage_id
    np.testing.assert_array_equal(twin.cpu().numpy(), x.cpu().numpy())
    again = pickle.loads(pickle.dumps(x))
    assert again.device == "cuda:0"
    np.testing.assert_array_equal(again.cpu().numpy(), x.cpu().numpy())
    half = x.to(bt.float16)
    assert (half.device, half.dtype) == ("cuda:0", bt.float16)
    assert x.to("cpu", bt.float16).dtype is bt.float16


def test_gradients_flow_between_devices() -> None:
    w = bt.asarray([1.0, 2.0]).requires_grad_()
    (w.cuda() * bt.asarray([3.0, 4.0], device="cuda")).sum().backward()
    assert w.grad is not None
    assert w.grad.device == "cpu"
    assert w.grad.tolist() == [3.0, 4.0]


def test_backward_on_the_device() -> None:
    w = bt.asarray([1.0, -2.0], device="cuda").requires_grad_()
    (w * w + 1.0).sum().backward()
    assert w.grad is not None
    assert w.grad.device == "cuda:0"
    assert w.grad.tolist() == [2.0, -4.0]


def test_pinned_memory() -> None:
    pinned = bt.cuda.empty_pinned((1000, 7))
    assert pinned.device == "cpu"
    pinned.copy_(values((1000, 7), "float32"))
    there = pinned.cuda()
    back = bt.cuda.empty_pinned((1000, 7))
    back.copy_(there)
    bt.cuda.Event().wait()
    np.testing.assert_array_equal(back.numpy(), pinned.numpy())


def test_random_bits_are_those_of_the_cpu() -> None:
    results = []
    for device in ("cpu", "cuda"):
        bt.manual_seed(11)
        first = bt.random.uniform((1000,), device=device)
        bt.default_generator.advance()
        second = bt.random.uniform((7,), -1.0, 1.0, device=device)
        results.append([first.cpu().numpy(), second.cpu().numpy()])
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_generator_states_are_kept_in_step() -> None:
    bt.manual_seed(5)
    bt.random.uniform(2, device="cuda")
    bt.default_generator.advance()
    assert bt.default_generator.state.tolist() == [5, 1]
    bt.default_generator.state.copy_(np.array([9, 4]))
    bt.default_generator.op_id = 0
    there = bt.random.uniform(100, device="cuda").cpu().numpy()
    bt.default_generator.op_id = 0
    np.testing.assert_array_equal(bt.random.uniform(100).numpy(), there)


def test_out_of_memory_leaves_the_process_usable() -> None:
    free = bt.cuda.device_properties().free_bytes
    keep = bt.ones((1024,), device="cuda")
    with pytest.raises(MemoryError, match="out of memory") as caught:
        bt.empty((4 * free,), dtype="uint8", device="cuda")
    assert caught.value.requested >= 4 * free  # type: ignore[attr-defined]
    assert "cuda:0" in caught.value.pool  # type: ignore[attr-defined]
    assert (keep + 1).sum().item() == 2048.0


def test_out_of_range_ids_are_reported_at_the_next_read() -> None:
    table = bt.ones((3, 2), device="cuda")
    rows = bt.embedding(bt.asarray([0, 3], device="cuda"), table)
    with pytest.raises(IndexError, match=r"\[embedding\] expected ids from 0 to 2, got 3"):
        rows.cpu()
    assert bt.embedding(bt.asarray([0, 2], device="cuda"), table).tolist() == [[1.0, 1.0], [1.0, 1.0]]


LOSE = """
import ctypes, numpy as np, blutensor as bt
x = bt.ones((4,), device="cuda")
stray = (ctypes.c_void_p * 1)()
lib = bt._native.lib
shape = (ctypes.c_int64 * 1)(1 << 20)
step = (ctypes.c_int64 * 1)(1)
release = bt._native.ReleaseFn(lambda _: None)
bt._native.check(lib.blutensor_from_memory(1 << 40, shape, step, 1, 0, 1, 0, release, None, stray))
bad = bt.Tensor._adopt(stray)
try:
    (bad + 1).sum().item()
except bt.DeviceLostError as error:
    print("LOST", error)
try:
    x.cpu()
except bt.DeviceLostError as error:
    print("STILL", error)
"""


def test_a_fault_is_a_typed_error() -> None:
    done = subprocess.run([sys.executable, "-c", LOSE], capture_output=True, text=True, timeout=120, check=False)
    assert "LOST" in done.stdout, done.stdout + done.stderr
    assert "STILL" in done.stdout, done.stdout + done.stderr
    assert "restart the process" in done.stdout
