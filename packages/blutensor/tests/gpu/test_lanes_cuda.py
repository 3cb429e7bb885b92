"""Operators of other libraries in programs on the GPU: on a lane of their own, and such as CUDA cannot record."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from models import bits

import blutensor as bt
from blutensor import _native

_keep: list[object] = []


@pytest.fixture(autouse=True)
def on_the_gpu(clean_device: None) -> Iterator[None]:
    with bt.default_device("cuda"):
        yield


@pytest.fixture(scope="module")
def driver() -> Any:
    library = ctypes.CDLL("libcuda.so.1")
    library.cuMemcpyDtoDAsync_v2.argtypes = [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p]
    library.cuStreamSynchronize.argtypes = [ctypes.c_void_p]
    return library


def register(name: str, lane: int, driver: Any, waits: bool) -> Callable[[bt.Tensor], bt.Tensor]:
    """An operator that copies a row-major float32 tensor, through the driver."""

    def infer(_context: int, ins: Any, _attrs: Any, outs: Any) -> int:
        outs[0].rank, outs[0].dtype = ins[0].rank, ins[0].dtype
        outs[0].shape = ins[0].shape
        return 0

    def launch(_context: int, ins: Any, _attrs: Any, outs: Any, stream: int) -> int:
        count = int(np.prod(ins[0].shape[: ins[0].rank], dtype=np.int64))
        failed = driver.cuMemcpyDtoDAsync_v2(outs[0].data, ins[0].data, 4 * count, stream)
        if waits and not failed:
            failed = driver.cuStreamSynchronize(stream)
        if failed:
            _native.lib.blutensor_set_error(f"the driver says {failed}".encode())
        return 5 if failed else 0

    callbacks = (_native.InferFn(infer), _native.LaunchFn(launch))
    desc = _native.OperatorDesc(
        struct_size=ctypes.sizeof(_native.OperatorDesc),
        num_inputs=1,
        num_outputs=1,
        name=name.encode(),
        input_names=(ctypes.c_char_p * 1)(b"x"),
        attr_names=(ctypes.c_char_p * 0)(),
        attr_kinds=(ctypes.c_int32 * 0)(),
        lane=lane,
        infer=callbacks[0],
        launch_cuda=callbacks[1],
    )
    op_id = ctypes.c_uint32()
    _native.check(_native.lib.blutensor_register_operator(ctypes.byref(desc), ctypes.byref(op_id)))
    _keep.append((callbacks, desc))
    function: Callable[[bt.Tensor], bt.Tensor] = bt.registered(name)
    return function


def check_all_ways(step: Callable[[bt.Tensor], bt.Tensor], x: bt.Tensor) -> Any:
    expected = bits(step(x))
    captured = bt.capture(step)
    for _ in range(3):
        assert bits(captured(x)) == expected
    for level in ("native", "operator", "native"):
        captured.program.outputs[0].zero_()
        captured.program.replay(level)  # type: ignore[arg-type]
        assert bits(captured.program.outputs[0]) == expected
    return captured.program


def test_a_lane_of_its_own(driver: Any) -> None:
    copy = register("test.lane_copy", 2, driver, waits=False)

    def step(x: bt.Tensor) -> bt.Tensor:
        y = x
        for _ in range(5):
            z = copy(bt.tanh(y))
            y = z + copy(y * 0.5) + bt.exp(-z)
        return y

    x = bt.asarray(np.random.default_rng(0).standard_normal((1 << 18,)).astype(np.float32))
    program = check_all_ways(step, x)
    assert program.execution.startswith("one graph"), program.execution
    assert "lane copy after #" in str(program)


def test_what_cannot_be_recorded_runs_one_by_one(driver: Any) -> None:
    copy = register("test.waiting_copy", 0, driver, waits=True)
    x = bt.asarray(np.random.default_rng(0).standard_normal((1000,)).astype(np.float32))
    program = check_all_ways(lambda t: copy(t * 2) + 1, x)
    assert program.execution.startswith("launches one by one: "), program.execution
    assert "the driver says" in program.execution
    # The stream is in order: graphs are recorded as before.
    assert check_all_ways(lambda t: bt.tanh(t), x).execution.startswith("one graph")


def test_hooks_see_the_calls_of_a_replay(driver: Any) -> None:
    seen: list[str] = []
    begin = _native.OpHookFn(lambda _context, name: seen.append(name.decode()))
    end = _native.OpHookFn(lambda _context, _name: None)
    captured = bt.capture(lambda t: bt.tanh(t) + 1)
    x = bt.ones((8,))
    for _ in range(3):
        expected = bits(captured(x))
    hooks = _native.Hooks(struct_size=ctypes.sizeof(_native.Hooks), op_begin=begin, op_end=end)
    _native.check(_native.lib.blutensor_set_hooks(ctypes.byref(hooks)))
    try:
        captured.program.replay()
    finally:
        _native.check(_native.lib.blutensor_set_hooks(None))
    assert seen == ["tanh", "full", "add"] or seen == ["full", "tanh", "add"]
    assert bits(captured.program.outputs[0]) == expected
